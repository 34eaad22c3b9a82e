"""Kernels of the attention loss's forward pass; `attention.py` beside this file says what each costs.

In `comparison`, a step's `row` is a tuple: the two planes and the links at its row, the permutation, the key of its
first column, its position in each role, and the windows.
"""

import triton
import triton.language as tl

from opasd.losses.fused import attention_tables as tables
from opasd.losses.fused.divergence import log, slope, terms
from opasd.losses.projection import LEAST_MASS as LEAST_MASS_OF_A_ROW

# ruff: noqa: RUF059 (a tuple of arguments is unpacked whole)
# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

HANDLINGS = {"project": 0, "redistribute": 1, "shuffle": 2}
PROJECT, SHUFFLE = (tl.constexpr(HANDLINGS[name]) for name in ("project", "shuffle"))
LEAST_MASS = tl.constexpr(LEAST_MASS_OF_A_ROW)


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
        k = tables.vectors(K, key, k_n, key < end, D, DP, MASKED)
        logit = tables.logits(tl.dot(q, tl.trans(k), input_precision=PRECISION), scale, cap, CAPPED)
        if MASKED:
            seen = tables.sees(position[:, None], key[None, :], window, WINDOWED) & (key < end)[None, :]
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
    steps = tables.number(SEQUENCES, sequence, tables.STEPS)
    q_offset = tables.offset_of(SEQUENCES, sequence, tables.TEACHER_QUERY if TEACHER else tables.STUDENT_QUERY)
    k_offset = tables.offset_of(SEQUENCES, sequence, tables.TEACHER_KEY if TEACHER else tables.STUDENT_KEY)
    first = tables.number(SEQUENCES, sequence, tables.TEACHER_POSITION if TEACHER else tables.STUDENT_POSITION) + row
    if TEACHER:
        SOLUTION += tables.field(SEQUENCES, sequence, tables.FLAGS)
    step = row + tl.arange(0, BM)
    position = first + tl.arange(0, BM)
    last = first + tl.minimum(BM, steps - row) - 1
    q = tables.vectors(Q + q_offset + head * q_h, step, q_n, step < steps, D, DP, True)
    K += k_offset + (head // GROUP) * k_h
    state = (tl.full((BM,), -float("inf"), tl.float32), tl.zeros((BM,), tl.float32), tl.zeros((BM,), tl.float32))

    low, full_low, full_high, high = tables.spans(first, last, window, WINDOWED, BN)
    rows = (q, K, k_n, SOLUTION, position, high, window, scale, cap)
    if WINDOWED:
        state = _normaliser_span(
            rows, low, full_low, state, True, TEACHER, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION
        )
    if TEACHER:
        begin = tables.number(SEQUENCES, sequence, tables.SOLUTION_BEGIN) // BN * BN
        end = tl.cdiv(tables.number(SEQUENCES, sequence, tables.SOLUTION_END), BN) * BN
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
        sink = tl.load(SINKS + head).to(tl.float32) * tables.LOG2E
        new = tl.maximum(largest, sink)
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.exp2(sink - new)
        tally *= shrink
        largest = new
    out = head * num_rows + tables.number(SEQUENCES, sequence, tables.FIRST_ROW) + step
    tl.store(LSE + out, largest + tl.log2(total), mask=step < steps)
    if TEACHER:
        tl.store(SHARE + out, tally / total, mask=step < steps)


@triton.jit(do_not_specialize=tables.COUNTS, do_not_specialize_on_alignment=tables.STATISTICS)
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
    if row < tables.number(SEQUENCES, sequence, tables.STEPS):
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


@triton.jit(do_not_specialize=tables.COUNTS, do_not_specialize_on_alignment=tables.STATISTICS)
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
    steps = tables.number(SEQUENCES, sequence, tables.STEPS)
    last = tables.number(SEQUENCES, sequence, tables.STUDENT_POSITION) + tl.minimum(row + BM, steps) - 1
    offset, width, start = tables.block_of(SEQUENCES, sequence, block, window, WINDOWED, ROWS)
    column = tl.program_id(0) * BN
    if (row < steps) & (column < width) & (start + column <= last):
        key = start + column + tl.arange(0, BN)
        link = tl.load(LINKED + tables.field(SEQUENCES, sequence, tables.LINKS) + key, mask=key <= last, other=-1)
        if tl.max(link, 0) >= 0:
            shared = link >= 0
            if TEACHER:
                key = link // 8
            Q += tables.offset_of(SEQUENCES, sequence, tables.TEACHER_QUERY if TEACHER else tables.STUDENT_QUERY)
            K += tables.offset_of(SEQUENCES, sequence, tables.TEACHER_KEY if TEACHER else tables.STUDENT_KEY)
            step = row + tl.arange(0, BM)
            inside = step < steps
            statistics = tables.number(SEQUENCES, sequence, tables.FIRST_ROW) + step
            total = tl.zeros((BM, BN), tl.float32)
            for first in range(0, num_heads, HEADS):
                k = tl.trans(tables.vectors(K + (first // GROUP) * k_h, key, k_n, shared, D, DP, True))
                for i in tl.static_range(HEADS):
                    q = tables.vectors(Q + (first + i) * q_h, step, q_n, inside, D, DP, True)
                    lse = tl.load(LSE + (first + i) * num_rows + statistics, mask=inside, other=0.0)
                    logit = tables.logits(tl.dot(q, k, input_precision=PRECISION), scale, cap, CAPPED)
                    total += tl.exp2(logit - lse[:, None])
            out = (offset - plane_begin.to(tl.int64) * (ROWS * ROWS)) + (inner + tl.arange(0, BM))[:, None] * width
            tl.store(PLANE + out + (column + tl.arange(0, BN))[None, :], total / num_heads)


@triton.jit(do_not_specialize=tables.COUNTS, do_not_specialize_on_alignment=tables.STATISTICS)
def comparison(
    PLANE_S, PLANE_T, CENTRED, SEQUENCES, BLOCKS, LINKED, PERMUTED, SHARE, WEIGHT, READINGS,
    first_block, plane_begin, num_rows, num_heads, window_s, window_t, beta,
    KIND: tl.constexpr, HANDLING: tl.constexpr, WINDOWED: tl.constexpr, GRADIENT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step: its readings, and weight·c/(H·m) of the loss's formula in its row of CENTRED."""
    block = first_block + tl.program_id(0) // ROWS
    inner = tl.program_id(0) % ROWS
    sequence = tl.load(BLOCKS + block * 2)
    block = tl.load(BLOCKS + block * 2 + 1).to(tl.int32)
    step = block * ROWS + inner
    if step < tables.number(SEQUENCES, sequence, tables.STEPS):
        offset, width, start = tables.block_of(SEQUENCES, sequence, block, window_s, WINDOWED, ROWS)
        position = tables.number(SEQUENCES, sequence, tables.STUDENT_POSITION) + step
        other_position = tables.number(SEQUENCES, sequence, tables.TEACHER_POSITION) + step
        statistics = tables.number(SEQUENCES, sequence, tables.FIRST_ROW) + step
        LINKED += tables.field(SEQUENCES, sequence, tables.LINKS)
        PERMUTED += tables.field(SEQUENCES, sequence, tables.LINKS)
        PLANE_S += offset - plane_begin.to(tl.int64) * (ROWS * ROWS) + inner * width
        PLANE_T += offset - plane_begin.to(tl.int64) * (ROWS * ROWS) + inner * width
        CENTRED += offset + inner * width
        row = (PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t)

        head = tl.arange(0, HEADS)
        share = tl.load(SHARE + head * num_rows + statistics, mask=head < num_heads, other=0.0)
        solution = tl.sum(share, 0) / num_heads
        support, parts = _masses(row, WINDOWED, BLOCK)
        student_mass, teacher_mass, prompt_mass = support
        shared_mass, template_mass, first_mass = parts
        boost, shuffled_boost, total = _boosts(row, solution, teacher_mass, prompt_mass, WINDOWED, HANDLING, BLOCK)
        target_usable = (total < LEAST_MASS) == 0
        scale = tl.where(target_usable, 1.0 / tl.where(target_usable, total, 1.0), 0.0)
        student_usable = (student_mass < LEAST_MASS) == 0
        student_scale = tl.where(student_usable, 1.0 / tl.where(student_usable, student_mass, 1.0), 0.0)
        usable = student_usable & ((teacher_mass < LEAST_MASS) == 0)

        scales = (boost, shuffled_boost, scale, student_scale)
        divergence, student_entropy, teacher_entropy, centre = _sums(
            row, scales, beta, KIND, HANDLING, WINDOWED, BLOCK
        )  # fmt: skip
        READINGS += statistics
        tl.store(READINGS, tl.where(usable, divergence, 0.0))
        both = solution + teacher_mass
        tl.store(READINGS + num_rows, solution / tl.where(both < LEAST_MASS, LEAST_MASS, both))
        tl.store(READINGS + 2 * num_rows, teacher_mass)
        tl.store(READINGS + 3 * num_rows, student_entropy)
        tl.store(READINGS + 4 * num_rows, teacher_entropy)
        shared_mass = tl.where(shared_mass < LEAST_MASS, LEAST_MASS, shared_mass)
        tl.store(READINGS + 5 * num_rows, template_mass / shared_mass)
        tl.store(READINGS + 6 * num_rows, first_mass / shared_mass)

        if GRADIENT:
            factor = tl.where(usable, tl.load(WEIGHT + statistics) * student_scale / num_heads, 0.0)
            for first in range(0, position - start + 1, BLOCK):
                column = first + tl.arange(0, BLOCK)
                student, target, seen = _both_at(row, scales, column, HANDLING, WINDOWED)
                centred = tl.where(seen, (slope(target, student, beta, KIND) - centre) * factor, 0.0)
                tl.store(CENTRED + column, centred.to(CENTRED.dtype.element_ty), mask=column <= position - start)


@triton.jit
def _masses(row, WINDOWED: tl.constexpr, BLOCK: tl.constexpr):
    """The student's and the teacher's attention on the support, and the teacher's on the prompt positions there; the
    teacher's on all shared positions, compared or not, on the template's tokens, and on the first one."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    student_sum = tl.zeros((BLOCK,), tl.float32)
    teacher_sum = tl.zeros((BLOCK,), tl.float32)
    prompt_sum = tl.zeros((BLOCK,), tl.float32)
    shared_sum = tl.zeros((BLOCK,), tl.float32)
    template_sum = tl.zeros((BLOCK,), tl.float32)
    first_sum = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, position - start + 1, BLOCK):
        column = first + tl.arange(0, BLOCK)
        link, reached = _link_at(row, column, WINDOWED)
        seen = reached & (link & 2 != 0)
        shared = tl.load(PLANE_T + column, mask=reached, other=0.0)
        student_sum += tl.load(PLANE_S + column, mask=seen, other=0.0)
        teacher_sum += tl.where(seen, shared, 0.0)
        prompt_sum += tl.where(seen & (link & 1 != 0), shared, 0.0)
        shared_sum += shared
        template_sum += tl.where(link & 4 != 0, shared, 0.0)
        first_sum += tl.where(start + column == 0, shared, 0.0)
    support = (tl.sum(student_sum, 0), tl.sum(teacher_sum, 0), tl.sum(prompt_sum, 0))
    return support, (tl.sum(shared_sum, 0), tl.sum(template_sum, 0), tl.sum(first_sum, 0))


@triton.jit
def _boosts(
    row, solution, teacher_mass, prompt_mass, WINDOWED: tl.constexpr, HANDLING: tl.constexpr, BLOCK: tl.constexpr
):
    """How much of the solution's attention a prompt position gets, per unit of its own attention and per unit of the
    attention that the permutation gives it; and the target's mass with it."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    boost = 0.0
    shuffled_boost = 0.0
    total = teacher_mass
    if HANDLING != PROJECT:
        has_prompt = (prompt_mass < LEAST_MASS) == 0
        boost = tl.where(has_prompt, solution / tl.where(has_prompt, prompt_mass, 1.0), 0.0)
        total += tl.where(has_prompt, solution, 0.0)
    if HANDLING == SHUFFLE:
        shuffled_sum = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, position - start + 1, BLOCK):
            column = first + tl.arange(0, BLOCK)
            teacher, _, in_prompt = _teacher_at(row, column, WINDOWED)
            shuffled_sum += _received(row, teacher, in_prompt, column, WINDOWED)
        shuffled_mass = tl.sum(shuffled_sum, 0)
        # If less than LEAST_MASS of the prompt's mass arrives, the shares are not permuted.
        arrives = has_prompt & (shuffled_mass >= LEAST_MASS * prompt_mass)
        shuffled_boost = tl.where(arrives, solution / tl.where(arrives, shuffled_mass, 1.0), 0.0)
        boost = tl.where(arrives, 0.0, boost)
    return boost, shuffled_boost, total


@triton.jit
def _sums(
    row, scales, beta, KIND: tl.constexpr, HANDLING: tl.constexpr, WINDOWED: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """The divergence, both entropies, and Σ_j A^S_j g_j."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    divergence = tl.zeros((BLOCK,), tl.float32)
    student_entropy = tl.zeros((BLOCK,), tl.float32)
    teacher_entropy = tl.zeros((BLOCK,), tl.float32)
    mean_slope = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, position - start + 1, BLOCK):
        column = first + tl.arange(0, BLOCK)
        student, target, _ = _both_at(row, scales, column, HANDLING, WINDOWED)
        divergence += terms(target, student, beta, KIND)
        student_entropy -= student * log(student)
        teacher_entropy -= target * log(target)
        mean_slope += slope(target, student, beta, KIND) * student
    return tl.sum(divergence, 0), tl.sum(student_entropy, 0), tl.sum(teacher_entropy, 0), tl.sum(mean_slope, 0)


@triton.jit
def _both_at(row, scales, column, HANDLING: tl.constexpr, WINDOWED: tl.constexpr):
    """The student's row and the teacher's target at some columns, both renormalised; and which are on the support."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    boost, shuffled_boost, scale, student_scale = scales
    teacher, seen, in_prompt = _teacher_at(row, column, WINDOWED)
    student = tl.load(PLANE_S + column, mask=seen, other=0.0) * student_scale
    total = teacher
    if HANDLING != PROJECT:
        total += tl.where(in_prompt, teacher, 0.0) * boost
    if HANDLING == SHUFFLE:
        total += shuffled_boost * _received(row, teacher, in_prompt, column, WINDOWED)
    return student, total * scale, seen


@triton.jit
def _received(row, teacher, in_prompt, column, WINDOWED: tl.constexpr):
    """The attention that the permutation gives each prompt position within the teacher's reach, not normalised."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    source = tl.load(PERMUTED + start + column, mask=in_prompt, other=-1) - start
    moved, _, from_prompt = _teacher_at(row, source, WINDOWED)
    return tl.where(from_prompt & (teacher > 0), moved, 0.0)


@triton.jit
def _teacher_at(row, column, WINDOWED: tl.constexpr):
    """The teacher's row at columns, 0 off the support; and which columns are on the support, and in the prompt."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    link, reached = _link_at(row, column, WINDOWED)
    seen = reached & (link & 2 != 0)
    return tl.load(PLANE_T + column, mask=seen, other=0.0), seen, seen & (link & 1 != 0)


@triton.jit
def _link_at(row, column, WINDOWED: tl.constexpr):
    """The links of columns, and which of these are shared positions that both queries see."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    key = start + column
    link = tl.load(LINKED + key, mask=(column >= 0) & (key <= position), other=-1)
    reached = (link >= 0) & tables.sees(position, key, window_s, WINDOWED)
    return link, reached & tables.sees(other_position, link // 8, window_t, WINDOWED)
