"""The drift check: log-probabilities as a loop would compute them, and an engine that missed an update is noticed."""

import copy
import math

import pytest
import torch

from opasd.config import DriftConfig, OPASDConfig
from opasd.errors import EngineError
from opasd.rollout.drift import DriftCheck, is_closer
from opasd.rollout.engine import Completion, RolloutEngine
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.engine import TransformersEngine
from tests.models import add_lora, make_model
from tests.training import METHOD, TOKENIZER, make_trainer

PROMPTS = [[5, 6, 7], [9, 8, 3, 2, 1]]
IDS = [(11, 12, 13, 14), (21, 22)]


@torch.no_grad()
def logprobs(model, prompt, ids):
    """Token by token, each from its own forward."""
    values = []
    for index, token in enumerate(ids):
        logits = model(torch.tensor([[*prompt, *ids[:index]]])).logits[0, -1]
        values.append(float(logits.log_softmax(-1)[token]))
    return tuple(values)


def completions(model, shift=0.0):
    return [
        Completion(ids, "length", tuple(p + shift for p in logprobs(model, prompt, ids)))
        for prompt, ids in zip(PROMPTS, IDS, strict=True)
    ]


def test_the_same_weights_do_not_drift():
    model = add_lora(make_model("qwen3")).train()
    drift = DriftCheck(model, DriftConfig(), half=False)(PROMPTS, completions(model))
    assert drift is not None
    assert drift.tokens == 6
    assert drift.largest < 1e-5
    assert model.training


def test_the_gap_is_the_mean_and_the_largest_difference():
    model = make_model("qwen3")
    shifted = completions(model)
    shifted[1] = Completion(IDS[1], "length", tuple(p + 0.3 for p in logprobs(model, PROMPTS[1], IDS[1])))
    drift = DriftCheck(model, DriftConfig(tolerance=1), half=False)(PROMPTS, shifted)
    assert drift is not None
    assert drift.mean == pytest.approx(0.1, abs=1e-5)
    assert drift.largest == pytest.approx(0.3, abs=1e-5)
    assert drift.metrics() == {"rollout/drift": drift.mean, "rollout/drift_max": drift.largest}


def test_only_what_was_asked_for_is_compared():
    model = make_model("qwen3")
    check = DriftCheck(model, DriftConfig(tokens=1), half=False)
    [first, second] = completions(model)
    wrong_later = Completion(first.ids, "length", (first.logprobs[0], 5.0, 5.0, 5.0))
    drift = check(PROMPTS, [wrong_later, Completion(second.ids, "stop")])
    assert drift is not None
    assert drift.tokens == 1
    assert check(PROMPTS, [Completion(ids, "stop") for ids in IDS]) is None


@pytest.mark.parametrize("shift", [0.01, -0.01, math.nan, math.inf, -math.inf])
def test_too_much_stops(shift):
    model = make_model("qwen3")
    with pytest.raises(EngineError, match="does not serve the student's weights: over 6 sampled tokens"):
        DriftCheck(model, DriftConfig(), half=False)(PROMPTS, completions(model, shift))


@pytest.mark.parametrize("seed", range(40))
def test_old_weights_show_through_noise(seed):
    """Noise of a third of the change: an engine with the old weights is noticed, an engine with the new ones never."""
    generator = torch.Generator().manual_seed(seed)
    old, change, noise = torch.randn(3, 256, generator=generator)
    new = old + 0.03 * change
    assert is_closer(old + 0.01 * noise, to=old, than_to=new)
    assert is_closer(old, to=old, than_to=new)
    for values in (new, new + 0.01 * noise, new + 0.1 * noise**3, new - 0.01 * change):
        assert not is_closer(values, to=old, than_to=new)
    assert not is_closer(old + 0.01 * noise, to=old, than_to=old), "before the first update both are the same"
    biased = old - 0.001 + 1e-4 * change.abs()  # rounding with one sign, larger than the change
    assert not is_closer(biased, to=old, than_to=old + 1e-4 * change.abs())


def test_an_engine_without_the_adapter_is_found_within_the_tolerance():
    model = add_lora(make_model("qwen3"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter *= 1e-2
    check, prompts = DriftCheck(model, DriftConfig(), half=True), [[3, 4], [5]]
    rows = [tuple(range(7, 27)), tuple(range(40, 60))]
    current = [
        Completion(ids, "length", logprobs(model, prompt, ids)) for prompt, ids in zip(prompts, rows, strict=True)
    ]
    drift = check(prompts, current)
    assert drift is not None
    assert drift.mean < 1e-5
    with model.disable_adapter():
        bare = [
            Completion(ids, "stop", logprobs(model, prompt, ids)) for prompt, ids in zip(prompts, rows, strict=True)
        ]
    with pytest.raises(EngineError, match="closer to those of the base without its adapter"):
        check(prompts, bare)


def test_tolerances_and_steps():
    model = make_model("qwen3")
    assert DriftCheck(model, DriftConfig(), half=True).tolerance == 0.05
    assert DriftCheck(make_model("qwen3").bfloat16(), DriftConfig(), half=False).tolerance == 0.05
    assert DriftCheck(model, DriftConfig(), half=False).tolerance == 0.001
    assert DriftCheck(model, DriftConfig(tolerance=0.2), half=False).tolerance == 0.2
    check = DriftCheck(model, DriftConfig(every=3, rollouts=2), half=False)
    assert [check.measured(step) for step in range(7)] == [2, 0, 0, 2, 0, 0, 2]
    assert DriftCheck(model, DriftConfig(every=0), half=False).measured(0) == 0


# ---- in a run -------------------------------------------------------------------------------------------------------


class CopyEngine(RolloutEngine):
    """Serves a copy of the student; a stale one takes no updates after the first so many batches."""

    def __init__(self, model, updates):
        self.model, self.updates = model, updates
        self.engine = None

    def hand_over(self):
        if self.updates > 0:
            self.engine = TransformersEngine(copy.deepcopy(self.model), stop_ids(self.model, TOKENIZER))
        self.updates -= 1

    def generate(self, prompts, sampling, seeds, *, measured=0):
        self.hand_over()
        completions = self.engine.generate(prompts, sampling, seeds)
        return [
            Completion(c.ids, c.finish_reason, logprobs(self.engine.model, prompt, c.ids) if i < measured else None)
            for i, (prompt, c) in enumerate(zip(prompts, completions, strict=True))
        ]


def train(folder, updates, **drift):
    method = {**METHOD, "rollout": {**METHOD["rollout"], "drift": drift}}
    OPASDConfig.model_validate(method)
    trainer = make_trainer(folder, method=method, max_steps=4, learning_rate=3e-2)
    trainer.engine = CopyEngine(trainer.student, updates)
    trainer.train()
    return list(trainer.metrics_file)


def test_a_run_logs_the_gap(tmp_path):
    rows = train(tmp_path, updates=9, every=2, rollouts=3)
    assert ["rollout/drift" in row for row in rows] == [True, False, True, False]
    assert all(row["rollout/drift"] <= row["rollout/drift_max"] < 1e-4 for row in rows[::2])


def test_a_run_on_stale_weights_stops(tmp_path):
    with pytest.raises(EngineError, match="does not serve the student's weights"):
        train(tmp_path, updates=1, every=3, rollouts=4)
    steps = [row for row in (tmp_path / "metrics.jsonl").read_text().splitlines() if "grad_norm" in row]
    assert len(steps) == 3, "noticed at the first check after the engine went stale"


def test_an_unchecked_run_would_not_notice(tmp_path):
    assert len(train(tmp_path, updates=1, every=0)) == 4
