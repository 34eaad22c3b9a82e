"""Verdicts anew from kept samples: after an upgrade, after a failure, and by command. Never two graders in a folder."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from opasd.cli import main
from opasd.evaluation import folder as folders
from opasd.evaluation import loop
from opasd.evaluation.comparability import GRADING, digest
from opasd.evaluation.samples import SampleFile
from opasd.grading import versions as graders
from opasd.grading.versions import versions
from tests.evaluation.lab import Quiet, run, short_evaluation
from tests.evaluation.test_loop import no_model


@pytest.fixture(scope="module")
def graded(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("regrading") / "evaluation"
    run(short_evaluation(budgets=(12, 48), problems=3), path)
    return path


@pytest.fixture
def path(graded, tmp_path) -> Path:
    shutil.copytree(graded, tmp_path / "evaluation")
    return tmp_path / "evaluation"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / folders.SAMPLES).read_text().splitlines()]


def spoil(path: Path, verdict: str) -> None:
    """Give every sample, whole and cut, the same verdict."""
    spoiled = [row | {"verdict": verdict, "cuts": {b: c | {"verdict": verdict} for b, c in row["cuts"].items()}}
               for row in rows(path)]  # fmt: skip
    (path / folders.SAMPLES).write_text("".join(f"{json.dumps(row)}\n" for row in spoiled))


def resume(path: Path) -> list[str]:
    progress = Quiet()
    run(short_evaluation(budgets=(12, 48), problems=3), path, no_model, progress)
    return progress.said


def test_versions_are_part_of_the_evaluation_and_not_of_its_name(graded):
    for name in (folders.SETTINGS, folders.RESULTS):
        about = json.loads((graded / name).read_text())
        assert about.get("settings", about)[GRADING] == versions()
    settings = json.loads((graded / folders.SETTINGS).read_text())
    assert digest(settings) == digest({name: value for name, value in settings.items() if name != GRADING})
    assert set(versions()) == {"rules", "math-verify", "latex2sympy2_extended", "sympy"}


@pytest.mark.parametrize("recorded", [None, {"rules": 1, "sympy": "1.0"}])
def test_an_upgrade_grades_all_samples_anew(path, graded, recorded):
    settings = json.loads((path / folders.SETTINGS).read_text()) | {GRADING: recorded}
    if recorded is None:
        del settings[GRADING]
    (path / folders.SETTINGS).write_text(json.dumps(settings))
    spoil(path, "wrong")
    (said,) = resume(path)
    assert ("rules 1, sympy 1.0" if recorded else "an earlier grader") in said
    assert "all 6 samples are graded anew" in said
    assert rows(path) == rows(graded)
    assert json.loads((path / folders.SETTINGS).read_text())[GRADING] == versions()
    changes = [json.loads(line) for line in (path / "regraded.jsonl").read_text().splitlines()]
    assert {change["old_verdict"] for change in changes} == {"wrong"}
    verdicts = {about["verdict"] for row in rows(graded) for about in (row, *row["cuts"].values())}
    assert {change["verdict"] for change in changes} == verdicts - {"wrong"}
    assert resume(path) == []


def test_failures_alone_are_tried_again_on_resume(path, graded):
    spoil(path, "wrong")
    lines = (path / folders.SAMPLES).read_text().splitlines()
    lines[0] = json.dumps(json.loads(lines[0]) | {"verdict": "grader_failed"})
    (path / folders.SAMPLES).write_text("\n".join(lines) + "\n")
    (said,) = resume(path)
    assert "1 samples" in said
    assert rows(path)[0] == rows(graded)[0]
    assert {row["verdict"] for row in rows(path)[1:]} == {"wrong"}


def test_cuts_of_old_lines_are_read_with_the_tokenizer(path, graded):
    old = rows(path)
    for cut in (cut for row in old for cut in row["cuts"].values()):
        del cut["chars"]
    (path / folders.SAMPLES).write_text("".join(f"{json.dumps(row)}\n" for row in old))
    assert main(["regrade", str(path), "--write"]) == 0
    assert rows(path) == old


def test_the_command_leaves_all_as_it_was_unless_asked(path, graded, capfd):
    spoil(path, "wrong")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert main(["regrade", str(path)]) == 0
    printed = capfd.readouterr().out
    assert "are as they were" in printed
    assert "wrong → " in printed
    assert {name: (path / name).read_bytes() for name in before} == before
    beside = json.loads((path / "evaluation.regraded.json").read_text())
    assert beside["results"] == json.loads((graded / folders.RESULTS).read_text())["results"]
    assert main(["regrade", str(path), "--write", "--json"]) == 0
    about = json.loads(capfd.readouterr().out)
    assert about["written"]
    assert len(about["changed"]) == len((path / "regraded.jsonl").read_text().splitlines()) > 0
    assert rows(path) == rows(graded)
    assert not (path / "evaluation.regraded.json").exists()
    assert not (path / "regraded.new.jsonl").exists()
    expected = json.loads((graded / folders.RESULTS).read_text())
    assert json.loads((path / folders.RESULTS).read_text()) == expected


def test_a_folder_that_is_no_evaluation_is_refused(tmp_path, capfd):
    assert main(["regrade", str(tmp_path)]) == 2
    assert "is no evaluation's folder (no settings.json)" in capfd.readouterr().err


def test_samples_whose_problem_is_gone_are_not_left_with_an_old_verdict(path, capfd):
    problems = (path / folders.PROBLEMS).read_text().splitlines(keepends=True)
    (path / folders.PROBLEMS).write_text("".join(problems[1:]))
    assert main(["regrade", str(path)]) == 2
    assert "problems.jsonl lacks" in capfd.readouterr().err
    resume(path)  # which writes the problems that are missing
    assert (path / folders.PROBLEMS).read_text().count("\n") == len(problems)


def test_reasoning_that_the_prompt_opened_stays_reasoning(path):
    """Also in lines of before the mark was kept: their verdict shows it."""
    boxed = r"perhaps \boxed{6}"
    samples = [row | {"text": boxed, "cuts": {}, "answer": None, "verdict": "no_answer"} for row in rows(path)]
    samples[1] |= {"opened": "[THINK]"}
    samples[2] |= {"verdict": "wrong", "answer": "7"}  # its prompt opened nothing
    (path / folders.SAMPLES).write_text("".join(f"{json.dumps(row)}\n" for row in samples))
    assert main(["regrade", str(path), "--write"]) == 0
    verdicts = [sample.verdict for sample in SampleFile(path / folders.SAMPLES)]
    assert verdicts[0] == "no_answer"
    assert verdicts[1] == "no_answer"
    assert verdicts[2] in ("correct", "wrong")
    assert rows(path)[2]["answer"] == "6"


def test_the_versions_of_another_day(path, monkeypatch):
    monkeypatch.setattr(graders, "RULES", 99)
    assert loop.versions()["rules"] == 99
    (said,) = resume(path)
    assert "rules 99" in said
    assert "0 changed" in said
