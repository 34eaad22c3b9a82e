"""Decoding in slots: the tokens of padded batches, whatever the slots, the order and the moments of looking."""

import math
import re
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from opasd.config import SamplingConfig
from opasd.lab import model_path
from opasd.rollout.transformers import decoding, graphs, pages, slots
from opasd.rollout.transformers.decoding import SlotPlan
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.transformers.trial import NOT_FINITE, make_slot_plan
from tests.models import CUDNN, FAMILIES, VOCABULARY, add_lora, attention_function, make_model
from tests.rollout.transformers.test_engine import GREEDY, NO_STOP, RANDOM, cut, exact_model, make_prompts, reference

PLAIN = ("qwen3", "qwen2", "llama", "granite", "qwen3_moe")
LENGTHS = (4, 11, 1, 7, 19, 7, 1, 26)
STOP = frozenset(range(0, VOCABULARY, 9))


def padded(model, prompts, sampling=RANDOM, stop=STOP, seeds=None):
    return TransformersEngine(model, stop, decoding="padded").generate(prompts, sampling, seeds or range(len(prompts)))


def in_slots(model, prompts, sampling=RANDOM, stop=STOP, max_batch=256, seeds=None):
    engine = TransformersEngine(model, stop, max_batch, decoding="slots")
    return engine.generate(prompts, sampling, seeds or range(len(prompts)))


# ---- the same tokens ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", PLAIN)
@pytest.mark.parametrize("adapted", [False, True])
def test_slots_give_the_tokens_of_padded_batches(family, adapted):
    model, prompts = exact_model(family), make_prompts(LENGTHS)
    model = add_lora(model) if adapted else model
    expected = padded(model, prompts)
    assert len({len(completion.ids) for completion in expected}) > 2
    for max_batch in (1, 3, 256):
        assert in_slots(model, prompts, max_batch=max_batch) == expected


def test_slots_give_the_tokens_of_generate():
    model, prompts = exact_model("qwen3"), make_prompts()
    expected = [reference(model, prompt) for prompt in prompts]
    stop = frozenset({expected[0][3], expected[1][6], expected[2][1]})
    assert [completion.ids for completion in in_slots(model, prompts, GREEDY, stop)] == [
        cut(ids, stop) for ids in expected
    ]


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=9),
    seed=st.integers(0, 10**6),
    limit=st.integers(1, 14),
    max_batch=st.sampled_from([1, 2, 4, 256]),
    check_every=st.sampled_from([1, 2, 5, 64]),
    refill_share=st.sampled_from([1, 2, 8]),
    shrink=st.sampled_from([(1, 1), (4, 2), (10**6, 8)]),
    prefill_tokens=st.sampled_from([1, 20, 10**6]),
    page=st.sampled_from([4, 16, 256]),
    copies=st.integers(1, 3),
    memory=st.sampled_from([1.0, 1.6, 10**6]),
)
def test_when_rows_are_looked_at_filled_and_moved_changes_nothing(
    lengths, seed, limit, max_batch, check_every, refill_share, shrink, prefill_tokens, page, copies, memory
):
    """Nor how large pages are, how many there are, and which rows share them; `memory` is in rows of full length."""
    model, prompts = exact_model("qwen3"), [prompt for prompt in make_prompts(lengths, seed) for _ in range(copies)]
    sampling = RANDOM.model_copy(update={"max_new_tokens": limit})
    expected = padded(model, prompts, sampling)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "CHECK_EVERY", check_every)
        patch.setattr(decoding, "REFILL_SHARE", refill_share)
        patch.setattr(decoding, "SHRINK_STEPS", shrink[0])
        patch.setattr(decoding, "MIN_ROWS", shrink[1])
        patch.setattr(decoding, "PREFILL_TOKENS", prefill_tokens)
        patch.setattr(pages, "PAGE", page)
        scarce(patch, memory)
        assert in_slots(model, prompts, sampling, max_batch=max_batch) == expected


def scarce(patch, memory):
    """Let there be pages for so many rows of full length."""

    def capacity(rows, sampling, _plan, _model):
        each = rows[0].num_pages(sampling.max_new_tokens)
        return len(rows), min(len(rows) * each, int(memory * each))

    patch.setattr(decoding, "_capacity", capacity)


def test_rows_that_must_wait_go_on_where_they_were(monkeypatch):
    """Four rows of equal length, and pages for one and a half: some leave, come back and draw the same tokens."""
    model, prompts, left, read = exact_model("qwen3"), make_prompts((9, 9, 9, 9)), [], []
    sampling = RANDOM.model_copy(update={"max_new_tokens": 40})
    expected = padded(model, prompts, sampling, NO_STOP)
    monkeypatch.setattr(pages, "PAGE", 4)
    scarce(monkeypatch, 1.5)
    leave, read_rows = decoding.Decoder._leave, decoding.Decoder._read
    monkeypatch.setattr(decoding.Decoder, "_leave", lambda self, slot: left.append(slot) or leave(self, slot))
    monkeypatch.setattr(decoding.Decoder, "_read", lambda self, at: read.extend(at) or read_rows(self, at))
    assert in_slots(model, prompts, sampling, NO_STOP) == expected
    assert left
    assert len(read) == 2 + 4 + len(left)  # two in the trial


def test_a_prompt_is_read_once_and_its_pages_are_shared(monkeypatch):
    model, read, most = exact_model("qwen3"), [], [0]
    prompts = [prompt for prompt in make_prompts((30, 25, 8)) for _ in range(6)]
    expected = padded(model, prompts)
    monkeypatch.setattr(pages, "PAGE", 8)
    read_rows, take = decoding.Decoder._read, pages.Pages.take

    def counted(self, count):
        found = take(self, count)
        most[0] = max(most[0], sum(user > 0 for user in self.users) - 1)
        return found

    monkeypatch.setattr(decoding.Decoder, "_read", lambda self, at: read.extend(at) or read_rows(self, at))
    monkeypatch.setattr(pages.Pages, "take", counted)
    assert in_slots(model, prompts) == expected
    assert len(read) == 2 + 3  # two in the trial
    full = [(len(prompt) - 1) // 8 for prompt in prompts[::6]]
    own = max((len(prompt) - 1 + RANDOM.max_new_tokens - 1) // 8 - (len(prompt) - 1) // 8 + 1 for prompt in prompts)
    assert most[0] <= sum(full) + 18 * own < sum(6 * number for number in full) + 18 * own


def test_pages_are_all_given_back(monkeypatch):
    made, init = [], pages.Pages.__init__
    monkeypatch.setattr(pages.Pages, "__init__", lambda self, *a, **k: (made.append(self), init(self, *a, **k))[1])
    monkeypatch.setattr(pages, "PAGE", 4)
    in_slots(exact_model("qwen3"), make_prompts(LENGTHS) + make_prompts(LENGTHS), max_batch=5)
    assert made[-1].users == [1] + [0] * (len(made[-1].users) - 1)
    assert sorted(made[-1].free) == list(range(1, len(made[-1].users)))


def test_one_row_that_has_no_room_is_an_error_about_memory(monkeypatch):
    monkeypatch.setattr(pages, "PAGE", 4)
    scarce(monkeypatch, 0.5)
    with pytest.raises(torch.OutOfMemoryError, match="not enough memory for the keys and values of one"):
        in_slots(exact_model("qwen3"), make_prompts((30, 4)), RANDOM.model_copy(update={"max_new_tokens": 60}), NO_STOP)


@pytest.mark.parametrize(
    ("length", "samples", "states", "pages_free", "rows"),
    [(1024, 1, 5, 5.5, 5), (1025, 1, 5, 5.5, 2), (1025, 4, 5, 5.5, 4), (1025, 4, 1, 0.5, 1), (1025, 4, 99, 99, 12)],
)
def test_as_many_rows_as_memory_has_room_for(length, samples, states, pages_free, rows, monkeypatch):
    """A prompt of 1,025 tokens fills a page, which the samples of a problem share, and starts another."""
    plan = make_slot_plan(model := exact_model("qwen3"))
    assert isinstance(plan, SlotPlan)
    monkeypatch.setattr(pages, "PAGE", 1024)
    page = 1024 * sum(state.nbytes for states in plan.tokens for state in states)
    state, sampling = VOCABULARY * 64 + 12 * 2048, SamplingConfig(top_k=0, max_new_tokens=2048)
    waiting = [decoding.Row(n, (n // samples,) * length, 0) for n in range(12)]
    memory = states * state + pages_free * page
    monkeypatch.setattr(decoding, "_free_memory", lambda *_: memory / decoding.MEMORY_SHARE + 1)
    count, most = decoding._capacity(waiting, sampling, plan, model)
    each = waiting[0].num_pages(2048)
    assert count == rows
    assert each <= most <= rows * each
    assert most * page + rows * state <= memory or most == each


def test_rows_get_fewer_as_they_end(monkeypatch):
    monkeypatch.setattr(decoding, "SHRINK_STEPS", 1)
    monkeypatch.setattr(decoding, "MIN_ROWS", 1)
    monkeypatch.setattr(decoding, "CHECK_EVERY", 1)
    model, prompts, rows = exact_model("qwen3"), make_prompts(LENGTHS), []
    advance = decoding.Decoder.advance
    monkeypatch.setattr(decoding.Decoder, "advance", lambda self, *at: (rows.append(at[0]), advance(self, *at)))
    completions = in_slots(model, prompts, max_batch=256)
    ends = [len(completion.ids) for completion in completions]
    assert len(rows) == max(ends)
    for step, count in enumerate(rows):
        going = sum(end > step for end in ends)
        assert going <= count < max(2 * going, 2)


def test_weights_and_adapters_of_the_moment_are_sampled():
    base, prompts = exact_model("qwen3"), make_prompts()
    engine = TransformersEngine(model := add_lora(base), NO_STOP, decoding="slots")
    adapted = engine.generate(prompts, GREEDY, range(5))
    with model.disable_adapter():
        assert engine.generate(prompts, GREEDY, range(5)) == padded(model, prompts, GREEDY, NO_STOP) != adapted
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.mul_(-3)
    assert engine.generate(prompts, GREEDY, range(5)) == padded(model, prompts, GREEDY, NO_STOP) != adapted


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_the_model_is_left_as_it_was(implementation):
    model = make_model("qwen3", implementation).train()
    in_slots(model, make_prompts())
    assert model.config._attn_implementation == implementation
    assert all(module.training for module in model.modules())
    assert not any("forward" in module.__dict__ for module in model.modules())
    with pytest.raises(IndexError):
        in_slots(model, [[1, 2], [1, 10**6]])
    assert model.config._attn_implementation == implementation


# ---- rows that go wrong ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_batch", [1, 2, 256])
@pytest.mark.parametrize("sampling", [GREEDY, RANDOM])
def test_a_row_without_a_distribution_spoils_no_other(max_batch, sampling):
    """Its keys and values are NaN; the next prompt in its slot must not see them."""
    model, poison = exact_model("qwen3"), 6
    prompts = [[token for token in prompt if token != poison] or [1] for prompt in make_prompts(LENGTHS)]
    prompts[3] = [*prompts[3], poison, 7, 8]
    prompts[6] = [poison]
    with torch.no_grad():
        model.model.embed_tokens.weight[poison] = math.nan
    expected = padded(model, prompts, sampling)
    completions = in_slots(model, prompts, sampling, max_batch=max_batch)
    assert [completions[i].finish_reason for i in (3, 6)] == ["error", "error"]
    assert [len(completions[i].ids) for i in (3, 6)] == [1, 1]
    others = [i for i in range(len(prompts)) if i not in (3, 6)]
    assert [completions[i] for i in others] == [expected[i] for i in others]


def test_broken_weights_are_not_tried_in_slots():
    model = exact_model("qwen3")
    with torch.no_grad():
        model.lm_head.weight.fill_(math.nan)
    assert make_slot_plan(model) == NOT_FINITE


@pytest.mark.parametrize("way", ["slots", "padded"])
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("as on a small device"), RuntimeError(CUDNN)])
def test_fewer_rows_are_tried_when_memory_runs_out(way, error):
    model, prompts, seen = exact_model("qwen3"), make_prompts(LENGTHS), []
    expected = padded(model, prompts)

    def full(_module, _args, kwargs):
        seen.append(len(kwargs["input_ids"]))
        if len(kwargs["input_ids"]) > 3:
            raise type(error)(*error.args)

    handle = model.register_forward_pre_hook(full, with_kwargs=True)
    assert TransformersEngine(model, STOP, decoding=way).generate(prompts, RANDOM, range(8)) == expected
    assert max(seen) > 3
    handle.remove()
    model.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(type(error)(*error.args)), with_kwargs=True)
    with pytest.raises(type(error), match=re.escape(str(error))):
        TransformersEngine(model, STOP, decoding=way).generate(prompts, RANDOM, range(8))


@pytest.mark.parametrize("way", ["slots", "padded"])
def test_other_errors_are_not_tried_again(way):
    model, calls = exact_model("qwen3"), []
    engine = TransformersEngine(model, STOP, decoding=way)
    engine.generate(make_prompts((3,)), RANDOM, [0])

    def broken(*_):
        calls.append(1)
        raise RuntimeError("CUDA error: device-side assert triggered")

    model.register_forward_pre_hook(broken)
    with pytest.raises(RuntimeError, match="device-side assert"):
        engine.generate(make_prompts(LENGTHS), RANDOM, range(8))
    assert len(calls) == 1


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError(CUDNN)])
def test_a_trial_without_memory_is_no_reason_against_slots(error):
    """The verdict on a model lasts; a GPU that is full for a moment says nothing about it."""
    model = exact_model("qwen3")

    def full(_module, _args, kwargs):
        if len(kwargs["input_ids"]) == 2:  # the trial; what it is compared with has one row
            raise type(error)(*error.args)

    handle = model.register_forward_pre_hook(full, with_kwargs=True)
    with pytest.raises(type(error), match=re.escape(str(error))):
        make_slot_plan(model)
    handle.remove()
    assert isinstance(make_slot_plan(model), SlotPlan)


@pytest.mark.parametrize(
    ("error", "for_good"),
    [
        (torch.OutOfMemoryError("full"), False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False),
        (RuntimeError("Triton Error [CUDA]: out of memory"), False),
        (RuntimeError("operation not permitted when stream is capturing"), True),
    ],
)
def test_a_step_that_cannot_be_captured_runs_as_it_is(error, for_good, monkeypatch, caplog):
    """Memory may suffice in the next call, so only another reason ends all attempts; one line reports them."""
    model, prompts, computed = exact_model("qwen3"), make_prompts(LENGTHS), []
    sampling = RANDOM.model_copy(update={"max_new_tokens": 2 * decoding.CAPTURE_STEPS})

    class FullPool:
        bytes = 0

        def __init__(self, device):
            pass

        def capture(self, step):
            assert not any(reference() is not None for reference in computed), "the last attempt still takes memory"
            tensor = torch.zeros(3)
            computed.append(weakref.ref(tensor))
            raise type(error)(*error.args)

    engine, plan = capturing_engine(model, FullPool, monkeypatch)
    expected, attempts = padded(model, prompts, sampling, NO_STOP), []
    for _ in range(3):
        assert engine.generate(prompts, sampling, range(8)) == expected
        assert (plan.graphs.pool is None) is not for_good
        attempts.append(len(computed) - sum(attempts))
    assert plan.graphs.enabled is not for_good
    assert attempts == ([1, 0, 0] if for_good else [2, 2, 2])  # once more after cached memory was released
    warnings = [record.message for record in caplog.records if "without CUDA graphs" in record.message]
    assert warnings == [f"decoding continues without CUDA graphs, which is slow: {error}"]


def capturing_engine(model, pool, monkeypatch) -> tuple[TransformersEngine, SlotPlan]:
    """An engine that tries to capture its steps in `pool`, as on a GPU."""
    engine = TransformersEngine(model, NO_STOP, decoding="slots")
    plan = engine.slot_plan()
    assert isinstance(plan, SlotPlan)
    plan.graphs.enabled = True
    monkeypatch.setattr(graphs, "GraphPool", pool)
    return engine, plan


def test_that_captures_end_for_good_is_logged_after_a_lack_of_memory_too(monkeypatch, caplog):
    errors = [torch.OutOfMemoryError("full"), torch.OutOfMemoryError("full"), RuntimeError("never")]
    engine, _ = capturing_engine(
        exact_model("qwen3"), lambda _device: (_ for _ in ()).throw(errors.pop(0)), monkeypatch
    )
    sampling = RANDOM.model_copy(update={"max_new_tokens": 2 * decoding.CAPTURE_STEPS})
    for _ in range(3):
        engine.generate(make_prompts((3,)), sampling, [0])
    assert not errors
    assert "slow: full" in caplog.text
    assert "slow: never" in caplog.text


# ---- models that slots are not for ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", sorted(set(FAMILIES) - set(PLAIN)))
def test_other_caches_stay_in_padded_batches(family):
    assert not slots.fits(exact_model(family).config)
    with pytest.raises(AssertionError, match="not plain keys and values"):
        in_slots(exact_model(family), make_prompts())


@pytest.mark.parametrize("family", PLAIN)
def test_plain_caches_fit(family):
    assert slots.fits(exact_model(family).config)


def test_attention_that_is_more_than_queries_and_keys_is_noticed():
    """A bias of the model's own would be lost, and with it the right tokens."""

    def leaning(module, query, key, value, mask, **kwargs):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, 0.2 * key, value, mask, **kwargs)

    with attention_function("leaning", leaning):
        plan = make_slot_plan(make_model("qwen3", "leaning"))
    assert isinstance(plan, str)
    assert "off by" in plan


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"s_aux": torch.zeros(4)}, {"sliding_window": 8}])
def test_attention_that_slots_do_not_know_is_refused(options):
    query = torch.randn(2, 4, 1, 8)
    with pytest.raises(NotImplementedError, match="its attention has"):
        slots.slots_attention(torch.nn.Module(), query, query, query, torch.zeros(2, 1, 1, 2).long(), **options)


def test_where_slots_are_not_even_tried():
    model = exact_model("qwen3")
    assert "no GPU" in TransformersEngine(model, STOP).slot_plan()
    assert "wrapped" in TransformersEngine(torch.nn.DataParallel(model), STOP).slot_plan()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast" in TransformersEngine(model, STOP).slot_plan()


def test_on_a_cpu_nothing_changes():
    """Resumed runs there depend on every bit."""
    model, prompts, seen = exact_model("qwen3"), make_prompts(), []
    engine = TransformersEngine(model, STOP)
    assert engine.cache_obstacle() == ""
    model.register_forward_pre_hook(
        lambda _module, _args, kwargs: seen.append(type(kwargs["past_key_values"]).__name__), with_kwargs=True
    )
    engine.generate(prompts, RANDOM, range(5))
    assert set(seen) == {"DynamicCache"}


# ---- on a GPU -------------------------------------------------------------------------------------------------------


def lab_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)


def gpu_model(name: str) -> PreTrainedModel:
    return (lab_model() if name == "lab" else make_model(name)).cuda().eval()


def gpu_reference(model, prompts, limit) -> list[tuple[int, ...]]:
    """transformers' own greedy tokens."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts], device="cuda")
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device="cuda")
    output = model.generate(
        input_ids=ids, attention_mask=mask, do_sample=False, max_new_tokens=limit, eos_token_id=None, pad_token_id=0
    )
    return [tuple(row) for row in output[:, longest:].tolist()]


def change(model, adapted: bool, how: str) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if ("lora_" in name or not adapted) and parameter.ndim == 2:
                new = parameter + 0.3 * parameter.std() * torch.randn_like(parameter)
                if how == "in place":
                    parameter.copy_(new)
                else:
                    parameter.data = new


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen3", "qwen2", "granite", "lab"])
@pytest.mark.parametrize("adapted", [False, True])
def test_graphs_give_the_tokens_of_generate(name, adapted):
    """Float32, mixed lengths, some ending early; then again after an update in place and with replaced weights."""
    model, limit = gpu_model(name), 40
    model = add_lora(model) if adapted else model
    prompts, sampling = make_prompts((3, 17, 9, 1, 26, 200)), SamplingConfig(temperature=0, max_new_tokens=limit)
    plan = make_slot_plan(model.get_base_model() if adapted else model)
    assert not isinstance(plan, str), plan
    assert plan.fuse
    assert plan.graphs.enabled
    engine = TransformersEngine(model, NO_STOP)
    for how in ("", "in place", "replaced"):
        if how:
            change(model, adapted, how)
        expected = gpu_reference(model, prompts, limit)
        engine.stop = frozenset({expected[0][3], expected[1][30]})
        for engine.max_batch in (256, 2) if not how else (256,):
            completions = engine.generate(prompts, sampling, range(len(prompts)))
            assert [completion.ids for completion in completions] == [cut(ids, engine.stop) for ids in expected]


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["qwen3", "lab", "qwen3_moe", "gemma3", "qwen3_next"])
def test_sampled_tokens_on_a_gpu_are_those_of_padded_batches(name):
    """Also where slots or graphs do not fit and something else must be chosen."""
    model, prompts = gpu_model(name), make_prompts((3, 17, 9, 1, 26, 8, 8, 4, 30, 2))
    sampling = RANDOM.model_copy(update={"max_new_tokens": 60})
    stop = frozenset(range(0, VOCABULARY, 31))
    assert TransformersEngine(model, stop, 4).generate(prompts, sampling, range(10)) == padded(
        model, prompts, sampling, stop
    )


@pytest.mark.gpu
def test_graphs_take_no_more_memory_from_call_to_call():
    model, prompts = gpu_model("lab"), make_prompts((200,) * 64)
    engine = TransformersEngine(model, frozenset(range(0, VOCABULARY, 31)))
    sampling = RANDOM.model_copy(update={"max_new_tokens": 300})
    reserved = []
    for seed in range(8):
        engine.generate(prompts, sampling, range(seed, seed + 64))
        reserved.append(torch.cuda.memory_reserved())
    assert reserved[-1] <= reserved[1]


@pytest.mark.gpu
def test_a_capture_gets_what_was_only_cached(caplog):
    model, prompts = gpu_model("qwen3"), make_prompts((20,) * 64)
    engine = TransformersEngine(model, NO_STOP)
    sampling = RANDOM.model_copy(update={"max_new_tokens": 64})
    expected = TransformersEngine(model, NO_STOP).generate(prompts, sampling, range(64))
    torch.cuda.synchronize()
    held = []
    for size in (2**30, 2**26, 2**21):
        with pytest.raises(torch.OutOfMemoryError):
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    held.clear()
    free, _ = torch.cuda.mem_get_info()
    assert free < 64 * 2**20
    assert engine.generate(prompts, sampling, range(64)) == expected
    plan = engine.slot_plan()
    assert isinstance(plan, SlotPlan)
    assert plan.graphs.pool
    assert "without CUDA graphs" not in caplog.text
    assert torch.cuda.mem_get_info()[0] > free + 2**30  # so it was given back
    torch.cuda.empty_cache()


@pytest.mark.gpu
def test_memory_comes_back_and_is_never_overdrawn():
    model, prompts = gpu_model("qwen3").bfloat16(), make_prompts((200,) * 64)
    engine = TransformersEngine(model, NO_STOP, 10**6)
    sampling = RANDOM.model_copy(update={"max_new_tokens": 40})
    engine.generate(prompts, sampling, range(64))
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    expected = engine.generate(prompts, sampling, range(64))
    assert torch.cuda.memory_allocated() <= before + 2**20
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    ballast = torch.empty(free - 2 * 2**30, dtype=torch.uint8, device="cuda")
    long = sampling.model_copy(update={"max_new_tokens": 200_000})
    stop = frozenset(range(0, VOCABULARY, 3))
    assert len(TransformersEngine(model, stop, 10**6).generate(prompts, long, range(64))) == len(expected)
    del ballast
