"""`opasd lab problems`: rows that every command reads as they are."""

import json
from pathlib import Path

import pytest

from opasd.cli.lab import run
from opasd.data.made.counts import make_problems
from opasd.data.problems import Problem, load_problems
from opasd.errors import ConfigError


def test_problems_load_with_the_default_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["problems", "3"]) == 0
    text = capsys.readouterr().out
    assert list(json.loads(text.splitlines()[0])) == ["problem", "solution", "answer", "id"]
    path = tmp_path / "lab.jsonl"
    path.write_text(text)
    wanted = make_problems("train", 3, 0)
    found = [Problem(p.question, p.solution, p.answer, q.id) for p, q in zip(load_problems(path), wanted, strict=True)]
    assert found == wanted
    assert [json.loads(line)["id"] for line in text.splitlines()] == [problem.id for problem in wanted]


@pytest.mark.parametrize("args", [["problems", "x"], ["problems", "1", "2"], ["problem"]])
def test_what_it_cannot_do_is_told(args: list[str]) -> None:
    with pytest.raises(ConfigError, match="^opasd lab "):
        run(args)


@pytest.mark.parametrize("args", [[], ["--help"], ["problems", "--help"], ["problems", "-h"]])
def test_help(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(args) == 0
    assert capsys.readouterr().out.startswith("usage: opasd lab pretrain")
