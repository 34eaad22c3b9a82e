"""A run that is asked to stop gives up its rollouts and saves; the resumed run ends as if it had not stopped."""

import os
import signal
import time

import pytest
import torch
from safetensors.torch import load_file

from opasd import files
from opasd.config import SamplingConfig
from opasd.errors import Stopped
from opasd.evaluation.samples import SampleFile
from opasd.run.manifest import checkpoints
from opasd.trainer import session
from tests.commands import opasd
from tests.faults.targets import whole_run
from tests.nursery import Python
from tests.training import make_trainer, rows

PATIENCE = 60.0
RUN = {"max_steps": 3, "save_steps": 10, "per_device_train_batch_size": 1}


def endless_from(trainer, step, number):
    """Let the sampling of a step send a signal and never end."""
    generate = trainer.engine.generate

    def sampled(*args, **kwargs):
        if trainer.state.global_step == step:
            os.kill(os.getpid(), number)
            time.sleep(PATIENCE)
            raise AssertionError("the signal was not heard")
        return generate(*args, **kwargs)

    trainer.engine.generate = sampled


@pytest.fixture(autouse=True)
def _hears_the_terminal():
    """The suite itself may run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    make_trainer(folder, **RUN).train()
    return folder


@pytest.mark.parametrize(
    ("number", "step"), [(signal.SIGTERM, 2), (signal.SIGINT, 1), (signal.SIGHUP, 0)], ids=lambda value: str(value)
)
def test_a_stop_gives_up_rollouts_and_saves(whole, tmp_path, number, step):
    """After some steps, and before the first."""
    run = tmp_path / str(step)
    trainer = make_trainer(run, **RUN)
    endless_from(trainer, step, number)
    before = signal.getsignal(number)
    with session._stopping_on_signals(trainer):
        trainer.train()
    assert signal.getsignal(number) == before
    assert trainer.stopped
    assert session.ending(trainer) == "stopped"
    assert [path.name for path in checkpoints(run)] == ([f"checkpoint-{step}"] if step else [])
    assert not (run / "final").exists()
    again = make_trainer(run, **RUN)
    again.train(again.has_begun() or None)
    results = [load_file(folder / "final" / "adapter_model.safetensors") for folder in (whole, run)]
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert rows(run) == rows(whole)
    assert rows(run, "samples.jsonl") == rows(whole, "samples.jsonl")


def test_the_models_own_sampling_ends_between_two_tokens(tmp_path):
    trainer = make_trainer(tmp_path, **RUN)
    tokens = []

    def ask(*_):
        tokens.append(1)
        if len(tokens) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    hook = trainer.student.register_forward_pre_hook(ask)
    with session._stopping_on_signals(trainer), pytest.raises(Stopped):
        trainer.engine.generate([(5, 6, 7)], SamplingConfig(max_new_tokens=3000, temperature=1.0), [0])
    hook.remove()
    assert len(tokens) <= 6


@pytest.mark.parametrize(("first", "pause"), [(signal.SIGINT, 0), (signal.SIGTERM, 1.1)])
def test_a_second_request_interrupts_at_once(tmp_path, first, pause, monkeypatch):
    trainer = make_trainer(tmp_path, **RUN)
    clock = time.monotonic
    with session._stopping_on_signals(trainer):
        os.kill(os.getpid(), first)
        assert trainer.stop_requested
        os.kill(os.getpid(), signal.SIGTERM)  # the same request, sent on by a launcher
        os.kill(os.getpid(), signal.SIGHUP)
        monkeypatch.setattr(session.time, "monotonic", lambda: clock() + pause)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), first)
            time.sleep(PATIENCE)


def test_a_run_under_nohup_does_not_hear_the_terminal_close(tmp_path):
    trainer = make_trainer(tmp_path, **RUN)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with session._stopping_on_signals(trainer):
            os.kill(os.getpid(), signal.SIGHUP)
            assert not trainer.stop_requested
    finally:
        signal.signal(signal.SIGHUP, before)


PIPED = """
import sys
from pathlib import Path
from tests.training import make_trainer
from opasd.trainer import session
trainer = make_trainer(Path(sys.argv[1]), max_steps=400, save_steps=1000)
with session._stopping_on_signals(trainer):
    trainer.train()
sys.exit(75 if session.ending(trainer) == "stopped" else 1)
"""


def test_a_reader_that_ends_gets_a_checkpoint(tmp_path):
    """As with `opasd train ... 2>&1 | head`."""
    with Python("-c", PIPED, str(tmp_path)) as process:
        process.stderr.readline()
        process.stderr.close()
        assert process.wait(PATIENCE) == 75
    (checkpoint,) = checkpoints(tmp_path)
    assert f"checkpoint-{rows(tmp_path)[-1]['step']}" == checkpoint.name


ENDINGS = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}


@pytest.mark.parametrize("number", ENDINGS)
def test_an_evaluation_that_is_stopped_continues(tmp_path, monkeypatch, number):
    words = ("evaluate", "lab", "--benchmarks", "lab", "--problems", "4", "--max-batch", "2", "--max-new-tokens", "4")
    append = SampleFile.append

    def appended(self, samples):
        append(self, samples)
        os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(SampleFile, "append", appended)
        done = opasd(tmp_path, *words, "--output", "stopped")
    assert done.returncode == ENDINGS[number]
    assert "the same command continues" in done.stderr
    assert "Traceback" not in done.stderr
    for output in ("stopped", "whole"):
        assert opasd(tmp_path, *words, "--output", output).returncode == 0
    stopped, whole = (sorted(SampleFile(tmp_path / name / "samples.jsonl").keys) for name in ("stopped", "whole"))
    assert stopped == whole


@pytest.mark.parametrize("number", ENDINGS)
def test_a_merge_that_is_stopped_leaves_nothing(tmp_path, monkeypatch, number):
    words = ("merge", str(whole_run()), "merged")
    with monkeypatch.context() as patch:
        patch.setattr(files, "let_read", lambda _: os.kill(os.getpid(), number))
        assert opasd(tmp_path, *words).returncode == ENDINGS[number]
    assert not list(tmp_path.iterdir())
    assert opasd(tmp_path, *words).returncode == 0
