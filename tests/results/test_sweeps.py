"""Every sweep of the experiments can be run as it stands: its file, its recipes and its settings are read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from opasd.data.made.lookup import make_puzzles
from opasd.sweep.spec import load_sweep

RESULTS = Path(__file__).parents[2] / "results"
SWEEPS = [path for path in sorted(RESULTS.glob("*/*.yaml")) if "runs" in yaml.safe_load(path.read_text("utf-8"))]


def test_the_sweeps_are_found():
    assert len(SWEEPS) > 20


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_sweep_of_the_experiments_can_be_run(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(path.parent)  # for a plugin beside it
    sweep = load_sweep([str(path)])
    assert len({run.name for run in sweep.runs}) == len(sweep.runs) > 0


def test_wrong_pointers_name_as_many_statements_that_no_step_needs(tmp_path: Path):
    subprocess.run([sys.executable, RESULTS / "lookup/wrong.py", tmp_path / "wrong.jsonl"], check=True)
    rows = [json.loads(line) for line in (tmp_path / "wrong.jsonl").read_text("utf-8").splitlines()]
    assert len(rows) == 1408
    for row, puzzle in zip(rows, make_puzzles("train", len(rows)), strict=True):
        wrong, right = row["pointers"].split(", "), puzzle.pointers.split(", ")
        assert row["question"] == puzzle.question
        assert len(set(wrong)) == len(right)
        assert not set(wrong) & set(right)
        assert all(1 <= int(number) <= len(puzzle.statements) for number in wrong)
