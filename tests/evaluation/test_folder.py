"""The folder: problems once, results beside the runs, and never over another evaluation's."""

import dataclasses
import json

from opasd.data.problems import Problem
from opasd.evaluation import folder as folders
from opasd.evaluation.benchmarks import load, packaged


def test_problems_are_written_once_whatever_they_hold(tmp_path):
    question = "a\u2028b\x85c\x0c\ud800"
    benchmark = dataclasses.replace(load(packaged()["lab"], limit=1), problems=(Problem(question, "", "1", "b/1"),))
    for _ in range(2):
        folders.write_problems(tmp_path, [benchmark])
    row = {"benchmark": "lab", "problem": "b/1", "question": question, "answer": "1"}
    assert [json.loads(line) for line in (tmp_path / folders.PROBLEMS).read_bytes().splitlines()] == [row]


def test_a_runs_copy_is_not_overwritten_by_another_evaluation_of_the_name(tmp_path):
    about = {"model": "m", "dtype": "float32", "fingerprint": "f", "run": str(tmp_path / "run")}
    (tmp_path / "run").mkdir()

    def write(folder: str, seed: int, benchmarks: str, result: str) -> None:
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        sets = {name: {"fingerprint": name} for name in benchmarks}
        settings = {"settings": {"profile": {"seed": seed}}, "targets": {"run": about}, "benchmarks": sets}
        folders.write_results(tmp_path / folder, {"name": "e", **settings, "results": result}, ["run"])

    def there() -> list[str]:
        copies = (tmp_path / "run" / "evaluations").iterdir()
        return sorted(json.loads(path.read_text())["results"] for path in copies)

    write("A/e", 0, "p", "A")
    write("B/e", 1, "p", "B")
    assert there() == ["A", "B"]
    write("A/e", 0, "p", "A again")
    write("B/e", 1, "pq", "B with more")
    assert there() == ["A again", "B with more"]
    write("C/e", 0, "q", "C")  # the same settings, of something else
    assert there() == ["A again", "B with more", "C"]
    (tmp_path / "run" / "evaluations" / "e.json").write_text("{")
    write("A/e", 0, "p", "A once more")
    assert (tmp_path / "run" / "evaluations" / "e.json").read_text() == "{"
    assert len(list((tmp_path / "run" / "evaluations").glob("e-*.json"))) == 3
