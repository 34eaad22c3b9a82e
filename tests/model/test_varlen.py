import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from opasd.errors import ConfigError
from opasd.model import varlen
from opasd.model.scoring import Scorer, pack, pad
from tests.models import make_model


class Layer(torch.nn.Module):
    is_causal = True


def packed(query, key, value, lengths, **kwargs):
    ends = torch.tensor([0, *lengths]).cumsum(0).int().to(query.device)
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    output, _ = varlen.packed_attention(
        Layer(), query, key, value, mask, cu_seq_lens_q=ends, max_length_q=max(lengths), **kwargs
    )
    return output


def dense(query, key, value, lengths, window, scaling):
    """The same with one mask over the whole row."""
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.cat([torch.arange(length) for length in lengths])
    distance = position[:, None] - position
    mask = (owner[:, None] == owner) & (distance >= 0) & (distance < (window or 10**6))
    repeats = query.shape[1] // key.shape[1]
    output = scaled_dot_product_attention(
        query, key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1),
        attn_mask=mask.to(query.device), scale=scaling,
    )  # fmt: skip
    return output.transpose(1, 2)


def numbers(lengths, heads, groups, size, seed, dtype=torch.float64, device="cpu"):
    make = torch.Generator().manual_seed(seed)
    shapes = [(1, heads * groups, sum(lengths), size), *[(1, heads, sum(lengths), size)] * 2]
    return [torch.randn(s, generator=make, dtype=torch.float64).to(device, dtype).requires_grad_() for s in shapes]


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5), heads=st.integers(1, 2), groups=st.integers(1, 3),
    window=st.none() | st.integers(1, 6), seed=st.integers(0, 99),
)  # fmt: skip
def test_packed_sequences_see_themselves_alone(lengths, heads, groups, window, seed):
    inputs = numbers(lengths, heads, groups, 8, seed)
    actual = packed(*inputs, lengths, scaling=0.4, sliding_window=window)
    expected = dense(*inputs, lengths, window, 0.4)
    torch.testing.assert_close(actual, expected, atol=1e-10, rtol=1e-10)
    upstream = torch.randn_like(actual)
    for gradient, wanted in zip(
        torch.autograd.grad(actual, inputs, upstream), torch.autograd.grad(expected, inputs, upstream), strict=True
    ):
        torch.testing.assert_close(gradient, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("groups", [1, 4])
def test_pytorchs_own_kernel_gives_the_same(window, size, groups):
    lengths = [130, 7, 300, 64]
    inputs = numbers(lengths, 2, groups, size, 3, torch.bfloat16, "cuda")
    actual = packed(*inputs, lengths, scaling=0.1, sliding_window=window)
    wide = [tensor.detach().double().requires_grad_() for tensor in inputs]
    expected = dense(*wide, lengths, window, 0.1)
    assert (actual - expected).norm() < 0.01 * expected.norm()
    upstream = torch.randn_like(expected)
    for gradient, wanted in zip(
        torch.autograd.grad(actual, inputs, upstream.bfloat16()),
        torch.autograd.grad(expected, wide, upstream),
        strict=True,
    ):
        assert (gradient - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_a_packed_row_are_those_of_its_sequences(checkpointing):
    model = make_model("qwen3", "sdpa")
    sequences = [range(1, 9), range(4, 6), range(3, 17)]
    results = []
    for together in (True, False):
        model.zero_grad()
        if together:
            varlen.use(model)
            if checkpointing:
                model.train()
                model.gradient_checkpointing_enable({"use_reentrant": False})
            inputs, spans = pack(model, sequences)
            assert inputs["attention_mask"].numel() == 1
            logits = model(**inputs, use_cache=False).logits
            losses = [logits[row, begin:end].logsumexp(-1).sum() for row, begin, end in spans]
        else:
            model.gradient_checkpointing_disable()
            losses = [
                model(pad(model, [s])[0]["input_ids"], use_cache=False).logits.logsumexp(-1).sum() for s in sequences
            ]
        torch.stack(losses).sum().backward()
        results.append((torch.stack(losses).detach(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    for gradient, wanted in zip(*results, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=2e-5, rtol=1e-4)


def test_a_model_keeps_answering_as_before_when_it_can_also_pack():
    model = make_model("qwen3", "sdpa")
    ids = torch.arange(1, 13).view(2, 6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    before, padded = model(ids).logits, model(ids, attention_mask=mask).logits
    varlen.use(model)
    assert varlen.is_used(model)
    assert torch.equal(model(ids).logits, before)
    assert torch.equal(model(ids, attention_mask=mask).logits, padded)
    assert "opasd" not in str(model.config.to_dict())


def test_a_part_with_another_attention_keeps_it():
    """A vision tower, say."""
    model = make_model("qwen3", "sdpa")
    model.other = make_model("llama", "eager")
    stop = varlen.use(model)
    assert varlen.is_used(model)
    assert model.other.config._attn_implementation == "eager"
    stop()
    assert model.config._attn_implementation == "sdpa"
    assert model.other.config._attn_implementation == "eager"


def test_a_mask_that_a_model_has_changed_is_not_ignored():
    query, key, value = numbers([4, 3], 1, 1, 8, 0)
    with pytest.raises(ConfigError, match="cannot be packed"):
        varlen.packed_attention(
            Layer(), query, key, value, torch.zeros(1, 1, 7, 7),
            cu_seq_lens_q=torch.tensor([0, 4, 7], dtype=torch.int32), max_length_q=4,
        )  # fmt: skip


def test_a_model_that_drops_the_bounds_is_refused_and_not_computed_wrongly():
    query, key, value = numbers([4, 3], 1, 1, 8, 0)
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.bool)
    with pytest.raises(ConfigError, match="does not hand a packed row's bounds"):
        varlen.packed_attention(Layer(), query, key, value, mask)


@pytest.mark.parametrize("options", [{"softcap": 30.0}, {"s_aux": torch.zeros(1)}])
def test_attention_with_more_to_it_is_refused(options):
    with pytest.raises(ConfigError, match="cannot be packed"):
        packed(*numbers([4, 3], 1, 1, 8, 0), [4, 3], **options)


def test_eager_models_keep_their_masks():
    model = make_model("qwen3", "eager")
    varlen.use(model)
    assert not varlen.is_used(model)
    assert Scorer(model, 0).packing_obstacle is None
    assert model.config._attn_implementation == "eager"
