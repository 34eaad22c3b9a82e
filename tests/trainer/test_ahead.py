"""`rollout.ahead: 1`: servers sample the next step's rollouts while this step updates."""

import json
import shutil
import zlib

import pytest
import torch
from transformers import TrainerCallback

from opasd.config import RolloutConfig
from opasd.rollout.adapters import AdapterExport
from opasd.rollout.engine import Completion, as_engine
from opasd.run.records import Records
from opasd.trainer.trainer import OPASDTrainer
from tests.processes import wait_until
from tests.rollout.vllm.fake_server import Process, tokens
from tests.training import METHOD, PROBLEMS, make_trainer, rows

STEPS, EPOCH = 6, 4
"""Steps of a run, and of an epoch: 16 problems, four a step."""


@pytest.fixture(scope="module")
def server():
    with Process() as process:
        process.set(adapter="weights")
        yield process


def train(folder, server, *, resume=False, callback=None, **rollout):
    trainer = make(folder, server, **rollout)
    if callback is not None:
        trainer.add_callback(callback)
    trainer.train(resume_from_checkpoint=resume)
    trainer.close()
    return trainer


def make(folder, server, **rollout) -> OPASDTrainer:
    engine = {"engine": "vllm_server", "servers": {"urls": [server.url]}, "drift": {"every": 0}, "ahead": 1}
    return make_trainer(
        folder, method={"rollout": METHOD["rollout"] | engine | rollout}, max_steps=STEPS, save_steps=2,
        per_device_train_batch_size=4, gradient_accumulation_steps=1,
    )  # fmt: skip


def weights(trainer):
    return {name: weight for name, weight in trainer.model.state_dict().items() if "lora" in name}


class Late:
    """An engine that answers as the server does, with the weights of the step before, except where an epoch begins."""

    def __init__(self):
        self.step, self.before = 0, b""

    def generate(self, prompts, sampling, seeds):
        now = (self.export.write() / "adapter_model.safetensors").read_bytes()
        used = now if self.step % EPOCH == 0 else self.before
        self.step, self.before = self.step + 1, now
        name = str(zlib.crc32(used))
        pairs = zip(prompts, seeds, strict=True)
        return [Completion(tuple(tokens(list(p), s, sampling.max_new_tokens, name)), "length") for p, s in pairs]


def test_rollouts_come_from_the_weights_of_the_step_before(tmp_path, server):
    actual = train(tmp_path / "ahead", server)
    late = Late()
    expected = make_trainer(tmp_path / "late", max_steps=STEPS, per_device_train_batch_size=4,
                            gradient_accumulation_steps=1)  # fmt: skip
    late.export = AdapterExport(expected.model, tmp_path / "exports")
    expected.engine = as_engine(late)
    expected.train()
    for name, weight in weights(expected).items():
        assert torch.equal(weights(actual)[name], weight)
    behind = [row["rollout/steps_behind"] for row in rows(tmp_path / "ahead")]
    assert behind == [float(step % EPOCH != 0) for step in range(STEPS)]


def test_the_update_does_not_wait_for_the_next_rollouts(tmp_path, server):
    """The server answers the second step's requests only after the first step has ended."""
    trainer, before = make(tmp_path, server), server.count("/v1/completions")
    begin = trainer.engine.begin

    def begin_held(*args, **kwargs):
        server.hold()
        begin(*args, **kwargs)

    class Release(TrainerCallback):
        ended = 0

        def on_step_end(self, *args, **kwargs):
            Release.ended += 1
            begun = Release.ended % EPOCH != 0 and Release.ended < STEPS
            wait_until(lambda: server.received(before + 4 * (Release.ended + begun)))
            server.set(held=False)

    trainer.engine.begin = begin_held
    trainer.add_callback(Release())
    trainer.train()
    trainer.close()
    assert Release.ended == STEPS


def test_a_resumed_run_has_the_rollouts_that_waited(tmp_path, server):
    whole = train(tmp_path / "whole", server)
    saved = json.loads((tmp_path / "whole/checkpoint-2/ahead.json").read_text())
    assert saved["step"] == 2
    assert len(saved["rollouts"]) == 4
    assert not (tmp_path / "whole/checkpoint-4/ahead.json").exists()  # an epoch begins
    shutil.copytree(tmp_path / "whole", tmp_path / "again", ignore=shutil.ignore_patterns("checkpoint-[46]", "final"))
    again = train(tmp_path / "again", server, resume=True)
    for name, weight in weights(whole).items():
        assert torch.equal(weights(again)[name], weight)
    assert rows(tmp_path / "again") == rows(tmp_path / "whole")


def test_a_stopped_run_drops_the_rollouts_under_way(tmp_path, server):
    """It does not wait for the server, and draws them again with its newest weights when it is resumed."""

    class Stop(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 0:
                trainer.stop_requested = True

    trainer = make(tmp_path, server)
    begin = trainer.engine.begin

    def begin_held(*args, **kwargs):
        server.hold()
        begin(*args, **kwargs)

    trainer.engine.begin = begin_held
    trainer.add_callback(Stop())
    trainer.train()
    trainer.close()
    server.set(held=False)
    assert trainer.stopped
    assert trainer.state.global_step == 1
    assert not (tmp_path / "checkpoint-1/ahead.json").exists()
    train(tmp_path, server, resume=True)
    assert [row["rollout/steps_behind"] for row in rows(tmp_path)] == [0, 0, 1, 1, 0, 1]


def test_how_stale_rollouts_are_is_measured(tmp_path, server):
    """The server says −0.5 of every token, whatever its weights."""
    trainer = train(tmp_path, server, drift={"every": 100, "tolerance": 1e9, "rollouts": 2})
    measured = rows(tmp_path)
    assert ["rollout/log_ratio" in row for row in measured] == [step % EPOCH != 0 for step in range(STEPS)]
    assert all(row["rollout/stale_kl"] >= 0 for row in measured if "rollout/stale_kl" in row)
    prompts = [[1, 2, 3], [4, 5]]
    completions = [Completion((6, 7), "length", (-0.5, -0.25)), Completion((8,), "length")]
    ids = torch.tensor([[1, 2, 3, 6, 7]])
    trainer.model.eval()
    with torch.no_grad():
        own = trainer.model(input_ids=ids).logits[0, 2:4].log_softmax(-1)
    expected = torch.stack([own[0, 6] + 0.5, own[1, 7] + 0.25])
    torch.testing.assert_close(trainer.drift.log_ratios(prompts, completions), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_an_engine_on_the_same_device_is_refused(engine):
    with pytest.raises(ValueError, match=f"engine: {engine} uses the same devices; use engine: vllm_server"):
        RolloutConfig(engine=engine, ahead=1)


def test_0_is_on_policy(tmp_path, server):
    train(tmp_path, server, ahead=0)
    assert not any("rollout/steps_behind" in row for row in Records(tmp_path / "metrics.jsonl"))
    assert not list(tmp_path.glob("checkpoint-*/ahead.json"))
    assert len(PROBLEMS) == 4 * EPOCH
