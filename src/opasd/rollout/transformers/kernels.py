"""Triton kernels of a decoding step: each replaces many small launches of plain PyTorch by one.

With one new token in each row, the number of launches and the reading of weights and cache bound a step. Each kernel
rounds where the code that it replaces rounds, so results in half precision differ by the order of sums alone.

Shapes: B rows, H query heads, K key heads, T new positions, D head size, C pages of a row, P pages of a segment, S
positions of a page, M rows of a matrix product, N its outputs, F its inputs, R rank.
"""

# pyright: reportCallIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

from opasd.rollout.transformers.pages import ALIGNMENT

JOINED = 32
"""Pages whose results are joined at a time."""
STORED = 16
"""Positions of a prompt that one program stores."""
MAX_RANK = 256
"""Largest LoRA rank with tiles that stay in registers."""
MANY_ROWS = 128
"""From this many rows on, arithmetic bounds products in half precision, and the library's are faster."""
PRECISION = "tf32x3"
"""Multiply float32 on tensor cores in three parts: as exact as on other cores and twice as fast."""
_LOG2E = 1.4426950408889634


# ---- attention over each row's own pages ---------------------------------------------------------------------------


@triton.jit(do_not_specialize=["pages"])
def _attend_page(
    query, keys, values, reach, partial, logsum,
    query_b, query_h, key_h, key_s, value_h, value_s, reach_b, scale, heads, pages,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, PAGE: tl.constexpr, BLOCK: tl.constexpr, UNIT: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, head, page = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    stop = tl.minimum(tl.load(reach + row * reach_b) + 1 - page * PAGE, PAGE).to(tl.int32)
    if stop > 0:
        g, d, v, n = tl.arange(0, GROUP_PAD), tl.arange(0, D_PAD), tl.arange(0, V_PAD), tl.arange(0, BLOCK)
        own = head * GROUP + g
        query_at = query + row * query_b + own[:, None] * query_h + d[None, :]
        q = tl.load(query_at, mask=(g[:, None] < GROUP) & (d[None, :] < D), other=0.0)
        distance = tl.load(reach + row * reach_b + 1 + page) * UNIT
        keys_at = keys + distance + head * key_h
        values_at = values + distance + head * value_h
        highest = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PAD], tl.float32)
        sums = tl.zeros([GROUP_PAD, V_PAD], tl.float32)
        for start in range(0, stop, BLOCK):
            at = start + n
            key = tl.load(
                keys_at + at[None, :] * key_s + d[:, None], mask=(at[None, :] < stop) & (d[:, None] < D), other=0.0
            )
            score = tl.dot(q, key, input_precision=PRECISION) * scale
            score = tl.where(at[None, :] < stop, score, float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(highest - higher)
            value = tl.load(
                values_at + at[:, None] * value_s + v[None, :], mask=(at[:, None] < stop) & (v[None, :] < V), other=0.0
            )
            sums = sums * shrink[:, None] + tl.dot(weight.to(value.dtype), value, input_precision=PRECISION)
            total = total * shrink + tl.sum(weight, 1)
            highest = higher
        offset = (row * heads + own) * pages + page
        inside = (g[:, None] < GROUP) & (v[None, :] < V)
        tl.store(partial + offset[:, None] * V + v[None, :], sums / total[:, None], mask=inside)
        tl.store(logsum + offset, highest + tl.log2(total), mask=g < GROUP)


@triton.jit(do_not_specialize=["pages"])
def _join_pages(
    partial, logsum, reach, output, reach_b, heads, pages,
    PAGE: tl.constexpr, JOINED: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    used = ((tl.load(reach + row * reach_b) + PAGE) // PAGE).to(tl.int32)
    n, v = tl.arange(0, JOINED), tl.arange(0, V_PAD)
    highest = tl.full([1], float("-inf"), tl.float32)
    total = tl.zeros([1], tl.float32)
    sums = tl.zeros([V_PAD], tl.float32)
    for start in range(0, used, JOINED):
        page = start + n
        offset = (row * heads + head) * pages + page
        logs = tl.load(logsum + offset, mask=page < used, other=float("-inf"))
        higher = tl.maximum(highest, tl.max(logs, 0))
        weight, shrink = tl.exp2(logs - higher), tl.exp2(highest - higher)
        inside = (page[:, None] < used) & (v[None, :] < V)
        parts = tl.load(partial + offset[:, None] * V + v[None, :], mask=inside, other=0.0)
        sums = sums * shrink + tl.sum(weight[:, None] * parts, 0)
        total = total * shrink + tl.sum(weight, 0)
        highest = higher
    joined = sums / tl.where(total > 0, total, 1.0)  # a row at rest gets 0
    tl.store(output + (row * heads + head) * V + v, joined.to(output.dtype.element_ty), mask=v < V)


def attend(query_BH1D: Tensor, keys_PKSD: Tensor, values_PKSV: Tensor, reach_BC: Tensor, scaling: float) -> Tensor:
    """Return attention outputs [B, 1, H, V] of each row's query over its keys 0 … last; a row at rest gets 0.

    `reach` has each row's last position, then the distances of its pages from the first page of `keys` and `values`.
    """
    B, H, _, D = query_BH1D.shape
    (_, K, S, V), pages = values_PKSV.shape, reach_BC.shape[1] - 1
    group = H // K
    assert query_BH1D.stride(-1) == keys_PKSD.stride(-1) == values_PKSV.stride(-1) == reach_BC.stride(-1) == 1
    partial = query_BH1D.new_empty(B, H, pages, V, dtype=torch.float32)
    logsum = query_BH1D.new_empty(B, H, pages, dtype=torch.float32)
    output = query_BH1D.new_empty(B, 1, H, V)
    pad_d, pad_v = max(16, triton.next_power_of_2(D)), max(16, triton.next_power_of_2(V))
    _attend_page[(B, K, pages)](
        query_BH1D, keys_PKSD, values_PKSV, reach_BC, partial, logsum,
        query_BH1D.stride(0), query_BH1D.stride(1), *keys_PKSD.stride()[1:3], *values_PKSV.stride()[1:3],
        reach_BC.stride(0), scaling * _LOG2E, H, pages,
        GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)), PAGE=S, BLOCK=64,
        UNIT=ALIGNMENT // keys_PKSD.element_size(), D=D, D_PAD=pad_d, V=V, V_PAD=pad_v, PRECISION=PRECISION,
        num_warps=4, num_stages=3 if pad_d * keys_PKSD.element_size() <= 256 else 1,
    )  # fmt: skip
    _join_pages[(B, H)](
        partial, logsum, reach_BC, output, reach_BC.stride(0), H, pages,
        PAGE=S, JOINED=JOINED, V=V, V_PAD=pad_v, num_warps=2,
    )  # fmt: skip
    return output


@triton.jit
def _store(
    key, value, keys, values, reach, key_b, key_h, key_t, value_b, value_h, value_t,
    keys_h, keys_s, values_h, values_s, reach_b, new,
    FROM_START: tl.constexpr, PAGE: tl.constexpr, UNIT: tl.constexpr, BLOCK: tl.constexpr,
    D: tl.constexpr, V: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    t, d = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, PAD)
    last = tl.load(reach + row * reach_b)
    at = t.to(tl.int64) if FROM_START else last + t
    stored = (t < new) & (at >= 0) & (at <= last)
    distance = tl.load(reach + row * reach_b + 1 + at // PAGE, mask=stored, other=0) * UNIT
    is_key, is_value = stored[:, None] & (d[None, :] < D), stored[:, None] & (d[None, :] < V)
    new_key = tl.load(key + row * key_b + head * key_h + t[:, None] * key_t + d[None, :], mask=is_key)
    new_value = tl.load(value + row * value_b + head * value_h + t[:, None] * value_t + d[None, :], mask=is_value)
    key_at = keys + distance[:, None] + head * keys_h + (at % PAGE)[:, None] * keys_s + d[None, :]
    value_at = values + distance[:, None] + head * values_h + (at % PAGE)[:, None] * values_s + d[None, :]
    tl.store(key_at, new_key, mask=is_key)
    tl.store(value_at, new_value, mask=is_value)


def store(
    key_BKTD: Tensor, value_BKTV: Tensor, keys_PKSD: Tensor, values_PKSV: Tensor, reach_BC: Tensor, *, from_start: bool
) -> None:
    """Write each row's new key and value at its last position, or those of positions 0 … last."""
    (B, K, T, D), V = key_BKTD.shape, value_BKTV.shape[-1]
    assert key_BKTD.stride(-1) == value_BKTV.stride(-1) == reach_BC.stride(-1) == 1
    block = STORED if from_start else 1
    _store[(B, K, triton.cdiv(T, block))](
        key_BKTD, value_BKTV, keys_PKSD, values_PKSV, reach_BC, *key_BKTD.stride()[:3], *value_BKTV.stride()[:3],
        *keys_PKSD.stride()[1:3], *values_PKSV.stride()[1:3], reach_BC.stride(0), T,
        FROM_START=from_start, PAGE=keys_PKSD.shape[2], UNIT=ALIGNMENT // keys_PKSD.element_size(), BLOCK=block,
        D=D, V=V, PAD=triton.next_power_of_2(max(D, V)), num_warps=1,
    )  # fmt: skip


# ---- norms, rotary embeddings, adapters -----------------------------------------------------------------------------


@triton.jit
def _rms_norm(x, weight, output, stride, eps, SIZE: tl.constexpr, PAD: tl.constexpr):
    row, d = tl.program_id(0).to(tl.int64), tl.arange(0, PAD)
    inside = d < SIZE
    inputs = tl.load(x + row * stride + d, mask=inside, other=0.0)
    wide = inputs.to(tl.float32)
    normed = (wide * tl.rsqrt(tl.sum(wide * wide, 0) / SIZE + eps)).to(inputs.dtype)
    scaled = tl.load(weight + d, mask=inside, other=0.0).to(tl.float32) * normed.to(tl.float32)
    tl.store(output + row * SIZE + d, scaled.to(output.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return weight · (x / rms(x)) over the last dimension, with the quotient rounded to x's precision first."""
    size = x.shape[-1]
    rows = x.reshape(-1, size)
    output = torch.empty(x.shape, dtype=torch.promote_types(x.dtype, weight.dtype), device=x.device)
    pad = triton.next_power_of_2(size)
    _rms_norm[(rows.shape[0],)](
        rows, weight, output, rows.stride(0), eps, SIZE=size, PAD=pad, num_warps=min(8, max(1, pad // 256))
    )
    return output


@triton.jit
def _rotate(
    query, key, cos, sin, new_query, new_key, query_b, query_h, key_b, key_h, angle_b, heads, key_heads,
    HALF: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    row, head, d = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, PAD)
    inside = d < HALF
    if head < heads:
        source = query + row * query_b + head * query_h
        target = new_query + (row * heads + head) * 2 * HALF
    else:
        source = key + row * key_b + (head - heads) * key_h
        target = new_key + (row * key_heads + head - heads) * 2 * HALF
    narrow = query.dtype.element_ty
    first = tl.load(source + d, mask=inside).to(tl.float32)
    second = tl.load(source + HALF + d, mask=inside).to(tl.float32)
    angle = row * angle_b + d
    left = (first * tl.load(cos + angle, mask=inside).to(tl.float32)).to(narrow).to(tl.float32)
    left -= (second * tl.load(sin + angle, mask=inside).to(tl.float32)).to(narrow).to(tl.float32)
    right = (second * tl.load(cos + angle + HALF, mask=inside).to(tl.float32)).to(narrow).to(tl.float32)
    right += (first * tl.load(sin + angle + HALF, mask=inside).to(tl.float32)).to(narrow).to(tl.float32)
    tl.store(target + d, left.to(narrow), mask=inside)
    tl.store(target + HALF + d, right.to(narrow), mask=inside)


def rotate(query_BH1D: Tensor, key_BK1D: Tensor, cos_B1D: Tensor, sin_B1D: Tensor) -> tuple[Tensor, Tensor]:
    """Return queries and keys of one position in each row, rotated in two halves; every product is rounded."""
    (B, H, _, D), K = query_BH1D.shape, key_BK1D.shape[1]
    assert cos_B1D.stride() == sin_B1D.stride()
    new_query, new_key = query_BH1D.new_empty(B, H, 1, D), key_BK1D.new_empty(B, K, 1, D)
    _rotate[(B, H + K)](
        query_BH1D, key_BK1D, cos_B1D, sin_B1D, new_query, new_key,
        *query_BH1D.stride()[:2], *key_BK1D.stride()[:2], cos_B1D.stride(0), H, K,
        HALF=D // 2, PAD=triton.next_power_of_2(D // 2), num_warps=1,
    )  # fmt: skip
    return new_query, new_key


@triton.jit(do_not_specialize=["rows"])
def _shrink(
    x, down, partial, rows, x_m, features, rank,
    SLAB: tl.constexpr, BLOCK: tl.constexpr, BM: tl.constexpr, R_PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    slab = tl.program_id(1)
    m, f, r = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BLOCK), tl.arange(0, R_PAD)
    sums = tl.zeros([BM, R_PAD], tl.float32)
    for start in range(slab * SLAB, tl.minimum((slab + 1) * SLAB, features), BLOCK):
        at = start + f
        weight = tl.load(
            down + r[None, :] * features + at[:, None], mask=(r[None, :] < rank) & (at[:, None] < features), other=0.0
        )
        inputs = tl.load(
            x + m[:, None] * x_m + at[None, :], mask=(m[:, None] < rows) & (at[None, :] < features), other=0.0
        )
        sums += tl.dot(inputs.to(weight.dtype), weight, input_precision=PRECISION)
    offset = (slab * rows + m)[:, None] * rank + r[None, :]
    tl.store(partial + offset, sums, mask=(m[:, None] < rows) & (r[None, :] < rank))


@triton.jit(do_not_specialize=["rows"])
def _expand(
    partial, up, result, rows, outputs, rank, slabs, scaling,
    BM: tl.constexpr, BN: tl.constexpr, R_PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m, n, r = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, R_PAD)
    low = tl.zeros([BM, R_PAD], tl.float32)
    for slab in range(slabs):
        offset = (slab * rows + m)[:, None] * rank + r[None, :]
        low += tl.load(partial + offset, mask=(m[:, None] < rows) & (r[None, :] < rank), other=0.0)
    weight = tl.load(up + n[None, :] * rank + r[:, None], mask=(n[None, :] < outputs) & (r[:, None] < rank), other=0.0)
    added = tl.dot(low.to(weight.dtype), weight, input_precision=PRECISION) * scaling
    at = result + m[:, None].to(tl.int64) * outputs + n[None, :]
    inside = (m[:, None] < rows) & (n[None, :] < outputs)
    base = tl.load(at, mask=inside, other=0.0)
    tl.store(at, (base.to(tl.float32) + added).to(base.dtype), mask=inside)


def add_lora(result: Tensor, x: Tensor, down_RF: Tensor, up_NR: Tensor, scaling: float) -> Tensor:
    """Add scaling · x Aᵀ Bᵀ to `result` in place; the order of sums is fixed, so the result is deterministic."""
    rank, features = down_RF.shape
    outputs = up_NR.shape[0]
    x_MF, result_MN = x.reshape(-1, features), result.view(-1, outputs)
    rows, bm = x_MF.shape[0], 16
    if rows >= MANY_ROWS and x.dtype == result.dtype == down_RF.dtype == up_NR.dtype and x.dtype.itemsize == 2:
        return result_MN.addmm_(x_MF @ down_RF.T, up_NR.T, alpha=scaling).view(result.shape)
    slab, bn = (128, 64) if rows <= 64 else (256, 128)  # the faster ones on an H200
    slabs, tiles, pad = triton.cdiv(features, slab), triton.cdiv(rows, bm), max(16, triton.next_power_of_2(rank))
    assert x_MF.stride(1) == 1
    assert down_RF.is_contiguous()
    assert up_NR.is_contiguous()
    partial = x.new_empty(slabs, rows, rank, dtype=torch.float32)
    _shrink[(tiles, slabs)](
        x_MF, down_RF, partial, rows, x_MF.stride(0), features, rank,
        SLAB=slab, BLOCK=64, BM=bm, R_PAD=pad, PRECISION=PRECISION, num_warps=4,
    )  # fmt: skip
    _expand[(tiles, triton.cdiv(outputs, bn))](
        partial, up_NR, result_MN, rows, outputs, rank, slabs, scaling,
        BM=bm, BN=bn, R_PAD=pad, PRECISION=PRECISION, num_warps=4,
    )  # fmt: skip
    return result
