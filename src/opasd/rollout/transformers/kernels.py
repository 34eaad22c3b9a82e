"""Triton kernels of a decoding step: each replaces many small launches of plain PyTorch by one.

With one new token in each row, the number of launches and the reading of weights and cache bound a step. Each kernel
rounds where the code that it replaces rounds, so results in half precision differ by the order of sums alone.

Shapes: B rows, H query heads, K key heads, S cache positions, D head size, C chunks of the cache, M rows of a matrix
product, N its outputs, F its inputs, R rank.
"""

# pyright: reportCallIssue=false, reportOperatorIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK_KEYS = 256
"""Keys that one program reads; more if the cache has more than `MAX_CHUNKS` such chunks."""
MAX_CHUNKS = 32
MAX_RANK = 256
"""Largest LoRA rank with tiles that stay in registers."""
MANY_ROWS = 128
"""From this many rows on, arithmetic bounds products in half precision, and the library's are faster."""
PRECISION = "tf32x3"
"""Multiply float32 on tensor cores in three parts: as exact as on other cores and twice as fast."""
_LOG2E = 1.4426950408889634


# ---- attention over each row's own part of the cache ----------------------------------------------------------------


@triton.jit(do_not_specialize=["chunks"])
def _attend_chunk(
    query, keys, values, last, partial, logsum,
    query_b, query_h, key_b, key_h, key_s, value_b, value_h, value_s, last_b,
    scale, heads, chunks,
    GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
    D: tl.constexpr, D_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    row, head, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    stop = tl.minimum(tl.load(last + row * last_b) + 1, (chunk + 1) * CHUNK).to(tl.int32)
    if chunk * CHUNK < stop:
        g, d, v, n = tl.arange(0, GROUP_PAD), tl.arange(0, D_PAD), tl.arange(0, V_PAD), tl.arange(0, BLOCK)
        own = head * GROUP + g
        query_at = query + row * query_b + own[:, None] * query_h + d[None, :]
        q = tl.load(query_at, mask=(g[:, None] < GROUP) & (d[None, :] < D), other=0.0)
        keys_at = keys + row * key_b + head * key_h
        values_at = values + row * value_b + head * value_h
        highest = tl.full([GROUP_PAD], float("-inf"), tl.float32)
        total = tl.zeros([GROUP_PAD], tl.float32)
        sums = tl.zeros([GROUP_PAD, V_PAD], tl.float32)
        for start in range(chunk * CHUNK, stop, BLOCK):
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
        offset = (row * heads + own) * chunks + chunk
        inside = (g[:, None] < GROUP) & (v[None, :] < V)
        tl.store(partial + offset[:, None] * V + v[None, :], sums / total[:, None], mask=inside)
        tl.store(logsum + offset, highest + tl.log2(total), mask=g < GROUP)


@triton.jit(do_not_specialize=["chunks"])
def _join_chunks(
    partial, logsum, last, output, last_b, heads, chunks,
    CHUNK: tl.constexpr, C_PAD: tl.constexpr, V: tl.constexpr, V_PAD: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    used = tl.load(last + row * last_b) // CHUNK + 1
    c, v = tl.arange(0, C_PAD), tl.arange(0, V_PAD)
    offset = (row * heads + head) * chunks + c
    logs = tl.load(logsum + offset, mask=c < used, other=float("-inf"))
    weight = tl.exp2(logs - tl.max(logs, 0))
    parts = tl.load(partial + offset[:, None] * V + v[None, :], mask=(c[:, None] < used) & (v[None, :] < V), other=0.0)
    joined = tl.sum(weight[:, None] * parts, 0) / tl.sum(weight, 0)
    tl.store(output + (row * heads + head) * V + v, joined.to(output.dtype.element_ty), mask=v < V)


def attend(query_BH1D: Tensor, keys_BKSD: Tensor, values_BKSV: Tensor, last_B: Tensor, scaling: float) -> Tensor:
    """Return attention outputs [B, 1, H, V] of each row's query over its keys 0 … last."""
    B, H, _, D = query_BH1D.shape
    K, S, V = keys_BKSD.shape[1], keys_BKSD.shape[2], values_BKSV.shape[-1]
    chunk = max(CHUNK_KEYS, triton.next_power_of_2(triton.cdiv(S, MAX_CHUNKS)))
    chunks, group = triton.cdiv(S, chunk), H // K
    assert query_BH1D.stride(-1) == keys_BKSD.stride(-1) == values_BKSV.stride(-1) == 1
    partial = query_BH1D.new_empty(B, H, chunks, V, dtype=torch.float32)
    logsum = query_BH1D.new_empty(B, H, chunks, dtype=torch.float32)
    output = query_BH1D.new_empty(B, 1, H, V)
    pad_d, pad_v = max(16, triton.next_power_of_2(D)), max(16, triton.next_power_of_2(V))
    _attend_chunk[(B, K, chunks)](
        query_BH1D, keys_BKSD, values_BKSV, last_B, partial, logsum,
        query_BH1D.stride(0), query_BH1D.stride(1), *keys_BKSD.stride()[:3], *values_BKSV.stride()[:3],
        last_B.stride(0), scaling * _LOG2E, H, chunks,
        GROUP=group, GROUP_PAD=max(16, triton.next_power_of_2(group)), CHUNK=chunk, BLOCK=64,
        D=D, D_PAD=pad_d, V=V, V_PAD=pad_v, PRECISION=PRECISION,
        num_warps=4, num_stages=3 if pad_d * keys_BKSD.element_size() <= 256 else 1,
    )  # fmt: skip
    _join_chunks[(B, H)](
        partial, logsum, last_B, output, last_B.stride(0), H, chunks,
        CHUNK=chunk, C_PAD=MAX_CHUNKS, V=V, V_PAD=pad_v, num_warps=2,
    )  # fmt: skip
    return output


@triton.jit
def _store(
    key, value, keys, values, last, key_b, key_h, value_b, value_h, keys_b, keys_h, keys_s, values_b, values_h,
    values_s, last_b, D: tl.constexpr, V: tl.constexpr, PAD: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at, d = tl.load(last + row * last_b), tl.arange(0, PAD)
    new_key = tl.load(key + row * key_b + head * key_h + d, mask=d < D)
    new_value = tl.load(value + row * value_b + head * value_h + d, mask=d < V)
    tl.store(keys + row * keys_b + head * keys_h + at * keys_s + d, new_key, mask=d < D)
    tl.store(values + row * values_b + head * values_h + at * values_s + d, new_value, mask=d < V)


def store(key_BK1D: Tensor, value_BK1V: Tensor, keys_BKSD: Tensor, values_BKSV: Tensor, last_B: Tensor) -> None:
    """Write each row's new key and value into the cache at its position `last`."""
    (B, K, _, D), V = key_BK1D.shape, value_BK1V.shape[-1]
    assert key_BK1D.stride(-1) == value_BK1V.stride(-1) == 1
    _store[(B, K)](
        key_BK1D, value_BK1V, keys_BKSD, values_BKSV, last_B, *key_BK1D.stride()[:2], *value_BK1V.stride()[:2],
        *keys_BKSD.stride()[:3], *values_BKSV.stride()[:3], last_B.stride(0),
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
