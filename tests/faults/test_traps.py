"""Someone else's folder leads nowhere else: links out of it, pipes and devices, and names with a path in them."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.commands import opasd
from tests.faults.damage import flipped
from tests.faults.targets import whole_run

EVALUATE = ("--benchmarks", "lab", "--problems", "1", "--samples", "1", "--max-new-tokens", "2", "--output", "out")


@pytest.fixture
def run(tmp_path):
    """A run with its evaluation, beside a file that is nobody's business."""
    shutil.copytree(whole_run(), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "mine").write_text("mine")
    return tmp_path / "run"


COMMANDS = {
    "resume": ("train", "--resume", "run", "--train.max-steps", "4"),
    "evaluate": ("evaluate", "run", *EVALUATE),
    "merge": ("merge", "run", "out"),
    "attend": ("attend", "run", "--max-new-tokens", "2"),
    "report": ("report", "run", "--output", "out"),
}
LINKS = ("attention", ".checkpoint", ".lock", "metrics.jsonl", ".metrics.jsonl.new", "final/model.safetensors")


def _refused(folder: Path, *words: str) -> str:
    before = sorted(path for path in folder.rglob("*") if path.name != ".lock")
    done = opasd(folder, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path for path in folder.rglob("*") if path.name != ".lock") == before
    if (folder / "elsewhere").exists():
        assert (folder / "elsewhere" / "mine").read_text() == "mine"
    return done.stderr


@pytest.mark.parametrize("name", LINKS)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_link_out_of_a_runs_folder_is_not_followed(run, tmp_path, words, name):
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(tmp_path / "elsewhere" / ("" if "." not in name or name == ".checkpoint" else "mine"))
    assert f"{name} is a link out of" in _refused(tmp_path, *words)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_pipe_in_a_runs_folder_holds_nobody_up(run, tmp_path, words):
    os.mkfifo(run / "final" / "model.safetensors")
    assert "is no file but a pipe" in _refused(tmp_path, *words)


def test_links_inside_a_runs_folder_stay(run, tmp_path):
    (run / "newest").symlink_to("checkpoint-3")
    assert opasd(tmp_path, "prompt", "run").returncode == 0


@pytest.mark.parametrize("words", [("evaluate", "adapter", *EVALUATE), ("merge", "adapter", "out")])
def test_a_pipe_in_an_adapters_folder_holds_nobody_up(run, tmp_path, words):
    shutil.copytree(run / "final", tmp_path / "adapter")
    os.mkfifo(tmp_path / "adapter" / "adapter_model.bin")
    assert "is no file but a pipe" in _refused(tmp_path, *words)


EVALUATION = {
    "regrade": ("regrade", "run/evaluation", "--write"),
    "continue": ("evaluate", "run", *EVALUATE[:-1], "run/evaluation"),
    "export": ("leaderboard", "run/evaluation", "--export", "lm-eval", "--output", "out"),
    "report": ("report", "run/evaluation", "--output", "out"),
}


@pytest.mark.parametrize("name", ["samples.jsonl", "problems.jsonl", "calls.jsonl"])
@pytest.mark.parametrize("words", EVALUATION.values(), ids=EVALUATION)
def test_a_link_out_of_an_evaluations_folder_is_not_followed(run, tmp_path, words, name):
    shutil.move(run / "evaluation" / name, tmp_path / "elsewhere" / name)
    (run / "evaluation" / name).symlink_to(tmp_path / "elsewhere" / name)
    before = (tmp_path / "elsewhere" / name).read_bytes()
    assert "is a link out of" in _refused(tmp_path, *words)
    assert (tmp_path / "elsewhere" / name).read_bytes() == before


def test_the_lock_of_a_new_evaluation_is_no_link(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".lock").symlink_to(tmp_path / "elsewhere" / "mine")
    assert "is a link" in _refused(tmp_path, "evaluate", "run", *EVALUATE)


@pytest.mark.parametrize("form", ["lm-eval", "lighteval"])
def test_an_exports_files_lie_in_its_folder(run, tmp_path, form):
    path = run / "evaluation" / "evaluation.json"
    text = path.read_text().replace('"run"', '".."').replace('"lab"', '"../../../up"')
    values = json.loads(text)
    next(iter(values["targets"].values()))["model"] = "/a/../../../up"
    values["environment"] = {"time": "../../../up"}
    path.write_text(json.dumps(values))
    done = opasd(tmp_path, "leaderboard", "run/evaluation", "--export", form, "--output", "deep/out")
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"run", "elsewhere", "deep"}
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]


def test_a_damaged_evaluation_is_not_exported(run, tmp_path):
    path = run / "evaluation" / "evaluation.json"
    path.write_text(path.read_text().replace('"per_problem"', '"other"'))
    for form in ("lm-eval", "lighteval"):
        assert "damaged" in _refused(tmp_path, "leaderboard", "run/evaluation", "--export", form, "--output", "out")


def test_an_evaluation_names_no_grader_to_import(run, tmp_path):
    (tmp_path / "planted_module.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()\ndef grade(*_): return True\n"
    )
    path = run / "evaluation" / "settings.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"grader": "planted_module:grade"}))
    done = opasd(tmp_path, "regrade", "run/evaluation")
    assert done.returncode == 2, done.stdout
    assert "--plugins planted_module" in done.stderr
    assert not (tmp_path / "executed").exists()
    done = opasd(tmp_path, "regrade", "run/evaluation", "--plugins", "planted_module")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "executed").exists()


def test_regrading_writes_into_no_run_that_a_folder_names(run, tmp_path):
    (tmp_path / "elsewhere" / "config.yaml").touch()
    for name in ("settings.json", "evaluation.json"):
        path = run / "evaluation" / name
        values = json.loads(path.read_text())
        for target in values["targets"].values():
            target["run"] = str(tmp_path / "elsewhere")
        path.write_text(json.dumps(values))
    assert opasd(tmp_path, "regrade", "run/evaluation", "--write").returncode == 0
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"mine", "config.yaml"}


def test_a_damaged_adapter_is_not_merged(run, tmp_path):
    flipped(run / "final" / "adapter_model.safetensors")
    assert "has changed since it was written" in _refused(tmp_path, "merge", "run/final", "out")


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize("words", [("validate", "lab"), ("evaluate", "lab"), ("prompt", "lab"), ("train", "lab")])
def test_a_pipe_or_a_device_is_no_data(tmp_path, words, kind):
    if kind == "pipe":
        os.mkfifo(tmp_path / "data.jsonl")
    else:
        (tmp_path / "data.jsonl").symlink_to("/dev/zero")
    assert "is no file" in _refused(tmp_path, *words, "--data", "data.jsonl")
