"""Extensions from outside the package, in processes of their own: what they register stays in a process."""

import shutil
import sys
from pathlib import Path

import pytest

from tests import nursery, processes
from tests.training import TOKENIZER, make_model

HERE = Path(__file__).parent
LIGHT = """
import sys
from opasd.cli import main
assert main(["validate", "own.yaml"]) == 0
print(sorted({"transformers", "peft"} & sys.modules.keys()))
"""


@pytest.fixture
def folder(tmp_path):
    """A user's folder: a model, a table with columns of its own, and a plugin."""
    make_model().save_pretrained(tmp_path / "own_model")
    TOKENIZER.save_pretrained(tmp_path / "own_model")
    lines = [f"was ist {a} + {b}?;{a} + {b} = {a + b};{a + b}" for a in range(4) for b in range(4)]
    (tmp_path / "sums.csv").write_text("\n".join(["frage;weg;antwort", *lines]).replace(";", ",") + "\n")
    shutil.copy(processes.ROOT / "examples/own_plugin.py", tmp_path)
    return tmp_path


def run(folder: Path, script: str) -> str:
    script = shutil.copy(HERE / script, folder)
    result = nursery.run(script, cwd=folder, env=processes.environment(OPASD_REPOSITORY=str(processes.ROOT)))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def test_the_whole_way_of_an_engineer_by_the_command(folder):
    assert "whole way done" in run(folder, "whole_way_by_command.py")
    done = processes.run([sys.executable, "-c", LIGHT], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "hellinger" in done.stdout
    assert done.stdout.endswith("[]\n"), "their imports would slow each process of a plugin's grader"


def test_the_whole_way_of_an_engineer_in_python(folder):
    assert "whole way done" in run(folder, "whole_way_in_python.py")


def test_the_examples_the_notebook_and_the_page_run(tmp_path):
    assert "examples and docs done" in run(tmp_path, "examples_and_docs.py")
