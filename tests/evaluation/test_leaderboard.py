"""Many evaluations in one table, and in other tools' form."""

import csv
import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from opasd import cli
from opasd.errors import ConfigError
from opasd.evaluation.export import export
from opasd.evaluation.leaderboard import as_csv, cells, leaderboard, read_entries
from opasd.evaluation.results import build
from tests.evaluation.test_results import outcomes

PROFILE = {
    "sampling": {"temperature": 0.6, "max_new_tokens": 9},
    "samples": 4,
    "seed": 0,
    "thinking": True,
    "budgets": [],
}


def write(folder: Path, targets: dict[str, list[str]], fingerprint: str = "f", **profile: Any) -> Path:
    """An evaluation of two benchmarks, with its samples."""
    trials = {(t, name, 9): outcomes(*own) for name in ("a", "b") for t, own in targets.items()}
    about = {"model": "org/base", "revision": None, "dtype": "auto", "adapter": None, "run": None, "fingerprint": "x"}
    benchmark = {"source": "org/a", "revision": "r", "problems": 3, "fingerprint": fingerprint, "prompt": "p"}
    folder.mkdir(parents=True)
    evaluation = {
        "schema": 1,
        "name": folder.name,
        "opasd": "0",
        "settings": {"profile": PROFILE | profile, "engine": "transformers", "group": 8},
        "targets": {target: about | {"fingerprint": target} for target in targets},
        "benchmarks": {"a": benchmark, "b": benchmark},
        "environment": {"time": "2026-01-02T03:04:05+0000", "versions": {"transformers": "5"}},
        "spent": {"total": {"wall_seconds": 5.0}},
        **build(trials),
    }
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    rows = [
        {"target": t, "benchmark": name, "problem": problem, "sample": number, "seed": 1, "ids": [1], "text": "t",
         "finish_reason": "stop", "verdict": graded.verdict, "answer": graded.answer, "cuts": {}}
        for (t, name, _), trial in trials.items() for problem, own in trial.items() for number, graded in enumerate(own)
    ]  # fmt: skip
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problems = [{"benchmark": "a", "problem": f"p{n}", "question": f"q{n}", "answer": "1"} for n in range(3)]
    (folder / "problems.jsonl").write_text("".join(json.dumps(row) + "\n" for row in problems))
    return folder


LOW, HIGH = ["cwww", "wwww", "ccww"], ["cccc", "cccw", "ccww"]


def test_best_first_with_what_is_not_comparable(tmp_path, capsys):
    first, second = write(tmp_path / "first", {"low": LOW, "high": HIGH}), write(tmp_path / "second", {"other": LOW})
    rows, notes = leaderboard(read_entries([tmp_path]))
    assert [row["target"] for row in rows] == ["high", "low", "other"]
    assert rows[0]["average"] == pytest.approx(0.75)
    assert notes == []
    header, *lines = cells(rows)
    assert header == ["", "target", "evaluation", "average", "a", "b"]
    assert lines[0][:4] == ["1", "high", "first", "75.0"]
    parsed = list(csv.DictReader(io.StringIO(as_csv(rows))))
    assert len(parsed) == 6
    assert float(parsed[0]["mean"]) == pytest.approx(0.75)
    third = write(
        tmp_path / "third", {"warm": HIGH}, fingerprint="g", sampling={"temperature": 1.0, "max_new_tokens": 9}
    )
    _, notes = leaderboard(read_entries([first, second, third]))
    assert any("warm (third) on a is not comparable with low" in note and "temperature 1.0" in note for note in notes)
    for form in ("text", "markdown", "json", "csv"):
        assert cli.main(["leaderboard", str(tmp_path), "--format", form]) == 0
        assert "high" in capsys.readouterr().out


def test_evaluations_of_one_name_stay_apart(tmp_path):
    first, second = write(tmp_path / "x" / "evaluation", {"m": LOW}), write(tmp_path / "y" / "evaluation", {"m": HIGH})
    (tmp_path / "again").symlink_to(first)
    rows, _ = leaderboard(read_entries([tmp_path / "again", first, second]))
    assert [(row["evaluation"], row["average"]) for row in rows] == [(str(second), 0.75), (str(first), 0.25)]


def test_mistakes_are_one_message(tmp_path, capsys):
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "evaluation.json").write_text('{"results": [1]}')
    for words, folder in (("no evaluation.json", tmp_path / "absent"), ("damaged", tmp_path / "damaged")):
        assert cli.main(["leaderboard", str(folder)]) == 2
        assert words in capsys.readouterr().err
    assert cli.main(["leaderboard", str(tmp_path), "--export", "lighteval"]) == 2
    with pytest.raises(ConfigError, match="no results"):
        export(tmp_path, "lighteval", tmp_path / "out")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("name",), -1),
        (("results", 0, "benchmark"), 7),
        (("results", 0, "budget"), "9"),
        (("results", 0, "avg", "low"), "x"),
        (("results", 0, "avg", "mean"), float("nan")),
        (("results", 0, "avg", "high"), True),
        (("results", 0, "samples"), float("inf")),
        (("targets", "m", "model"), ["org"]),
    ],
    ids=str,
)
def test_values_of_another_kind_are_damage(tmp_path, place, value):
    path = write(tmp_path / "one", {"m": LOW}) / "evaluation.json"
    evaluation = json.loads(path.read_text())
    inner: Any = evaluation
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(evaluation))
    with pytest.raises(ConfigError, match="damaged"):
        read_entries([path])


def test_only_an_evaluations_own_results_are_exported(tmp_path, capsys):
    """Another file beside them is not mistaken for them."""
    write(tmp_path / "one", {"base": LOW})
    other = (tmp_path / "one" / "evaluation.json").rename(tmp_path / "one" / "evaluation.regraded.json")
    assert cli.main(["leaderboard", str(other), "--export", "lighteval", "--output", str(tmp_path / "out")]) == 2
    assert "--export reads evaluation.json" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_lightevals_form(tmp_path, capsys):
    """The keys that lighteval writes, and what its `make_results_table` reads."""
    write(tmp_path / "one", {"base": LOW})
    assert cli.main(["leaderboard", str(tmp_path), "--export", "lighteval", "--output", str(tmp_path / "out")]) == 0
    (path,) = map(Path, capsys.readouterr().out.split())
    assert path == tmp_path / "out" / "results" / "org" / "base" / "results_2026-01-02T03-04-05.json"
    written = json.loads(path.read_text())
    assert set(written) == {
        "config_general", "results", "versions", "config_tasks", "summary_tasks", "summary_general",
    }  # fmt: skip
    assert {"lighteval_sha", "model_config", "model_name", "total_evaluation_time_secondes"} <= set(
        written["config_general"]
    )
    assert set(written["results"]) == {"a|0", "b|0", "all"}
    for task, scores in written["results"].items():
        assert task == "all" or task in written["versions"]
        for name, value in scores.items():
            assert isinstance(value, float | int)
            assert name.endswith("_stderr") or f"{name}_stderr" in scores
    assert written["results"]["a|0"]["avg@4"] == pytest.approx(0.25)
    assert {"hashes", "truncated", "non_truncated", "padded", "non_padded"} == set(written["summary_general"])
    assert written["summary_tasks"]["a|0"]["truncated"] == 0  # prompts that were cut; lighteval counts no completions
    assert written["summary_tasks"]["a|0"]["non_truncated"] == 3
    with pytest.raises(ConfigError, match="not overwritten"):
        export(tmp_path / "one", "lighteval", tmp_path / "out")


def test_the_harness_form(tmp_path):
    """The keys of lm-evaluation-harness's result schema, and what its `make_table` reads."""
    written = export(write(tmp_path / "one", {"base": LOW, "new": HIGH}), "lm-eval", tmp_path / "out")
    assert len(written) == 6
    results = json.loads(written[0].read_text())
    core = {"results", "group_subtasks", "configs", "versions", "n-shot", "higher_is_better", "n-samples", "config"}
    assert core <= set(results)
    assert time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(results["date"])) == "2026-01-02T03:04:05"
    for task, scores in results["results"].items():
        assert {"name", "alias", "sample_len"} <= set(scores)
        assert task in results["versions"]
        assert results["n-samples"][task] == {"original": 3, "effective": 3}
        for key in set(scores) - {"name", "alias", "sample_len"}:
            metric, _, given = key.partition(",")
            assert given == "none"
            assert metric.endswith("_stderr") or f"{metric}_stderr,none" in scores
            assert metric.endswith("_stderr") or results["higher_is_better"][task][metric] is True
    lines = [json.loads(line) for line in written[1].read_text().splitlines()]
    assert len(lines) == 3
    assert {
        "doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics", "doc_hash",
        "prompt_hash", "target_hash",
    } <= set(lines[0])  # fmt: skip
    assert [line["avg@4"] for line in lines] == [0.25, 0, 0.5]
    assert len(lines[0]["resps"][0]) == len(lines[0]["filtered_resps"]) == 4


def test_power_prints_numbers_and_refuses_impossible_ones(tmp_path, capsys):
    assert cli.main(["evaluate", "--power", "--difference", "3", "--samples", "12"]) == 0
    assert "a difference of 3 points with 12 samples a problem needs" in capsys.readouterr().out
    folder = write(tmp_path / "one", {"base": LOW, "new": HIGH})
    assert cli.main(["evaluate", "--power", "--from", str(folder), "--width", "10"]) == 0
    assert "a: standard deviation" in capsys.readouterr().out
    for wrong in (["--accuracy", "1.5"], ["--width", "-1"], ["--from", str(tmp_path)], ["--json"]):
        assert cli.main(["evaluate", "--power", *wrong]) == 2
