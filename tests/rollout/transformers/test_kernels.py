"""The kernels of a decoding step against plain PyTorch: compiled where there is a GPU, else in Triton's interpreter."""

import random

import pytest
import torch

from opasd.rollout.transformers import pages as paging

kernels = pytest.importorskip("opasd.rollout.transformers.kernels", exc_type=ImportError)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if GPU else [torch.float32]  # the interpreter multiplies bfloat16 wrongly


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def error(output, expected):
    return float((output.double() - expected.double()).norm() / expected.double().norm())


def in_pages(keys, values, last, page, monkeypatch):
    """Rows [B, K, S, D] as pages in any order, over several segments; returns the first pages' views and the reach."""
    monkeypatch.setattr(paging, "PAGE", page)
    B, _, S, _ = keys.shape
    states = [(tensor[:1, :, :1].clone() for tensor in (keys, values))]
    count = -(-S // page)
    pages = paging.Pages(states, B * count, growing=True)
    pages.segment_pages = 2
    reach = torch.zeros(B, 1 + count, dtype=torch.long)
    reach[:, 0] = last
    numbers = [pages.take(1)[0] for _ in range(B * count)]
    random.Random(S).shuffle(numbers)
    for row in range(B):
        for column in range(count):
            number = numbers.pop()
            reach[row, 1 + column] = pages.distances[number]
            for (start, K, D), tensor in zip(pages.starts, (keys, values), strict=True):
                part = tensor[row, :, column * page : (column + 1) * page]
                place = pages.places[number][start : start + K * page * D].view(K, page, D)
                place.fill_(float("nan"))
                place[:, : part.shape[1]] = part
    return pages, reach.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("H", "K", "D", "V", "length", "page"),
    [(1, 1, 16, 16, 1, 256), (6, 2, 80, 48, 257, 64), (14, 2, 64, 64, 300, 256), (8, 4, 128, 128, 130, 16)],
)
def test_attention_reads_each_row_as_far_as_it_goes(dtype, H, K, D, V, length, page, monkeypatch):
    """What lies beyond is NaN, as memory may be; a row at rest reads nothing."""
    monkeypatch.setattr(paging, "SEGMENT_BYTES", 1)
    B, seed = 4, H + length
    query = numbers(B, 1, H, D, dtype=dtype, seed=seed).transpose(1, 2)
    keys, values = numbers(B, K, length, D, dtype=dtype, seed=seed + 1), numbers(B, K, length, V, dtype=dtype)
    last = torch.randint(0, length, (B,), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    last[0], last[3] = length - 1, -1
    beyond = (torch.arange(length, device=DEVICE) > last[:, None])[:, None, :, None]
    spoiled = [torch.where(beyond, float("nan"), tensor) for tensor in (keys, values)]
    pages, reach = in_pages(*spoiled, last, page, monkeypatch)
    assert len(pages.segments) > 1
    output = kernels.attend(query, pages.view(0), pages.view(1), reach, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query[:3].double(), keys[:3].double(), values[:3].double(), attn_mask=~beyond[:3].transpose(2, 3), scale=0.3,
        enable_gqa=H != K,
    )  # fmt: skip
    assert output.shape == (B, 1, H, V)
    assert error(output[:3].transpose(1, 2), expected) < (1e-5 if dtype == torch.float32 else 1e-2)
    assert not output[3].any()


def test_many_pages(monkeypatch):
    """More than are joined at a time."""
    query, keys, values = numbers(2, 4, 1, 16), numbers(2, 2, 700, 16), numbers(2, 2, 700, 16, seed=1)
    keys[:, :, 600:] *= 4  # what is joined last weighs most
    last = torch.tensor([699, 300], device=DEVICE)
    pages, reach = in_pages(keys, values, last, 16, monkeypatch)
    assert reach.shape[1] - 1 > kernels.JOINED
    mask = (torch.arange(700, device=DEVICE) <= last[:, None])[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    found = kernels.attend(query, pages.view(0), pages.view(1), reach, 0.25)
    assert error(found.transpose(1, 2), expected) < 1e-5


@pytest.mark.parametrize("from_start", [False, True])
def test_keys_and_values_are_stored_in_place(from_start, monkeypatch):
    """One at each row's last position, or a prompt from its start; nothing of a row at rest."""
    new, lasts = (20, [0, 8, 18, -1]) if from_start else (1, [0, 8, 5, -1])
    key = numbers(4, new, 2, 16).transpose(1, 2)
    value = numbers(4, new, 2, 24, seed=1).transpose(1, 2)
    empty = torch.zeros(4, 2, 20, 16, device=DEVICE), torch.zeros(4, 2, 20, 24, device=DEVICE)
    monkeypatch.setattr(paging, "SEGMENT_BYTES", 1)
    pages, reach = in_pages(*empty, torch.tensor(lasts), 4, monkeypatch)
    kernels.store(key, value, pages.view(0), pages.view(1), reach, from_start=from_start)
    step = pages.bytes // paging.ALIGNMENT
    for row, last in enumerate(lasts):
        for at in range(20):
            place = pages.places[pages.distances.index(int(reach[row, 1 + at // 4]))]
            for (start, K, D), tensor in zip(pages.starts, (key, value), strict=True):
                found = place[start : start + K * 4 * D].view(K, 4, D)[:, at % 4]
                source = at if from_start else 0
                is_stored = 0 <= at <= last if from_start else at == last
                assert torch.equal(found, tensor[row, :, source] if is_stored else torch.zeros_like(found))
    assert step * paging.ALIGNMENT == pages.bytes


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "features", "outputs", "rank"), [(1, 16, 16, 1), (5, 300, 70, 8), (33, 520, 129, 20)])
def test_a_lora_product_is_added(dtype, rows, features, outputs, rank):
    x, base = numbers(rows, 1, features, dtype=dtype), numbers(rows, 1, outputs, dtype=dtype, seed=1)
    down, up = numbers(rank, features, seed=2), numbers(outputs, rank, seed=3)
    expected = base.double() + 0.7 * (x.double() @ down.double().T @ up.double().T)
    output = kernels.add_lora(base.clone(), x, down, up, 0.7)
    assert output.dtype == dtype
    assert error(output, expected) < (1e-6 if dtype == torch.float32 else 4e-3)
