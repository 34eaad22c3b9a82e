"""Which evaluations share a row of a report, and what the rows are called."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from opasd.report.build import build_report
from opasd.report.folders import read_runs
from opasd.report.results import evaluations, results
from opasd.report.run import Run
from opasd.report.side_by_side import comparisons
from tests.report.made import make_evaluation, make_run


def evaluated(
    folder: Path, targets: dict[str, Path | None], *, benchmark: str = "set", budget: int = 100, problems: int = 6,
    samples: int = 3, fingerprint: str = "f", wording: str = "{question}", **profile: Any,
) -> Path:  # fmt: skip
    """An evaluation's folder that has its settings on record; a copy lies with each run that is there."""
    make_evaluation(folder, targets, problems=problems, samples=samples)
    sampling = {"temperature": profile.pop("temperature", 0.6), "max_new_tokens": budget}
    settings = {"profile": {"sampling": sampling, "samples": samples, "seed": 0, "thinking": False} | profile}
    about = {"benchmarks": {benchmark: {"title": "T", "prompt": wording, "fingerprint": f"{problems} problems"}}}
    for path in folder.iterdir():
        path.write_text(
            path.read_text().replace('"set', f'"{benchmark}').replace('"budget": 100', f'"budget": {budget}')
        )
    for name, nested in (("settings.json", settings), ("evaluation.json", {"settings": settings})):
        whole = json.loads((folder / name).read_text()) | nested | about
        for target in whole["targets"].values():
            target["fingerprint"] = fingerprint
        (folder / name).write_text(json.dumps(whole))
    for run in filter(None, targets.values()):
        if run.is_dir():
            (run / "evaluations").mkdir(exist_ok=True)
            shutil.copy(folder / "evaluation.json", run / "evaluations" / f"{folder.name}.json")
    return folder


def rows(runs: list[Run]) -> list[tuple[str, int, int]]:
    """Names, how many results and how many answers."""
    build_report(runs).page.html()
    return [(run.name, len(run.results), sum(map(len, run.answers.values()))) for run in runs]


OTHER = [
    {"temperature": 1.5}, {"seed": 1}, {"thinking": True}, {"samples": 2}, {"problems": 5},
    {"wording": "Q: {question}"}, {"fingerprint": "g"},
]  # fmt: skip


@pytest.mark.parametrize("other", OTHER, ids=str)
def test_evaluations_that_differ_are_rows_of_their_own(tmp_path, other):
    run = make_run(tmp_path / "runs", "r1", samples=0)
    count = other.get("problems", 6) * other.get("samples", 3)
    for targets in ({"base": None}, {"r1": run}):
        (name,) = targets
        paths = [evaluated(tmp_path / f"{name}-a", targets), evaluated(tmp_path / f"{name}-b", targets, **other)]
        assert rows(read_runs(paths)) == [(f"{name} ({name}-a)", 2, 18), (f"{name} ({name}-b)", 2, count)]
    assert rows(read_runs([run])) == [("r1 (r1-a)", 2, 0), ("r1 (r1-b)", 2, 0)]
    assert rows(read_runs([run, *paths])) == [("r1 (r1-a)", 2, 18), ("r1 (r1-b)", 2, count)]
    assert rows(read_runs([*paths[::-1], run])) == [("r1 (r1-a)", 2, 18), ("r1 (r1-b)", 2, count)]


def test_evaluations_of_the_same_name_are_told_apart_by_where_they_are(tmp_path):
    run, copies = make_run(tmp_path / "runs", "r1"), tmp_path / "runs" / "r1" / "evaluations"
    first = evaluated(tmp_path / "A" / "e", {"r1": run})
    (copies / "e.json").rename(copies / "e-0123abcd.json")
    paths = [first, evaluated(tmp_path / "B" / "e", {"r1": run}, seed=1)]
    assert [run.name for run in read_runs(paths)] == ["r1 (A/e)", "r1 (B/e)"]
    assert [run.name for run in read_runs([run])] == ["r1 (e)", "r1 (e-0123abcd)"]
    assert [run.name for run in read_runs([run, *paths])] == ["r1 (B/e)", "r1 (A/e)"]


def test_benchmarks_and_budgets_of_the_same_settings_are_one_row(tmp_path):
    run = make_run(tmp_path / "runs", "r1", samples=0)
    for targets in ({"base": None}, {"r1": run}):
        (name,) = targets
        first = evaluated(tmp_path / f"{name}-a", targets)
        paths = [first, evaluated(tmp_path / f"{name}-b", targets, benchmark="other", samples=2)]
        paths.append(evaluated(tmp_path / f"{name}-c", targets, budget=200))
        # Of the answers that two have, those within the larger budget count, and the others are not counted twice.
        assert rows(read_runs(paths)) == [(name, 5, 18 + 12)]
        assert rows(read_runs(paths[::-1])) == [(name, 5, 18 + 12)]
    assert rows(read_runs([run, *paths])) == [("r1", 5, 18 + 12)]


def test_the_longer_of_two_answers_counts(tmp_path):
    paths = [evaluated(tmp_path / name, {"base": None}, budget=budget) for name, budget in (("a", 100), ("b", 200))]
    samples = paths[1] / "samples.jsonl"
    longer = [
        json.loads(line) | {"ids": list(range(150)), "verdict": "correct"} for line in samples.read_text().splitlines()
    ]
    samples.write_text("".join(f"{json.dumps(row)}\n" for row in longer))
    for folders in (paths, paths[::-1]):
        (base,) = read_runs(folders)
        assert [(answer.tokens, answer.correct) for answer in base.answers["set"]] == [(150, True)] * 18


def test_the_same_evaluation_twice_is_one(tmp_path):
    run = make_run(tmp_path / "runs", "r1", samples=0)
    path = evaluated(tmp_path / "e", {"base": None, "r1": run})
    again = shutil.copytree(path, tmp_path / "again")
    for folders in ([run, path], [run, path, again], [path, run, path / ".." / "e"]):
        assert rows(read_runs(folders)) == [("base", 2, 18), ("r1", 2, 18)]


def test_evaluations_without_their_settings_are_one_row_as_far_as_is_known(tmp_path):
    paths = [make_evaluation(tmp_path / "a", {"base": None}), evaluated(tmp_path / "b", {"base": None})]
    assert rows(read_runs(paths)) == [("base", 2, 18)]


@pytest.mark.parametrize("damaged", [None, 3, [], "x", {"sampling": 3}, {"sampling": {"temperature": []}}])
def test_settings_that_are_damaged(tmp_path, damaged):
    paths = [evaluated(tmp_path / name, {"base": None}) for name in "ab"]
    whole = json.loads((paths[1] / "evaluation.json").read_text())
    for damage in (
        {"settings": {"profile": damaged}},
        {"settings": damaged},
        {"benchmarks": damaged},
        {"benchmarks": {"set": damaged}},
    ):
        (paths[1] / "evaluation.json").write_text(json.dumps(whole | damage))
        assert rows(read_runs(paths))


def test_links_are_named_as_they_are_and_a_folder_that_is_given_twice_is_read_once(tmp_path, monkeypatch):
    made = make_run(tmp_path / "g", "plain", samples=0)
    evaluation = evaluated(tmp_path / "g" / "plain.evaluation", {"plain": made})
    (tmp_path / "k").mkdir()
    (tmp_path / "k" / "linked").symlink_to(made)
    (tmp_path / "k" / "linked.evaluation").symlink_to(evaluation)
    make_run(tmp_path / "k", "new", samples=0)
    assert rows(read_runs([tmp_path / "k"])) == [("linked", 2, 18), ("new", 0, 0)]
    assert rows(read_runs([tmp_path / "g", tmp_path / "k"])) == [("plain", 2, 18), ("new", 0, 0)]
    monkeypatch.chdir(tmp_path / "g")
    assert [run.name for run in read_runs([Path("plain"), made])] == ["plain"]
    monkeypatch.chdir(made / "final")
    assert [run.name for run in read_runs([Path("..")])] == ["plain"]
    monkeypatch.chdir(tmp_path / "k" / "new")
    assert [run.name for run in read_runs([Path()])] == ["new"]


def against_first(runs: list[Run]) -> tuple[list[str], str]:
    table = results(runs)
    index = table.header.index("set against first") if "set against first" in table.header else None
    return ["" if index is None else row[index].text for row in table.rows], table.caption


APART = [
    ({"temperature": 2}, "temperature 2"), ({"thinking": True}, "with thinking"), ({"budget": 200}, "up to 200 tokens"),
    ({"samples": 2}, "2 samples a problem"), ({"problems": 5}, "other problems (5 prob)"),
    ({"wording": "Q: {question}"}, "other prompt"),
]  # fmt: skip


@pytest.mark.parametrize(("other", "why"), APART, ids=str)
def test_rows_that_were_asked_otherwise_are_not_compared_and_it_says_why(tmp_path, other, why):
    paths = [evaluated(tmp_path / name, {name: None}) for name in "ab"]
    runs = read_runs([*paths, evaluated(tmp_path / "c", {"c": None}, **other)])
    runs.sort(key=lambda run: run.name)
    cells, note = against_first(runs)
    assert [bool(cell) for cell in cells] == [False, True, False]
    assert note.endswith(f"Not compared with the first on set, because it was asked differently: c ({why}).")
    table = evaluations(runs)
    assert table is not None
    groups: list[list[str]] = []
    for row in table.rows:
        groups += [[]] * (len(row) == 1)
        groups[-1] = [*groups[-1], row[0].text]
    assert not any({"a", "c"} <= set(group) for group in groups if other != {"budget": 200} or "100" in group[0])
    if why not in ("up to 200 tokens", "2 samples a problem"):
        own = f"set, up to 100 tokens, {other.get('samples', 3)} samples a problem, {why}"
        assert [own, "c"] in groups
        assert ["set, up to 100 tokens, 3 samples a problem", "a", "b"] in groups


@pytest.mark.parametrize("other", [{}, {"seed": 1}, {"fingerprint": "g"}], ids=str)
def test_rows_that_were_asked_the_same_are_compared_whatever_the_model(tmp_path, other):
    paths = [evaluated(tmp_path / "a", {"a": None}), evaluated(tmp_path / "b", {"b": None}, **other)]
    for runs in (read_runs(paths), read_runs([paths[0], make_evaluation(tmp_path / "c", {"c": None})])):
        cells, note = against_first(runs)
        assert sorted(map(bool, cells)) == [False, True]
        assert "Not compared" not in note
        table = evaluations(runs)
        assert table is not None
        assert [len(row) for row in table.rows].count(1) == 2  # the two budgets


def test_problems_of_one_name_and_other_questions_do_not_stand_side_by_side(tmp_path):
    paths = [evaluated(tmp_path / name, {name: None}) for name in "ab"]
    for path, text in ((paths[0], "Maybe"), (paths[1], "Surely")):
        (path / "samples.jsonl").write_text((path / "samples.jsonl").read_text().replace("Maybe", text))
    assert comparisons(read_runs(paths))[1] == 6
    problems = paths[1] / "problems.jsonl"
    problems.write_text(problems.read_text().replace("What is", "Why is"))
    assert comparisons(read_runs(paths))[1] == 0


def test_sweeps_of_one_name_are_told_apart_by_the_folder_above(tmp_path):
    paths = [make_run(tmp_path / task / "objectives", "opasd-seed-1") for task in ("arithmetic", "gsm8k")]
    paths.append(make_run(tmp_path / "long", "opasd-seed-1"))
    assert [run.name for run in read_runs(paths)] == [
        "arithmetic/objectives/opasd-seed-1", "gsm8k/objectives/opasd-seed-1", "long/opasd-seed-1",
    ]  # fmt: skip
    assert [run.name for run in read_runs(paths[:2])] == ["arithmetic/opasd-seed-1", "gsm8k/opasd-seed-1"]
