"""Kernels of the attention loss's backward pass; `attention.py` beside this file says what each costs."""

import triton
import triton.language as tl

from opasd.losses.fused import attention_tables as tables

# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false


@triton.jit
def _gradient_dot(gradient, vectors, total, LOW: tl.constexpr, PRECISION: tl.constexpr):
    """total + gradient · vectors; with LOW the gradient is rounded to the vectors' precision."""
    if LOW:
        return tl.dot(gradient.to(vectors.dtype), vectors, total)
    else:
        return tl.dot(gradient, vectors.to(tl.float32), total, input_precision=PRECISION)


@triton.jit
def _cap_slope(logit, cap):
    """1 − tanh²."""
    tanh = logit / cap
    return 1.0 - tanh * tanh


@triton.jit
def _attention_tile(
    rows, first, MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Keys, logits, probabilities (zero where unseen) and centred slopes of one tile."""
    q, K, k_n, C, width, start, inner, lse, position, end, window, scale, cap = rows
    key = first + tl.arange(0, BN)
    k = tables.vectors(K, key, k_n, key < end, D, DP, MASKED)
    centred = tl.load(C + inner[:, None] * width + (key - start)[None, :]).to(tl.float32)
    logit = tables.logits(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale, cap, CAPPED)
    probability = tl.exp2(logit - lse[:, None])
    if MASKED:
        seen = tables.sees(position[:, None], key[None, :], window, WINDOWED) & (key < end)[None, :]
        probability = tl.where(seen, probability, 0.0)
        centred = tl.where(seen, centred, 0.0)
    return k, logit, probability, centred


@triton.jit(do_not_specialize=tables.COUNTS, do_not_specialize_on_alignment=tables.STATISTICS)
def query_gradients(
    Q, K, CENTRED, SEQUENCES, BLOCKS, LSE, PULL, UPSTREAM, DQ, q_h, q_n, k_h, k_n, dq_h, dq_n, num_rows, window,
    scale, cap, scaling,
    WANTED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, LOW: tl.constexpr,
    GRADIENT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Σ_j p_hj c_j of every step and head, and from it, where wanted, the gradient to the queries."""
    head, tile = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(BLOCKS + tile // (ROWS // BM) * 2)
    block = tl.load(BLOCKS + tile // (ROWS // BM) * 2 + 1).to(tl.int32)
    inner = tile % (ROWS // BM) * BM
    row = block * ROWS + inner
    steps = tables.number(SEQUENCES, sequence, tables.STEPS)
    if row < steps:
        offset, width, start = tables.block_of(SEQUENCES, sequence, block, window, WINDOWED, ROWS)
        step = row + tl.arange(0, BM)
        inside = step < steps
        first = tables.number(SEQUENCES, sequence, tables.STUDENT_POSITION) + row
        position = first + tl.arange(0, BM)
        last = first + tl.minimum(BM, steps - row) - 1
        q = tables.vectors(
            Q + tables.offset_of(SEQUENCES, sequence, tables.STUDENT_QUERY) + head * q_h, step, q_n, inside, D, DP, True
        )  # fmt: skip
        K += tables.offset_of(SEQUENCES, sequence, tables.STUDENT_KEY) + (head // GROUP) * k_h
        C = CENTRED + offset
        plane_row = inner + tl.arange(0, BM)
        statistics = head * num_rows + tables.number(SEQUENCES, sequence, tables.FIRST_ROW) + step
        lse = tl.load(LSE + statistics, mask=inside, other=0.0)
        bounds = tables.spans(first, last, window, WINDOWED, BN)
        rows = (q, K, k_n, C, width, start, plane_row, lse, position, bounds[3], window, scale, cap)

        pull = tl.zeros((BM,), tl.float32)
        for part in tl.static_range(0 if WINDOWED else 1, 3):
            for key in range(bounds[part], bounds[part + 1], BN):
                _, _, probability, centred = _attention_tile(
                    rows, key, part != 1, CAPPED, WINDOWED, D, DP, BN, PRECISION
                )
                pull += tl.sum(probability * centred, 1)
        tl.store(PULL + statistics, pull, mask=inside)
        if WANTED:
            total = tl.zeros((BM, DP), tl.float32)
            for part in tl.static_range(0 if WINDOWED else 1, 3):
                for key in range(bounds[part], bounds[part + 1], BN):
                    k, logit, probability, centred = _attention_tile(
                        rows, key, part != 1, CAPPED, WINDOWED, D, DP, BN, PRECISION
                    )
                    gradient = probability * (centred - pull[:, None])
                    if CAPPED:
                        gradient *= _cap_slope(logit, cap)
                    total = _gradient_dot(gradient, k, total, LOW, GRADIENT_PRECISION)
            total *= scaling * tl.load(UPSTREAM)
            d = tl.arange(0, DP)
            DQ += tables.offset_of(SEQUENCES, sequence, tables.GRAD_QUERY)
            out = DQ + head * dq_h + step[:, None] * dq_n + d[None, :]
            tl.store(out, total.to(DQ.dtype.element_ty), mask=inside[:, None] & (d < D)[None, :])


@triton.jit
def _key_span(
    keys, low, high, total,
    MASKED: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, BM: tl.constexpr, PRECISION: tl.constexpr,
    LOW: tl.constexpr, GRADIENT_PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the part of the steps in [low, high) to the keys' gradient."""
    (
        Q, k, C, LSE, PULL, plane, width, q_h, q_n, head, key, first_row, num_rows, steps, position, window, scale, cap,
    ) = keys  # fmt: skip
    for item in range(low // BM * (GROUP // HEADS), tl.cdiv(high, BM) * (GROUP // HEADS)):
        row = item // (GROUP // HEADS) * BM
        first_head = head * GROUP + item % (GROUP // HEADS) * HEADS
        step = row + tl.arange(0, BM)
        inside = step < steps
        offset, pitch, start = tables.block_at(plane, width, position, row // ROWS, window, WINDOWED, ROWS)
        c_row = row % ROWS + tl.arange(0, BM)
        centred = tl.trans(tl.load(C + offset + c_row[:, None] * pitch + (key - start)[None, :])).to(tl.float32)
        if MASKED:
            seen = tables.sees((position + step)[None, :], key[:, None], window, WINDOWED) & inside[None, :]
        for i in tl.static_range(HEADS):
            q = tables.vectors(Q + (first_head + i) * q_h, step, q_n, inside, D, DP, MASKED)
            statistics = (first_head + i) * num_rows + first_row + step
            if MASKED:
                lse = tl.load(LSE + statistics, mask=inside, other=0.0)
                pull = tl.load(PULL + statistics, mask=inside, other=0.0)
            else:
                lse = tl.load(LSE + statistics)
                pull = tl.load(PULL + statistics)
            logit = tables.logits(tl.dot(k, tl.trans(q), input_precision=PRECISION), scale, cap, CAPPED)
            gradient = tl.exp2(logit - lse[None, :]) * (centred - pull[None, :])
            if CAPPED:
                gradient *= _cap_slope(logit, cap)
            if MASKED:
                gradient = tl.where(seen, gradient, 0.0)
            total = _gradient_dot(gradient, q, total, LOW, GRADIENT_PRECISION)
    return total


@triton.jit(do_not_specialize=tables.COUNTS, do_not_specialize_on_alignment=tables.STATISTICS)
def key_gradients(
    Q, K, CENTRED, SEQUENCES, TILES, LSE, PULL, UPSTREAM, DK, q_h, q_n, k_h, k_n, dk_h, dk_n, num_rows, window,
    scale, cap, scaling,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, LOW: tl.constexpr,
    GRADIENT_PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """The gradient to a tile of one key head's keys, over all steps and query heads that see it."""
    head, item = tl.program_id(0), tl.program_id(1)
    sequence = tl.load(TILES + item * 2)
    begin = (tl.load(TILES + item * 2 + 1) * BN).to(tl.int32)
    steps = tables.number(SEQUENCES, sequence, tables.STEPS)
    position = tables.number(SEQUENCES, sequence, tables.STUDENT_POSITION)
    first_row = tables.number(SEQUENCES, sequence, tables.FIRST_ROW)
    plane, width = tables.field(SEQUENCES, sequence, tables.PLANE), tables.number(SEQUENCES, sequence, tables.WIDTH)
    key = begin + tl.arange(0, BN)
    exists = key < position + steps
    k = tables.vectors(
        K + tables.offset_of(SEQUENCES, sequence, tables.STUDENT_KEY) + head * k_h, key, k_n, exists, D, DP, True
    )  # fmt: skip
    Q += tables.offset_of(SEQUENCES, sequence, tables.STUDENT_QUERY)

    # Steps in [low, high) see some key of the tile; in [full_low, full_high), whole tiles, every key.
    low = tl.maximum(begin - position, 0) // BM * BM
    high = steps
    full_high = steps // BM * BM
    if WINDOWED:
        high = tl.maximum(tl.minimum(steps, begin + BN - 1 + window - position), 0)
        full_high = tl.minimum(full_high, tl.maximum(begin + window - position, 0) // BM * BM)
    full_low = tl.cdiv(tl.maximum(begin + BN - 1 - position, 0), BM) * BM
    full_low = tl.minimum(full_low, tl.cdiv(high, BM) * BM)
    full_high = tl.maximum(full_low, full_high)
    keys = (
        Q, k, CENTRED, LSE, PULL, plane, width, q_h, q_n, head, key, first_row, num_rows, steps, position, window,
        scale, cap,
    )  # fmt: skip
    total = tl.zeros((BN, DP), tl.float32)
    bounds = (low, full_low, full_high, high)
    for part in tl.static_range(3):
        total = _key_span(
            keys, bounds[part], bounds[part + 1], total,
            part != 1, CAPPED, WINDOWED, GROUP, HEADS, D, DP, ROWS, BM, PRECISION, LOW, GRADIENT_PRECISION,
        )  # fmt: skip
    total *= scaling * tl.load(UPSTREAM)
    d = tl.arange(0, DP)
    out = DK + tables.offset_of(SEQUENCES, sequence, tables.GRAD_KEY) + head * dk_h + key[:, None] * dk_n + d[None, :]
    tl.store(out, total.to(DK.dtype.element_ty), mask=exists[:, None] & (d < D)[None, :])
