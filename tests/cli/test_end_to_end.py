"""The command line with real training on a tiny model: what a user does from the first run to the merged model."""

import json
import shutil
import signal

import pytest

from opasd.run.records import Records
from tests.commands import opasd
from tests.nursery import Python, run
from tests.processes import wait_until
from tests.training import write_inputs, write_recipe


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    """A folder with a model, problems and a configuration file."""
    folder = tmp_path_factory.mktemp("place")
    write_inputs(folder)
    write_recipe(folder, max_steps=3, gradient_accumulation_steps=4, save_steps=2)
    return folder


def test_the_answer_alone_is_enough_for_a_teacher(workspace):
    lines = (workspace / "sums.jsonl").read_text().splitlines()
    rows = [{name: value for name, value in json.loads(line).items() if name != "solution"} for line in lines]
    (workspace / "answers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    words = ["--data.source", "answers.jsonl", "--data.columns.solution", "null", "--train.max-steps", "1"]
    done = opasd(workspace, "train", "tiny.yaml", "--name", "x", *words, "--prompts.reference", "It is {answer}.\n")
    assert done.returncode == 0, done.stderr
    (row,) = [row for row in Records(workspace / "runs" / "x" / "metrics.jsonl") if "grad_norm" in row]
    assert row["attention/solution_mass"] > 0


def test_train_resume_and_merge(workspace):
    first = opasd(workspace, "train", "tiny.yaml", "--name", "first")
    assert first.returncode == 0, first.stderr
    run = workspace / "runs" / "first"
    assert {
        "config.yaml",
        "environment.json",
        "metrics.jsonl",
        "samples.jsonl",
        "checkpoint-2",
        "checkpoint-3",
        "final",
    } <= {path.name for path in run.iterdir()}
    assert "step 3/3  loss" in first.stderr
    before = (run / "metrics.jsonl").read_text()
    again = opasd(workspace, "train", "tiny.yaml", "--name", "first")
    assert again.returncode == 2
    assert "Traceback" not in again.stderr
    assert (run / "metrics.jsonl").read_text() == before

    longer = opasd(workspace, "train", "--resume", "runs/first", "--train.max-steps", "4")
    assert longer.returncode == 0, longer.stderr
    assert [row["step"] for row in Records(run / "metrics.jsonl")] == [1, 2, 3, 4]
    merged = opasd(workspace, "merge", "runs/first/final", "merged")
    assert merged.returncode == 0, merged.stderr
    assert (workspace / "merged" / "model.safetensors").exists()


def test_sigterm_ends_with_75_and_the_run_resumes(workspace):
    words = ["train", "tiny.yaml", "--name", "stopped", "--train.max-steps", "300", "--train.save-steps", "1000"]
    metrics = workspace / "runs" / "stopped" / "metrics.jsonl"
    with Python("-m", "opasd.cli", *words, cwd=workspace) as process:
        wait_until(lambda: list(Records(metrics)), process)
        busy = opasd(workspace, "train", "--resume", "runs/stopped")
        assert busy.returncode == 2
        assert "in use" in busy.stderr
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 75
    done = [row["step"] for row in Records(metrics)][-1]
    assert (workspace / "runs" / "stopped" / f"checkpoint-{done}").is_dir()


def test_a_run_killed_before_its_first_step_resumes(workspace):
    assert opasd(workspace, "train", "tiny.yaml", "--name", "early").returncode == 0
    run = workspace / "runs" / "early"
    for path in [*run.glob("checkpoint-*"), run / "final"]:
        shutil.rmtree(path)
    (run / "metrics.jsonl").unlink()
    (run / "samples.jsonl").unlink()
    again = opasd(workspace, "train", "--resume", "runs/early")
    assert again.returncode == 0, again.stderr
    assert [row["step"] for row in Records(run / "metrics.jsonl")] == [1, 2, 3]


def test_two_processes(workspace):
    words = ["train", "tiny.yaml", "--name", "two", "--num-processes", "2", "--train.gradient-accumulation-steps", "2"]
    done = run("-m", "opasd.cli", *words, cwd=workspace)
    assert done.returncode == 0, done.stderr[-3000:]
    single = opasd(workspace, "train", "tiny.yaml", "--name", "one")
    assert single.returncode == 0
    single_rows, shared_rows = (list(Records(workspace / "runs" / name / "metrics.jsonl")) for name in ("one", "two"))
    assert [row["step"] for row in shared_rows] == [1, 2, 3]
    assert [row["loss"] for row in single_rows] == pytest.approx([row["loss"] for row in shared_rows], rel=1e-3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model.name-or-path", "nowhere"], "nowhere"),
        (["--data.source", "nothing.jsonl"], "nothing.jsonl"),
        (["--data.columns.question", "text"], "text"),
        (["--model.lora-target-modules", "qproj"], "qproj"),
        (["--train.learning-rat", "1"], "did you mean train.learning_rate?"),
        (["--objective.token-weight", "0", "--objective.attention-weight", "0"], "nothing to learn"),
    ],
)
def test_mistakes_end_with_2_and_no_traceback(workspace, words, message):
    run = opasd(workspace, "train", "tiny.yaml", "--name", "mistake", *words)
    assert run.returncode == 2, run.stderr
    assert message in run.stderr
    assert "Traceback" not in run.stderr
    assert not (workspace / "runs" / "mistake").exists()  # the corrected command may use the name
