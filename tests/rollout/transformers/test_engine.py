"""The engine: what `generate` would have said, for each row alone, whatever it is batched with."""

import itertools
import math

import pytest
import torch
from torch import nn
from transformers import PreTrainedModel

from opasd.config import SamplingConfig
from opasd.rollout.transformers import padded
from opasd.rollout.transformers.engine import TransformersEngine
from tests.models import FAMILIES, HYBRID, VOCABULARY, add_lora, fast, make_model

LENGTHS = (3, 17, 9, 1, 26)
GREEDY = SamplingConfig(temperature=0, max_new_tokens=12)
RANDOM = SamplingConfig(temperature=1.3, top_k=50, top_p=0.98, max_new_tokens=12)
NO_STOP: frozenset[int] = frozenset()


def make_prompts(lengths=LENGTHS, seed=5) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def exact_model(family: str) -> PreTrainedModel:
    """In float64 no rounding decides between tokens; Gemma 2's own eager attention is NaN there for padded rows."""
    return make_model(family, fast(family), torch.float32 if family == "gemma2" else torch.float64)


def reference(model, prompt, limit=12) -> tuple[int, ...]:
    """transformers' own greedy tokens for one prompt."""
    ids = torch.tensor([prompt])
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=limit, eos_token_id=None
    )
    return tuple(output[0, len(prompt) :].tolist())


def cut(ids, stop) -> tuple[int, ...]:
    """The ids up to the first stop token, included."""
    ends = [index + 1 for index, token in enumerate(ids) if token in stop]
    return tuple(ids[: ends[0]] if ends else ids)


def alone(model, prompts, sampling, stop=NO_STOP):
    engine = TransformersEngine(model, stop)
    return [engine.generate([prompt], sampling, [seed])[0] for seed, prompt in enumerate(prompts)]


def tried(model, stop):
    """An engine that has made its trial of the model's cache."""
    engine = TransformersEngine(model, stop)
    assert engine.cache_obstacle() == ""
    return engine


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_are_those_of_generate(family, monkeypatch):
    """All at once, rows leaving as they finish: every layer's cache must follow."""
    model, prompts = exact_model(family), make_prompts()
    expected = [reference(model, prompt) for prompt in prompts]
    stop = frozenset({expected[0][3], expected[1][6], expected[2][1]})
    for compact_below in (0.0, 1.1):
        monkeypatch.setattr(padded, "COMPACT_BELOW", compact_below)
        completions = TransformersEngine(model, stop).generate(prompts, GREEDY, range(5))
        assert [completion.ids for completion in completions] == [cut(ids, stop) for ids in expected]
    assert len(set(expected)) > 1


@pytest.mark.parametrize("family", ["qwen3", "mistral", *HYBRID])
@pytest.mark.parametrize("compact_below", [0.0, 0.75, 1.1])
def test_a_row_does_not_depend_on_its_batch(family, compact_below, monkeypatch):
    monkeypatch.setattr(padded, "COMPACT_BELOW", compact_below)
    model, prompts, stop = exact_model(family), make_prompts((4, 11, 1, 7, 19, 7)), frozenset(range(0, 128, 9))
    expected = alone(model, prompts, RANDOM, stop)
    assert len({len(completion.ids) for completion in expected}) > 2
    for max_batch in (1, 2, 256):
        assert TransformersEngine(model, stop, max_batch).generate(prompts, RANDOM, range(6)) == expected
    order = [3, 0, 5, 1, 4, 2]
    shuffled = TransformersEngine(model, stop).generate([prompts[i] for i in order], RANDOM, order)
    assert shuffled == [expected[i] for i in order]


def test_random_batches_change_nothing():
    model, generator = exact_model("qwen3"), torch.Generator().manual_seed(0)
    for trial in range(5):
        lengths = torch.randint(1, 30, (7,), generator=generator).tolist()
        prompts, stop = make_prompts(lengths, seed=trial), frozenset(range(trial, 128, 11))
        assert TransformersEngine(model, stop).generate(prompts, RANDOM, range(7)) == alone(
            model, prompts, RANDOM, stop
        )


def test_a_seed_decides_and_nothing_else_does():
    model, prompt = exact_model("qwen3"), make_prompts((6,))[0]
    engine = TransformersEngine(model, NO_STOP)
    torch.manual_seed(1)
    first = engine.generate([prompt] * 3, RANDOM, [7, 8, 7])
    torch.manual_seed(2)
    assert engine.generate([prompt] * 3, RANDOM, [7, 8, 7]) == first
    assert first[0] == first[2] != first[1]


def test_generation_leaves_the_global_generator_alone():
    engine = TransformersEngine(exact_model("qwen3"), NO_STOP)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    engine.generate(make_prompts((2, 5)), RANDOM, [0, 1])
    assert torch.equal(torch.rand(4), expected)


def test_a_longer_limit_continues_the_same_completion():
    model, prompts = exact_model("qwen3"), make_prompts()
    engine = TransformersEngine(model, NO_STOP)
    short = engine.generate(prompts, RANDOM.model_copy(update={"max_new_tokens": 5}), range(5))
    long = engine.generate(prompts, RANDOM.model_copy(update={"max_new_tokens": 21}), range(5))
    assert [completion.ids for completion in short] == [completion.ids[:5] for completion in long]


def test_every_declared_end_stops_and_is_kept():
    model, prompts = exact_model("qwen3"), make_prompts()
    free = [completion.ids for completion in alone(model, prompts, RANDOM)]
    stop = frozenset({free[0][0], free[1][4], free[3][11]})
    completions = TransformersEngine(model, stop).generate(prompts, RANDOM, range(5))
    assert [completion.ids for completion in completions] == [cut(ids, stop) for ids in free]
    for completion in completions:
        assert completion.finish_reason == ("stop" if completion.ids[-1] in stop else "length")
        assert completion.finish_reason == "stop" or len(completion.ids) == RANDOM.max_new_tokens
    assert {completion.finish_reason for completion in completions} == {"stop", "length"}
    assert completions[3].finish_reason == "stop"  # in its very last token


@pytest.mark.parametrize("limit", [1, 2, 7])
def test_the_limit_is_exact(limit):
    sampling = RANDOM.model_copy(update={"max_new_tokens": limit})
    for completion in TransformersEngine(exact_model("qwen3"), NO_STOP).generate(make_prompts(), sampling, range(5)):
        assert len(completion.ids) == limit
        assert completion.finish_reason == "length"


def test_nothing_is_computed_after_the_last_end(monkeypatch):
    model, prompts, calls = exact_model("qwen3"), make_prompts(), []
    engine = tried(model, frozenset(range(VOCABULARY)))
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: calls.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    engine.generate(prompts, GREEDY, range(5))
    assert calls == [(5, 26)]
    calls.clear()
    free = [completion.ids for completion in alone(model, prompts, GREEDY)]
    engine = tried(model, frozenset(ids[2] for ids in free[:4]))
    calls.clear()
    completions = engine.generate(prompts, GREEDY, range(5))
    ends = [len(completion.ids) for completion in completions]
    assert len(calls) == max(ends)
    # A decoding step carries at most the rows that were still going, over the share that triggers a compaction.
    for step, (rows, _) in enumerate(calls[1:], 1):
        going = sum(end > step for end in ends)
        assert going <= rows <= max(going / padded.COMPACT_BELOW, going)


def test_no_prompts():
    assert TransformersEngine(exact_model("qwen3"), NO_STOP).generate([], RANDOM, []) == []


@pytest.mark.parametrize(("prompts", "seeds"), [([[1], []], [0, 1]), ([[1]], [0, 1]), ([[1], [2]], [0])])
def test_misuse_is_refused(prompts, seeds):
    """An empty prompt would read its first token off padding; a seed too many would be another row's."""
    with pytest.raises(AssertionError):
        TransformersEngine(exact_model("qwen3"), NO_STOP).generate(prompts, RANDOM, seeds)


# ---- the model is left as it was ------------------------------------------------------------------------------------


@pytest.mark.parametrize("training", [True, False])
def test_the_training_mode_is_restored(training):
    model, seen = exact_model("qwen3").train(training), []
    model.register_forward_pre_hook(lambda module, _args: seen.append(module.training))
    TransformersEngine(model, NO_STOP).generate([[1, 2]], RANDOM, [0])
    assert set(seen) == {False}
    assert {module.training for module in model.modules()} == {training}


def test_the_training_mode_is_restored_after_an_error():
    model = exact_model("qwen3").train()
    with pytest.raises(IndexError):
        TransformersEngine(model, NO_STOP).generate([[1, 10**6]], RANDOM, [0])
    assert all(module.training for module in model.modules())
    assert torch.is_grad_enabled()


def test_no_graph_is_kept():
    model, logits = exact_model("qwen3").train(), []
    engine = tried(model, NO_STOP)
    model.register_forward_hook(lambda _module, _args, output: logits.append(output.logits))
    engine.generate(make_prompts(), RANDOM, range(5))
    assert not any(tensor.requires_grad for tensor in logits)
    assert all(tensor.shape[1] == 1 for tensor in logits)  # the prompt's logits are never made
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("family", ["qwen3", "qwen3_next"])
def test_gradient_checkpointing_changes_nothing(family):
    model, prompts = exact_model(family), make_prompts((5, 2))
    expected = TransformersEngine(model, NO_STOP).generate(prompts, RANDOM, [0, 1])
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    assert TransformersEngine(model, NO_STOP).generate(prompts, RANDOM, [0, 1]) == expected
    assert model.is_gradient_checkpointing
    assert model.training


def test_adapters_are_sampled_with_as_they_are():
    base, prompts = exact_model("qwen3"), make_prompts()
    before = TransformersEngine(base, NO_STOP).generate(prompts, GREEDY, range(5))
    adapted = add_lora(base)
    weights = {name: value.clone() for name, value in adapted.state_dict().items()}
    engine = TransformersEngine(adapted, NO_STOP)
    active = engine.generate(prompts, GREEDY, range(5))
    with adapted.disable_adapter():
        assert engine.generate(prompts, GREEDY, range(5)) == before
    assert active != before
    assert engine.generate(prompts, GREEDY, range(5)) == active
    assert all(torch.equal(value, weights[name]) for name, value in adapted.state_dict().items())


def test_the_weights_of_the_moment_are_sampled():
    model, prompts = exact_model("qwen3"), make_prompts()
    engine = TransformersEngine(model, NO_STOP)
    before = engine.generate(prompts, GREEDY, range(5))
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.roll(1, 0))
    assert engine.generate(prompts, GREEDY, range(5)) != before


# ---- logits from which nothing can be drawn -------------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
def test_a_row_without_a_distribution_ends_as_an_error(value, sampling):
    """It keeps a token at the bad position, so that the loss looks at it; its neighbours continue."""
    model, prompts = exact_model("qwen3"), make_prompts()
    expected, engine = alone(model, prompts, sampling), tried(model, NO_STOP)
    steps = itertools.count()

    def spoil(_module: nn.Module, _args: object, output) -> None:
        if next(steps) == 4:
            output.logits[1] = value  # rows are sorted by length: the second longest prompt

    model.register_forward_hook(spoil)
    completions = engine.generate(prompts, sampling, range(5))
    assert completions[1].finish_reason == "error"
    assert completions[1].ids[:4] == expected[1].ids[:4]
    assert len(completions[1].ids) == 5
    assert 0 <= completions[1].ids[4] < VOCABULARY
    assert [completions[i] for i in (0, 2, 3, 4)] == [expected[i] for i in (0, 2, 3, 4)]


def test_broken_weights_end_at_once():
    model = exact_model("qwen3")
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
    completions = TransformersEngine(model, NO_STOP).generate(make_prompts(), RANDOM, range(5))
    assert {(len(completion.ids), completion.finish_reason) for completion in completions} == {(1, "error")}
