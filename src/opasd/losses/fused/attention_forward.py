"""Kernels of the attention loss's forward pass before the comparison: normalisers and averaged rows.

`attention.py` beside this file says what each kernel costs."""

import triton
import triton.language as tl

from opasd.losses.fused.attention_tables import (
    COUNTS,
    FIRST_ROW,
    FLAGS,
    LINKS,
    LOG2E,
    SOLUTION_BEGIN,
    SOLUTION_END,
    STATISTICS,
    STEPS,
    STUDENT_KEY,
    STUDENT_POSITION,
    STUDENT_QUERY,
    TEACHER_KEY,
    TEACHER_POSITION,
    TEACHER_QUERY,
    block_of,
    field,
    logits,
    number,
    offset_of,
    sees,
    spans,
    vectors,
)

# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false


@triton.jit
def _normaliser_span(
    rows, low, high, state, MASKED: tl.constexpr, TALLY: tl.constexpr, TEACHER: tl.constexpr,
    CAPPED: tl.constexpr, WINDOWED: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys in [low, high) to each row's (largest logit, normaliser, the solution's part of the normaliser)."""
    q, K, k_n, SOLUTION, position, end, window, scale, cap = rows
    largest, total, tally = state
    for first in range(low, high, BN):
        key = first + tl.arange(0, BN)
        k = vectors(K, key, k_n, key < end, D, DP, MASKED)
        logit = logits(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale, cap, CAPPED)
        if MASKED:
            seen = sees(position[:, None], key[None, :], window, WINDOWED) & (key < end)[None, :]
            logit = tl.where(seen, logit, -float("inf"))
        new = tl.maximum(largest, tl.max(logit, 1))
        if MASKED:
            new = tl.where(new == -float("inf"), -1e30, new)
        weight = tl.exp2(logit - new[:, None])
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.sum(weight, 1)
        if TEACHER:
            tally *= shrink
            if TALLY:
                flag = tl.load(SOLUTION + key, mask=key < end, other=0)
                tally += tl.sum(tl.where((flag > 0)[None, :], weight, 0.0), 1)
        largest = new
    return largest, total, tally


@triton.jit
def _normalise_rows(
    Q, K, SINKS, SEQUENCES, SOLUTION, LSE, SHARE, q_h, q_n, k_h, k_n, head, sequence, row, window, scale, cap, num_rows,
    TEACHER: tl.constexpr, SINK: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The normalisers of BM steps of one role and head."""
    steps = number(SEQUENCES, sequence, STEPS)
    if TEACHER:
        q_offset = offset_of(SEQUENCES, sequence, TEACHER_QUERY)
        k_offset = offset_of(SEQUENCES, sequence, TEACHER_KEY)
        first = number(SEQUENCES, sequence, TEACHER_POSITION) + row
        SOLUTION += field(SEQUENCES, sequence, FLAGS)
    else:
        q_offset = offset_of(SEQUENCES, sequence, STUDENT_QUERY)
        k_offset = offset_of(SEQUENCES, sequence, STUDENT_KEY)
        first = number(SEQUENCES, sequence, STUDENT_POSITION) + row
    step = row + tl.arange(0, BM)
    position = first + tl.arange(0, BM)
    last = first + tl.minimum(BM, steps - row) - 1
    q = vectors(Q + q_offset + head * q_h, step, q_n, step < steps, D, DP, True)
    K += k_offset + (head // GROUP) * k_h
    state = (tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32))

    low, full_low, full_high, high = spans(first, last, window, WINDOWED, BN)
    rows = (q, K, k_n, SOLUTION, position, high, window, scale, cap)
    if WINDOWED:
        state = _normaliser_span(
            rows, low, full_low, state, True, TEACHER, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION
        )
    if TEACHER:
        begin = number(SEQUENCES, sequence, SOLUTION_BEGIN) // BN * BN
        end = tl.cdiv(number(SEQUENCES, sequence, SOLUTION_END), BN) * BN
        begin = tl.minimum(tl.maximum(begin, full_low), full_high)
        end = tl.minimum(tl.maximum(end, begin), full_high)
        state = _normaliser_span(
            rows, full_low, begin, state, False, False, True, CAPPED, WINDOWED, D, DP, BN, PRECISION
        )
        state = _normaliser_span(rows, begin, end, state, False, True, True, CAPPED, WINDOWED, D, DP, BN, PRECISION)
        full_low = end
    state = _normaliser_span(
        rows, full_low, full_high, state, False, False, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION
    )
    largest, total, tally = _normaliser_span(
        rows, full_high, high, state, True, TEACHER, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION
    )
    if SINK:
        sink = tl.load(SINKS + head).to(tl.float32) * LOG2E
        new = tl.maximum(largest, sink)
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.exp2(sink - new)
        tally *= shrink
        largest = new
    out = head * num_rows + number(SEQUENCES, sequence, FIRST_ROW) + step
    tl.store(LSE + out, largest + tl.log2(total), mask=step < steps)
    if TEACHER:
        tl.store(SHARE + out, tally / total, mask=step < steps)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=STATISTICS)
def normalisers(
    QS, KS, QT, KT, SINKS_S, SINKS_T, SEQUENCES, BLOCKS, SOLUTION, LSE_S, LSE_T, SHARE,
    qs_h, qs_n, ks_h, ks_n, qt_h, qt_n, kt_h, kt_n, num_rows, window_s, window_t, scale_s, scale_t, cap_s, cap_t,
    SINK: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr,
    DP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Base-2 log of each softmax normaliser, for every step and head, and the solution's share of the teacher's."""
    head, item = tl.program_id(0), tl.program_id(1)
    tile, teacher = item // 2, item % 2 == 0
    sequence = tl.load(BLOCKS + tile // (ROWS // BM) * 2)
    row = (tl.load(BLOCKS + tile // (ROWS // BM) * 2 + 1) * ROWS).to(tl.int32) + tile % (ROWS // BM) * BM
    if row < number(SEQUENCES, sequence, STEPS):
        if teacher:
            _normalise_rows(
                QT, KT, SINKS_T, SEQUENCES, SOLUTION, LSE_T, SHARE, qt_h, qt_n, kt_h, kt_n, head, sequence, row,
                window_t, scale_t, cap_t, num_rows,
                True, SINK, CAPPED, WINDOWED, GROUP, D, DP, BM, BN, PRECISION,
            )  # fmt: skip
        else:
            _normalise_rows(
                QS, KS, SINKS_S, SEQUENCES, SOLUTION, LSE_S, SHARE, qs_h, qs_n, ks_h, ks_n, head, sequence, row,
                window_s, scale_s, cap_s, num_rows,
                False, SINK, CAPPED, WINDOWED, GROUP, D, DP, BM, BN, PRECISION,
            )  # fmt: skip


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=STATISTICS)
def averages(
    Q, K, SEQUENCES, BLOCKS, LINKED, LSE, PLANE, q_h, q_n, k_h, k_n, first_block, plane_begin, num_rows, num_heads,
    window, scale, cap,
    TEACHER: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr, GROUP: tl.constexpr, HEADS: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, ROWS: tl.constexpr, PRECISION: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """A tile of a role's head-averaged attention at the shared positions, in the student's columns."""
    tile = tl.program_id(1)
    block = first_block + tile // (ROWS // BM)
    sequence = tl.load(BLOCKS + block * 2)
    block = tl.load(BLOCKS + block * 2 + 1).to(tl.int32)
    inner = tile % (ROWS // BM) * BM
    row = block * ROWS + inner
    steps = number(SEQUENCES, sequence, STEPS)
    last = number(SEQUENCES, sequence, STUDENT_POSITION) + tl.minimum(row + BM, steps) - 1
    offset, width, start = block_of(SEQUENCES, sequence, block, window, WINDOWED, ROWS)
    column = tl.program_id(0) * BN
    if (row < steps) & (column < width) & (start + column <= last):
        key = start + column + tl.arange(0, BN)
        link = tl.load(LINKED + field(SEQUENCES, sequence, LINKS) + key, mask=key <= last, other=-1)
        if tl.max(link, 0) >= 0:
            shared = link >= 0
            if TEACHER:
                key = link // 2
                Q += offset_of(SEQUENCES, sequence, TEACHER_QUERY)
                K += offset_of(SEQUENCES, sequence, TEACHER_KEY)
            else:
                Q += offset_of(SEQUENCES, sequence, STUDENT_QUERY)
                K += offset_of(SEQUENCES, sequence, STUDENT_KEY)
            step = row + tl.arange(0, BM)
            inside = step < steps
            statistics = number(SEQUENCES, sequence, FIRST_ROW) + step
            total = tl.zeros((BM, BN), tl.float32)
            for first in range(0, num_heads, HEADS):
                k = tl.trans(vectors(K + (first // GROUP) * k_h, key, k_n, shared, D, DP, True))
                for i in tl.static_range(HEADS):
                    q = vectors(Q + (first + i) * q_h, step, q_n, inside, D, DP, True)
                    lse = tl.load(LSE + (first + i) * num_rows + statistics, mask=inside, other=0.0)
                    logit = logits(tl.dot(q, k, input_precision=PRECISION), scale, cap, CAPPED)
                    total += tl.exp2(logit - lse[:, None])
            out = (offset - plane_begin.to(tl.int64) * (ROWS * ROWS)) + (inner + tl.arange(0, BM))[:, None] * width
            tl.store(PLANE + out + (column + tl.arange(0, BN))[None, :], total / num_heads)
