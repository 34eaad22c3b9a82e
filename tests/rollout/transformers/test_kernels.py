"""The kernels of a decoding step against plain PyTorch: compiled where there is a GPU, else in Triton's interpreter."""

import pytest
import torch

kernels = pytest.importorskip("opasd.rollout.transformers.kernels", exc_type=ImportError)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if GPU else [torch.float32]  # the interpreter multiplies bfloat16 wrongly


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def error(output, expected):
    return float((output.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("H", "K", "D", "V", "length"),
    [(1, 1, 16, 16, 1), (6, 2, 80, 48, 257), (14, 2, 64, 64, 300), (8, 4, 128, 128, 130)],
)
def test_attention_reads_each_row_as_far_as_it_goes(dtype, H, K, D, V, length):
    """What lies beyond is NaN, as memory may be."""
    B, seed = 3, H + length
    query = numbers(B, 1, H, D, dtype=dtype, seed=seed).transpose(1, 2)
    keys, values = numbers(B + 1, K, length, D, dtype=dtype, seed=seed + 1), numbers(B + 1, K, length, V, dtype=dtype)
    last = torch.randint(0, length, (B,), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    last[0] = length - 1
    beyond = (torch.arange(length, device=DEVICE) > last[:, None])[:, None, :, None]
    spoiled = [torch.cat([torch.where(beyond, float("nan"), t[:B]), t[B:]])[:B] for t in (keys, values)]
    output = kernels.attend(query, *spoiled, last, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double(), keys[:B].double(), values[:B].double(), attn_mask=~beyond.transpose(2, 3), scale=0.3,
        enable_gqa=H != K,
    )  # fmt: skip
    assert output.shape == (B, 1, H, V)
    assert error(output.transpose(1, 2), expected) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_many_chunks(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_CHUNKS", 4)
    query, keys, values = numbers(2, 4, 1, 16), numbers(2, 2, 2500, 16), numbers(2, 2, 2500, 16, seed=1)
    last = torch.tensor([2499, 1100], device=DEVICE)
    mask = (torch.arange(2500, device=DEVICE) <= last[:, None])[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    assert error(kernels.attend(query, keys, values, last, 0.25).transpose(1, 2), expected) < 1e-5


def test_a_key_and_value_are_stored_in_place():
    key, value = numbers(3, 1, 2, 16).transpose(1, 2), numbers(3, 1, 2, 24, seed=1).transpose(1, 2)
    keys, values, last = torch.zeros(4, 2, 9, 16), torch.zeros(4, 2, 9, 24), torch.tensor([0, 8, 5])
    keys, values, last = keys.to(DEVICE), values.to(DEVICE), last.to(DEVICE)
    kernels.store(key, value, keys[:3], values[:3], last)
    for row, at in enumerate(last.tolist()):
        assert torch.equal(keys[row, :, at], key[row, :, 0])
        assert torch.equal(values[row, :, at], value[row, :, 0])
    assert int((keys != 0).any(-1).sum()) == int((values != 0).any(-1).sum()) == 6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "features", "outputs", "rank"), [(1, 16, 16, 1), (5, 300, 70, 8), (33, 520, 129, 20)])
def test_a_lora_product_is_added(dtype, rows, features, outputs, rank):
    x, base = numbers(rows, 1, features, dtype=dtype), numbers(rows, 1, outputs, dtype=dtype, seed=1)
    down, up = numbers(rank, features, seed=2), numbers(outputs, rank, seed=3)
    expected = base.double() + 0.7 * (x.double() @ down.double().T @ up.double().T)
    output = kernels.add_lora(base.clone(), x, down, up, 0.7)
    assert output.dtype == dtype
    assert error(output, expected) < (1e-6 if dtype == torch.float32 else 4e-3)
