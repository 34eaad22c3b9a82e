"""vLLM in our process says what transformers says, also after updates, and leaves the process as it was."""

import pytest
import torch

from opasd.config import DriftConfig, SamplingConfig
from opasd.errors import ConfigError, EngineError
from opasd.rollout.drift import DriftCheck
from opasd.rollout.factory import make_engine
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.transformers.sampling import kept_tokens
from tests.vllm.setting import BLOCK, GREEDY, LONGEST, change, config, greedy, prompts, student, tokenizer

NO_STOP: frozenset[int] = frozenset()
SAMPLED = SamplingConfig(temperature=0.9, top_k=12, top_p=0.9, max_new_tokens=30)


@pytest.fixture(scope="module")
def model():
    return student()


@pytest.fixture(scope="module")
def engine(model):
    made = make_engine(config(), model, tokenizer(), longest=LONGEST)
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_stop(engine):
    engine.stop = NO_STOP


def ids(completions):
    return [completion.ids for completion in completions]


def rows(model, asked):
    return [greedy(model, prompt) for prompt in asked]


def test_greedy_tokens_are_those_of_transformers(engine, model):
    asked = prompts(6) + prompts(4, 1, lengths=(1, 20))
    found = engine.generate(asked, GREEDY, range(10))
    assert ids(found) == rows(model, asked)
    assert {completion.finish_reason for completion in found} == {"length"}
    assert len(set(ids(found))) > 5
    with model.disable_adapter():
        assert ids(found) != rows(model, asked)


def test_the_base_alone_and_with_an_adapter_in_turn(engine, model, tmp_path):
    """Mixed in one batch, base rows would get an adapter on a CPU; one after the other each is right."""
    asked = prompts(4)
    model.save_pretrained(str(tmp_path / "adapter"))
    with model.disable_adapter():
        bare = rows(model, asked)
    adapted = rows(model, asked)
    live, engine.student = engine.student, None
    try:
        for path, expected in [(None, bare), (tmp_path / "adapter", adapted), (None, bare)] * 2:
            engine.use_adapter(path)
            assert ids(engine.generate(asked, GREEDY, range(4))) == expected
        with pytest.raises(ConfigError, match="cannot use the adapter in"):
            engine.use_adapter(tmp_path / "nothing")
    finally:
        engine.student = live


def test_every_update_is_served(engine, model):
    """The same prompts, longer than a block of the prefix cache: neither an old adapter nor old keys may answer."""
    asked, seen = prompts(8), set()
    assert min(map(len, asked)) > BLOCK
    before = set(engine.student.folder.iterdir())
    for _ in range(4):
        change(model, 0.02)
        found = ids(engine.generate(asked, GREEDY, range(8)))
        assert found == rows(model, asked)
        seen.add(tuple(found))
    assert len(seen) == 4
    assert len(set(engine.student.folder.iterdir()) - before) == 1


def test_log_probabilities_are_the_models_own(engine, model):
    """Whatever the sampling: at temperature 1, with every token kept, and with an adapter on."""
    check = DriftCheck(model, DriftConfig(), half=False)
    for sampling in (GREEDY, SAMPLED, SamplingConfig(temperature=2.0, min_p=0.1, top_k=0, top_p=1, max_new_tokens=20)):
        drift = check(asked := prompts(6, 3), engine.generate(asked, sampling, range(6), measured=6))
        assert drift is not None
        assert drift.largest < 1e-4


def test_an_engine_that_missed_an_update_is_found(engine, model):
    asked, hand_over = prompts(4), engine.hand_over
    engine.generate(asked, SAMPLED, range(4))
    change(model, 0.01)
    engine.hand_over = lambda: None
    try:
        stale = engine.generate(asked, SAMPLED, range(4), measured=4)
    finally:
        engine.hand_over = hand_over
    check = DriftCheck(model, DriftConfig(), half=False)
    with pytest.raises(EngineError, match="does not serve the student's weights"):
        check(asked, stale)
    assert check(asked, engine.generate(asked, SAMPLED, range(4), measured=4)) is not None


def test_seeds_decide_and_nothing_else(engine):
    asked = prompts(5, 2)
    seeds = [2**62 + 12345, 7, 7, 0, 2**63 - 1]
    asked[2] = asked[1]
    found = ids(engine.generate(asked, SAMPLED, seeds))
    assert found[1] == found[2]
    order = [3, 1, 4, 0, 2]
    shuffled = ids(engine.generate([asked[i] for i in order], SAMPLED, [seeds[i] for i in order]))
    assert shuffled == [found[i] for i in order]
    assert ids(engine.generate(asked[:1], SAMPLED, seeds[:1])) == found[:1]
    assert ids(engine.generate(asked[:1], SAMPLED, [1])) != found[:1]


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=0.7, top_k=6, top_p=0.9, max_new_tokens=1),
        SamplingConfig(temperature=1.5, top_k=0, top_p=0.8, max_new_tokens=1),
        SamplingConfig(temperature=1.3, top_k=0, top_p=1.0, min_p=0.05, max_new_tokens=1),
    ],
)
def test_tokens_are_drawn_as_our_own_sampler_draws_them(engine, model, sampling):
    """Frequencies of the first token against the probabilities, by their chi-square; and nothing that was cut off."""
    [prompt], count = prompts(1, 9, lengths=(30, 30)), 3000
    drawn = [row[0] for row in ids(engine.generate([prompt] * count, sampling, range(count)))]
    with torch.no_grad():
        probability, token = kept_tokens(model(torch.tensor([prompt])).logits[:, -1], sampling)
    kept = {int(t): float(p) for t, p in zip(token[0], probability[0] / probability.sum(), strict=True) if p > 0}
    assert set(drawn) <= set(kept)
    assert len(kept) > 3
    common = [t for t, p in kept.items() if p * count >= 8]
    expected = [kept[t] * count for t in common]
    found = [drawn.count(t) for t in common]
    rest = count - sum(expected)
    square = sum((f - e) ** 2 / e for f, e in zip(found, expected, strict=True))
    square += (count - sum(found) - rest) ** 2 / rest if rest > 8 else 0.0
    freedom = len(common)
    assert square < freedom + 5 * (2 * freedom) ** 0.5


def test_stop_tokens_and_reasons_are_those_of_our_own_engine(engine, model):
    asked = prompts(8, 4)
    free = rows(model, asked)
    stop = frozenset({free[0][5], free[1][20], free[2][1]})
    engine.stop = stop
    found = engine.generate(asked, GREEDY, range(8))
    ours = TransformersEngine(model, stop).generate(asked, GREEDY, range(8))
    assert [(c.ids, c.finish_reason) for c in found] == [(c.ids, c.finish_reason) for c in ours]
    assert {completion.finish_reason for completion in found} == {"stop", "length"}


def test_sequences_end_where_the_model_does(engine, model):
    [prompt] = prompts(1, 5, lengths=(LONGEST - 7, LONGEST - 7))
    [found] = engine.generate([prompt], GREEDY, [0])
    assert found.ids == greedy(model, prompt, 7)
    assert found.finish_reason == "length"
    with pytest.raises(ConfigError, match="leaves no room"):
        engine.generate([[1] * LONGEST], GREEDY, [0])
    assert engine.generate([], GREEDY, []) == []


def test_more_prompts_than_fit_at_a_time(engine, model):
    """Seeded requests whose prompts are taken in parts would fail on a CPU; more than the cache holds must wait."""
    asked = prompts(90, 6)
    found = ids(engine.generate(asked, SAMPLED, range(90)))
    assert len(found) == 90
    assert ids(engine.generate(asked[60:70], SAMPLED, range(60, 70))) == found[60:70]
