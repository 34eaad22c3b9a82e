"""`opasd lab`: its rows are read by every command, and pretraining is a script of the repository."""

import json
from pathlib import Path

import pytest

from opasd.cli import main
from opasd.cli.lab import run
from opasd.data.made.counts import make_problems
from opasd.data.problems import Problem, load_problems
from opasd.errors import ConfigError
from tests import nursery
from tests.processes import ROOT


def test_problems_load_with_the_default_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["problems", "3"]) == 0
    text = capsys.readouterr().out
    assert list(json.loads(text.splitlines()[0])) == ["problem", "solution", "answer", "id"]
    path = tmp_path / "lab.jsonl"
    path.write_text(text)
    wanted = make_problems("train", 3, 0)
    read_back = [
        Problem(p.question, p.solution, p.answer, q.id) for p, q in zip(load_problems(path), wanted, strict=True)
    ]
    assert read_back == wanted
    assert [json.loads(line)["id"] for line in text.splitlines()] == [problem.id for problem in wanted]


@pytest.mark.parametrize("args", [["problems", "x"], ["problems", "1", "2"], ["problem"]])
def test_impossible_arguments_are_one_message(args: list[str]) -> None:
    with pytest.raises(ConfigError, match="^opasd lab "):
        run(args)


@pytest.mark.parametrize("args", [[], ["--help"], ["problems", "--help"], ["problems", "-h"]])
def test_help(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", *args]) == 0
    assert capsys.readouterr().out.startswith("usage: opasd lab problems")


@pytest.mark.parametrize("args", [[], ["--help"], ["--output", "model", "--steps", "3"]])
def test_pretraining_names_the_script_that_does_it(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "pretrain", *args]) == 2
    assert "`python -m scripts.lab.pretrain --output MODEL`" in capsys.readouterr().err


@pytest.mark.parametrize("script", ["pretrain", "measure"])
def test_the_scripts_run_from_a_checkout(script: str) -> None:
    done = nursery.run("-m", f"scripts.lab.{script}", "--help", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout
