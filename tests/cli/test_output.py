"""What a command shows of data, folders and servers cannot steer a terminal."""

import json
import shutil

import pytest

from opasd.cli._output import tame
from tests.commands import opasd
from tests.faults.targets import whole_run

STEERS = "a\x1b]0;title\x07\x9b2J\u202eb\x08\x1b[8mhidden\x1b[31m"
SHOWN = r"a\u001b]0;title\u0007\u009b2J\u202eb\u0008\u001b[8mhidden\u001b[31m"


@pytest.fixture
def evaluation(tmp_path):
    """An evaluation whose target has such a name."""
    shutil.copytree(whole_run() / "evaluation", tmp_path / "evaluation")
    for path in (tmp_path / "evaluation").glob("*.json*"):
        path.write_text(path.read_text().replace('"run"', json.dumps(STEERS)))
    return tmp_path / "evaluation"


@pytest.mark.parametrize("form", ["text", "markdown", "csv", "json"])
def test_names_in_a_table(evaluation, tmp_path, form):
    done = opasd(tmp_path, "leaderboard", str(evaluation), "--format", form)
    assert done.returncode == 0, done.stderr
    if form != "json":
        assert SHOWN in done.stdout
    else:
        assert STEERS in {row["target"] for row in json.loads(done.stdout)["rows"]}


@pytest.mark.parametrize("words", [("plan", STEERS), ("report", STEERS), (STEERS,), ("train", "lab", "--name", STEERS)])
def test_words_of_an_error(tmp_path, words):
    done = opasd(tmp_path, *words)
    assert done.returncode == 2
    assert not set("\x1b\x07\x9b\u202e\x08") & set(done.stdout + done.stderr)


def test_problems(tmp_path):
    (tmp_path / "data.jsonl").write_text(json.dumps({"problem": STEERS, "solution": STEERS, "answer": "1"}))
    done = opasd(tmp_path, "prompt", "lab", "--data", "data.jsonl")
    assert done.returncode == 0, done.stderr
    assert not set("\x1b\x07\x9b\u202e\x08") & set(done.stdout)


def test_colours_and_the_line_that_is_redrawn_stay():
    text = "\r\x1b[K\x1b[1;31merror:\x1b[0m\tä → █\n"
    assert tame(text, colours=True) == text
    assert tame("\x1b[8mhidden\x1b[5;7m", colours=True) == r"\u001b[8mhidden\u001b[5;7m"
    assert tame("\x1b[31m") == r"\u001b[31m"
