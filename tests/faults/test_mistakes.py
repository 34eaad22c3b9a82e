"""Commands that once ended in a traceback or not at all: each gives one message."""

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from opasd import cli
from opasd.errors import ConfigError
from opasd.files import full_disk_errors
from opasd.run.locks import hold, in_use
from opasd.run.manifest import checkpoints, newest_result
from tests.commands import opasd
from tests.processes import environment
from tests.training import make_trainer

TRAIN = ("train", "lab", "--name", "x", "--train.max-steps", "1")
MISTAKES = {
    "a user who is not there": ("validate", "~nouser/x.yaml"),
    "his folder": ("train", "--resume", "~nouser/x"),
    "his output": (*TRAIN, "--output-dir", "~nouser/x"),
    "his model": ("evaluate", "~nouser/x"),
    "his run": ("prompt", "~nouser/x"),
    "a port": (*TRAIN, "--rollout.engine", "vllm_server", "--rollout.servers.urls", "http://localhost:99999999"),
    "a port in an evaluation": ("evaluate", "lab", "--engine", "vllm_server", "--server", "http://localhost:99999999"),
    "a threshold": (*TRAIN, "--objective.token.clip-threshold", "1e300"),
    "a level of logging": (*TRAIN, "--train.extra.log_level", "nope"),
    "flex attention without a GPU": (*TRAIN, "--model.attn-implementation", "flex_attention"),
    "a rank": (*TRAIN, "--model.lora-r", "99999999"),
    "steps": (*TRAIN, "--train.max-steps", "99999999999"),
    "rollouts": (*TRAIN, "--rollout.rollouts-per-problem", "9999999999"),
    "tokens": (*TRAIN, "--rollout.max-new-tokens", "9999999999"),
    "processes": (*TRAIN, "--num-processes", "99999999"),
    "processes of an evaluation": ("evaluate", "lab", "--num-processes", "2147483648"),
    "processes of a probe": ("probe", "lab", "--num-processes", "2147483648"),
    "samples of a probe": ("probe", "lab", "--samples", "2147483648"),
    "steps of the demo": ("demo", "--quick", "--steps", "2147483648"),
    "samples": ("evaluate", "lab", "--samples", "99999999999"),
    "problems": ("evaluate", "lab", "--problems", "99999999999"),
    "a sample of the data": (*TRAIN, "--data.sample", "99999999999"),
    "a weight of 400 digits": (*TRAIN, "--objective.attention-weight", "9" * 400),
    "a scale of 400 digits": (*TRAIN, "--model.lora-alpha", "9" * 400),
    "layers": ("validate", "lab", "--objective.attention.layers", "9999999999"),
    "layers in a plan": ("plan", "lab", "--objective.attention.layers", "9" * 400),
    "problems of a draw": (*TRAIN, "--train.per-device-train-batch-size", "9999999999"),
    "draws of a step": ("validate", "lab", "--train.gradient-accumulation-steps", "9" * 400),
    "no value of a number": ("plan", "lab", "--gpus=--"),
    "no value of a list": ("evaluate", "lab", "--benchmarks=--"),
    "no value of a field": ("validate", "lab", "--model.lora-r=--"),
    "the width of a page": ("prompt", "lab", "--width", "2147483648"),
    "a text without end": ("attend", "lab", "--completion", "/dev/zero"),
    "a page without end": ("attend", "lab", "--output", "/dev/zero"),
    "a path that cannot be": ("recipes", "copy", "lab", "a\0b"),
    "another": ("evaluate", "lab", "--problems", "1", "--samples", "1", "--output", "\ud800"),
    "a superscript": ("lab", "problems", "²"),
    "problems to print": ("lab", "problems", "9" * 5000),
    "workers that read the data": (*TRAIN, "--train.extra.dataloader_num_workers", "100000"),
    "a field that would be ignored": (*TRAIN, "--train.extra.resume_from_checkpoint", "/tmp"),
    "a day that is none": ("evaluate", "lab", "--cutoff", "2026-13-45", "--problems", "1"),
    "another field of 400 digits": (*TRAIN, "--train.extra.logging_steps", "9" * 400),
}


def _bounded(read):
    def reads(path, *args, **kwargs):
        assert str(path) != "/dev/zero", "all memory would be filled"
        return read(path, *args, **kwargs)

    return reads


@pytest.mark.parametrize("words", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_message(tmp_path, words):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_text", _bounded(Path.read_text))
        patch.setattr(Path, "read_bytes", _bounded(Path.read_bytes))
        done = opasd(tmp_path, *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error:") == 1
    assert not list(tmp_path.glob("runs/x/checkpoint-*"))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make_trainer(folder, max_steps=1, save_steps=1).train()
    return folder


@pytest.fixture
def adapter(tmp_path):
    """An adapter of the embedded model, with the settings and weights that a test gives it."""

    def make(fill: float = 0.0, **settings: object):
        from peft import LoraConfig, get_peft_model

        from opasd.config import ModelConfig
        from opasd.model.loading import load_model

        model = get_peft_model(load_model(ModelConfig(name_or_path="lab")), LoraConfig(r=2, target_modules=["q_proj"]))
        model.save_pretrained(str(tmp_path / "adapter"))
        path = tmp_path / "adapter" / "adapter_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "lab"} | settings))
        weights = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
        weights = {name: torch.full_like(value, fill) for name, value in weights.items()}
        save_file(weights, tmp_path / "adapter" / "adapter_model.safetensors")
        return tmp_path / "adapter"

    return make


@pytest.mark.parametrize(("fill", "settings"), [(float("nan"), {}), (0.0, {"r": "x"}), (0.0, {"r": None})])
def test_an_adapter_of_nan_or_of_nonsense_is_refused(adapter, tmp_path, fill, settings):
    words = ("--benchmarks", "lab", "--problems", "1", "--samples", "1", "--max-new-tokens", "4", "--output", "out")
    done = opasd(tmp_path, "evaluate", str(adapter(fill, **settings)), *words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out" / "evaluation.json").exists()


def test_closed_and_full_output(tmp_path):
    script = f"exec {sys.executable} -m opasd recipes"
    for end, code in ((">&-", 0), (">/dev/full", 2), ("| head -n 1", 0)):
        done = subprocess.run(["bash", "-c", f"{script} {end}" if "head" not in end else f"({script}) {end}"],
                              cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)  # fmt: skip
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize("code", [errno.EROFS, errno.EIO, errno.ENOSPC])
def test_a_file_system_that_turns_read_only(tmp_path, code):
    error, then = OSError(code, os.strerror(code), str(tmp_path / "metrics.jsonl")), "run it again"
    with (
        pytest.raises(ConfigError, match=f"could not be written: .*, and {then}") as caught,
        full_disk_errors(tmp_path, then),
    ):
        raise error
    assert "\n" not in str(caught.value)
    message = cli._message(OSError(code, os.strerror(code)))
    assert message
    assert "standard output" in message


def test_a_folder_that_vanishes_in_the_middle_of_a_run(tmp_path):
    trainer = make_trainer(tmp_path / "run", max_steps=3)
    log = trainer.log

    def vanish(logs, *args, **kwargs):
        log(logs, *args, **kwargs)
        shutil.rmtree(tmp_path / "run", ignore_errors=True)

    trainer.log = vanish
    with (
        pytest.raises(ConfigError, match=r"run could not be written: No such file"),
        full_disk_errors(tmp_path / "run"),
    ):
        trainer.train()


def test_the_lock_of_a_process_whose_number_another_has(tmp_path):
    (tmp_path / ".lock").write_text("1")  # a process that lives, and never held this folder
    assert not in_use(tmp_path)
    with hold(tmp_path, "run"):
        assert in_use(tmp_path)


def test_a_clock_that_was_set_back(run, tmp_path):
    """The newest checkpoint is the one of the last step, whatever the files' times say."""
    shutil.copytree(run, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "final")
    shutil.copytree(run / "checkpoint-1", tmp_path / "run" / "checkpoint-10")
    for path in (tmp_path / "run" / "checkpoint-10").rglob("*"):
        os.utime(path, (0, 0))
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-1", "checkpoint-10"]
    assert newest_result(tmp_path / "run") == tmp_path / "run" / "checkpoint-10"
