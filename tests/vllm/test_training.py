"""Whole runs whose rollouts come from vLLM, and what they leave behind, in vLLM again."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, TrainingArguments

from opasd.config import ModelConfig, OPASDConfig
from opasd.data.made.counts import make_problems
from opasd.errors import EngineError
from opasd.rollout import adapters
from opasd.rollout.factory import serve_base
from opasd.trainer.trainer import OPASDTrainer
from tests.vllm.setting import (
    FLOAT32,
    GREEDY,
    LONGEST,
    SMALL,
    Server,
    base,
    config,
    greedy,
    prompts,
    student,
    tokenizer,
)

NO_STOP: frozenset[int] = frozenset()
FLAGS = [
    "--train.max-steps", "3", "--train.per-device-train-batch-size", "8", "--train.gradient-accumulation-steps", "2",
    "--train.save-steps", "2", "--validation.every", "2", "--validation-data.lab.sample", "16",
    "--rollout.drift.every", "1",
]  # fmt: skip
IN_PROCESS = [
    "--rollout.engine", "vllm", "--rollout.vllm.cache-bytes", str(SMALL["cache_bytes"]),
    "--rollout.vllm.memory-share", str(SMALL["memory_share"]),
]  # fmt: skip


def opasd(*words, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "opasd", *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def steps(folder):
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "grad_norm" in row]


def left_behind():
    """Adapters whose process has ended; other runs on this machine may have theirs."""
    found = adapters.MEMORY.glob(f"{adapters.PREFIX}*")
    return {path for path in found if not Path("/proc", path.name.removeprefix(adapters.PREFIX).split("-")[0]).exists()}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    before, folder = left_behind(), tmp_path_factory.mktemp("run")
    done = opasd("train", "lab", *FLAGS, *IN_PROCESS, "--output-dir", folder, "--name", "a", cwd=folder)
    assert done.stdout == "", "vLLM's log is no output of ours"
    assert left_behind() <= before
    return folder / "a"


def test_a_run_from_beginning_to_end(run):
    rows = steps(run)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(0 <= row["rollout/drift"] <= row["rollout/drift_max"] < 1e-4 for row in rows)
    assert all(torch.isfinite(torch.tensor(row["loss"])) for row in rows)


def test_the_same_run_repeats(run, tmp_path):
    opasd("train", "lab", *FLAGS, *IN_PROCESS, "--output-dir", tmp_path, "--name", "b", cwd=tmp_path)
    for name in ("loss", "rollout/length_mean", "tokens/generated"):
        assert [row[name] for row in steps(tmp_path / "b")] == [row[name] for row in steps(run)]


def test_the_result_loads_in_vllm_as_adapter_and_merged(run, tmp_path):
    adapted = PeftModel.from_pretrained(base(), str(run / "final")).eval()
    opasd("merge", run / "final", tmp_path / "merged", cwd=tmp_path)
    asked = prompts(6, 8)
    served = serve_base(config(), FLOAT32, tokenizer(), longest=LONGEST, adapters=[run / "final"])
    served.stop = NO_STOP
    served.use_adapter(run / "final")
    found = [completion.ids for completion in served.generate(asked, GREEDY, range(6))]
    served.close()
    assert found == [greedy(adapted, prompt) for prompt in asked]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32).eval()
    whole = ModelConfig(name_or_path=str(tmp_path / "merged"), dtype="float32")
    served = serve_base(config(), whole, tokenizer(), longest=LONGEST)
    served.stop = NO_STOP
    found = [completion.ids for completion in served.generate(asked, GREEDY, range(6))]
    served.close()
    assert found == [greedy(merged, prompt) for prompt in asked]


def test_all_weights_train(tmp_path):
    opasd(
        "train", "lab", *FLAGS, *IN_PROCESS, "--model.adaptation", "full", "--train.learning-rate", "1e-3",
        "--output-dir", tmp_path, "--name", "full", cwd=tmp_path,
    )  # fmt: skip
    assert all(row["rollout/drift_max"] < 1e-4 for row in steps(tmp_path / "full"))


def test_processes_that_train_together_each_have_an_engine(run, tmp_path):
    before = left_behind()
    flags = [*FLAGS, *IN_PROCESS, "--train.gradient-accumulation-steps", "1", "--num-processes", "2"]
    opasd("train", "lab", *flags, "--output-dir", tmp_path, "--name", "two", cwd=tmp_path)
    for one, two in zip(steps(run), steps(tmp_path / "two"), strict=True):
        assert two["tokens/generated"] == one["tokens/generated"]
        assert two["loss"] == pytest.approx(one["loss"], rel=1e-4)
        assert two["rollout/drift_max"] < 1e-4
    assert left_behind() <= before


def test_a_server_serves_one_process_and_two(run, tmp_path):
    before, server = left_behind(), Server()
    try:
        server.wait()
        flags = [*FLAGS, "--rollout.engine", "vllm_server", "--rollout.servers.urls", server.url]
        opasd("train", "lab", *flags, "--output-dir", tmp_path, "--name", "one", cwd=tmp_path)
        flags += ["--train.gradient-accumulation-steps", "1", "--num-processes", "2"]
        opasd("train", "lab", *flags, "--output-dir", tmp_path, "--name", "two", cwd=tmp_path)
        assert server.served() >= 2 * 48
    finally:
        server.stop()
    for name in ("one", "two"):
        for ours, theirs in zip(steps(run), steps(tmp_path / name), strict=True):
            assert theirs["tokens/generated"] == ours["tokens/generated"]
            assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-4)
            assert theirs["rollout/drift_max"] < 1e-4
    assert left_behind() <= before


def test_a_run_on_stale_weights_stops(tmp_path):
    """An engine that serves the first step's adapter for ever."""
    model = student()
    trainer = OPASDTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(tmp_path), max_steps=6, learning_rate=1e-2, per_device_train_batch_size=8, use_cpu=True,
            lr_scheduler_type="constant", report_to=[], save_steps=100,
        ),
        config=OPASDConfig.model_validate(
            {
                "rollout": {"engine": "vllm", "vllm": SMALL, "max_new_tokens": 32, "drift": {"every": 2}},
                "prompts": {"max_student_tokens": 512},
                "objective": {"token": {"clip": "none"}},
            }
        ),
        train_dataset=make_problems("train", 32, 0),
        processing_class=tokenizer(),
    )  # fmt: skip
    hand_over = trainer.engine.hand_over
    trainer.engine.hand_over = lambda: hand_over() if trainer.state.global_step == 0 else None
    with pytest.raises(EngineError, match="does not serve the student's weights"):
        trainer.train()
    trainer.close()
    assert len(steps(Path(tmp_path))) == 2
