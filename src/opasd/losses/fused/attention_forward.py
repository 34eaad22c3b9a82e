"""Kernels of the attention loss's forward pass; `attention` says what each is for and what it costs."""

import triton
import triton.language as tl

from opasd.losses.divergence import SMALLEST as SMALLEST_NUMBER
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
from opasd.losses.projection import LEAST_MASS as LEAST_MASS_OF_A_ROW

# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

FORWARD_KL, REVERSE_KL, JSD = (tl.constexpr(i) for i in range(3))
PROJECT, REDISTRIBUTE, SHUFFLE = (tl.constexpr(i) for i in range(3))
SMALLEST = tl.constexpr(SMALLEST_NUMBER)
LEAST_MASS = tl.constexpr(LEAST_MASS_OF_A_ROW)


# ---------------------------------------------------------------------------------------------------- normalisers


@triton.jit
def _normaliser_span(
    q, K, k_n, SOLUTION, position, low, high, end, window, scale, cap, largest, total, tally,
    MASKED: tl.constexpr, TALLY: tl.constexpr, TEACHER: tl.constexpr, CAPPED: tl.constexpr, WINDOWED: tl.constexpr,
    D: tl.constexpr, DP: tl.constexpr, BN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
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
    largest = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    tally = tl.zeros((BM,), tl.float32)

    low, full_low, full_high, high = spans(first, last, window, WINDOWED, BN)
    if WINDOWED:
        largest, total, tally = _normaliser_span(
            q, K, k_n, SOLUTION, position, low, full_low, high, window, scale, cap, largest, total, tally,
            True, TEACHER, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION,
        )  # fmt: skip
    if TEACHER:
        begin = number(SEQUENCES, sequence, SOLUTION_BEGIN) // BN * BN
        end = tl.cdiv(number(SEQUENCES, sequence, SOLUTION_END), BN) * BN
        begin = tl.minimum(tl.maximum(begin, full_low), full_high)
        end = tl.minimum(tl.maximum(end, begin), full_high)
        largest, total, tally = _normaliser_span(
            q, K, k_n, SOLUTION, position, full_low, begin, high, window, scale, cap, largest, total, tally,
            False, False, True, CAPPED, WINDOWED, D, DP, BN, PRECISION,
        )  # fmt: skip
        largest, total, tally = _normaliser_span(
            q, K, k_n, SOLUTION, position, begin, end, high, window, scale, cap, largest, total, tally,
            False, True, True, CAPPED, WINDOWED, D, DP, BN, PRECISION,
        )  # fmt: skip
        full_low = end
    largest, total, tally = _normaliser_span(
        q, K, k_n, SOLUTION, position, full_low, full_high, high, window, scale, cap, largest, total, tally,
        False, False, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION,
    )  # fmt: skip
    largest, total, tally = _normaliser_span(
        q, K, k_n, SOLUTION, position, full_high, high, high, window, scale, cap, largest, total, tally,
        True, TEACHER, TEACHER, CAPPED, WINDOWED, D, DP, BN, PRECISION,
    )  # fmt: skip
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
    """Base-2 log of every step's and head's softmax normaliser, and of the teacher's the solution's share."""
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


# -------------------------------------------------------------------------------------------------- averaged rows


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


# ----------------------------------------------------------------------------------------------------- comparison


@triton.jit
def _shared_at(PLANE, LINKED, start, column, position, other_position, window_s, window_t, WINDOWED: tl.constexpr):
    """A plane's values of one row at columns; 0 where a key is not shared or one role does not see it."""
    key = start + column
    link = tl.load(LINKED + key, mask=(column >= 0) & (key <= position), other=-1)
    seen = (link >= 0) & sees(position, key, window_s, WINDOWED) & sees(other_position, link // 2, window_t, WINDOWED)
    return tl.load(PLANE + column, mask=seen, other=0.0), seen, seen & (link % 2 == 1)


@triton.jit
def _log(probability):
    return tl.log(tl.maximum(probability, SMALLEST, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def _slope(target, student, beta, KIND: tl.constexpr):
    if KIND == FORWARD_KL:
        return 1.0 - target / tl.maximum(student, SMALLEST, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == REVERSE_KL:
        return _log(student) - _log(target)
    else:
        return (1.0 - beta) * (_log(student) - _log(student + beta * (target - student)))


@triton.jit
def _terms(target, student, beta, KIND: tl.constexpr):
    if KIND == FORWARD_KL:
        return target * (_log(target) - _log(student))
    elif KIND == REVERSE_KL:
        return student * (_log(student) - _log(target))
    else:
        mixture = _log(student + beta * (target - student))
        return beta * target * (_log(target) - mixture) + (1.0 - beta) * student * (_log(student) - mixture)


@triton.jit
def _received(
    teacher, in_prompt, column, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t,
    WINDOWED: tl.constexpr,
):  # fmt: skip
    """What the permutation gives each prompt position within the teacher's reach, before normalising."""
    source = tl.load(PERMUTED + start + column, mask=in_prompt, other=-1) - start
    given, _, from_prompt = _shared_at(
        PLANE_T, LINKED, start, source, position, other_position, window_s, window_t, WINDOWED
    )
    return tl.where(from_prompt & (teacher > 0), given, 0.0)


@triton.jit
def _target(
    teacher, in_prompt, column, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t,
    boost, shuffled_boost, scale, WINDOWED: tl.constexpr, HANDLING: tl.constexpr,
):  # fmt: skip
    """The teacher's target: its attention plus the shares of the solution's, renormalised."""
    total = teacher
    if HANDLING != PROJECT:
        total += tl.where(in_prompt, teacher, 0.0) * boost
    if HANDLING == SHUFFLE:
        total += shuffled_boost * _received(
            teacher, in_prompt, column, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t,
            WINDOWED,
        )  # fmt: skip
    return total * scale


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=STATISTICS)
def comparison(
    PLANE_S, PLANE_T, CENTRED, SEQUENCES, BLOCKS, LINKED, PERMUTED, SHARE, WEIGHT, READINGS,
    first_block, plane_begin, num_rows, num_heads, window_s, window_t, beta,
    KIND: tl.constexpr, HANDLING: tl.constexpr, WINDOWED: tl.constexpr, GRADIENT: tl.constexpr,
    HEADS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One step: its readings, and weight·c/(H·m) of the loss's formula in the place of its row."""
    block = first_block + tl.program_id(0) // ROWS
    inner = tl.program_id(0) % ROWS
    sequence = tl.load(BLOCKS + block * 2)
    block = tl.load(BLOCKS + block * 2 + 1).to(tl.int32)
    step = block * ROWS + inner
    if step < number(SEQUENCES, sequence, STEPS):
        offset, width, start = block_of(SEQUENCES, sequence, block, window_s, WINDOWED, ROWS)
        position = number(SEQUENCES, sequence, STUDENT_POSITION) + step
        other_position = number(SEQUENCES, sequence, TEACHER_POSITION) + step
        row = number(SEQUENCES, sequence, FIRST_ROW) + step
        LINKED += field(SEQUENCES, sequence, LINKS)
        PERMUTED += field(SEQUENCES, sequence, LINKS)
        PLANE_S += offset - plane_begin.to(tl.int64) * (ROWS * ROWS) + inner * width
        PLANE_T += offset - plane_begin.to(tl.int64) * (ROWS * ROWS) + inner * width
        CENTRED += offset + inner * width

        head = tl.arange(0, HEADS)
        share = tl.load(SHARE + head * num_rows + row, mask=head < num_heads, other=0.0)
        solution = tl.sum(share, 0) / num_heads
        student_sum = tl.zeros((BLOCK,), tl.float32)
        teacher_sum = tl.zeros((BLOCK,), tl.float32)
        prompt_sum = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, position - start + 1, BLOCK):
            column = first + tl.arange(0, BLOCK)
            teacher, seen, in_prompt = _shared_at(
                PLANE_T, LINKED, start, column, position, other_position, window_s, window_t, WINDOWED
            )
            student_sum += tl.load(PLANE_S + column, mask=seen, other=0.0)
            teacher_sum += teacher
            prompt_sum += tl.where(in_prompt, teacher, 0.0)
        student_mass = tl.sum(student_sum, 0)
        teacher_mass = tl.sum(teacher_sum, 0)
        prompt_mass = tl.sum(prompt_sum, 0)

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
                teacher, _, in_prompt = _shared_at(
                    PLANE_T, LINKED, start, column, position, other_position, window_s, window_t, WINDOWED
                )
                shuffled_sum += _received(
                    teacher, in_prompt, column, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s,
                    window_t, WINDOWED,
                )  # fmt: skip
            shuffled_mass = tl.sum(shuffled_sum, 0)
            # As shares of the prompt's mass; where less than LEAST_MASS of it arrives, the shares stay where they were.
            arrives = has_prompt & (shuffled_mass >= LEAST_MASS * prompt_mass)
            shuffled_boost = tl.where(arrives, solution / tl.where(arrives, shuffled_mass, 1.0), 0.0)
            boost = tl.where(arrives, 0.0, boost)
        target_usable = (total < LEAST_MASS) == 0
        scale = tl.where(target_usable, 1.0 / tl.where(target_usable, total, 1.0), 0.0)
        student_usable = (student_mass < LEAST_MASS) == 0
        student_scale = tl.where(student_usable, 1.0 / tl.where(student_usable, student_mass, 1.0), 0.0)
        usable = student_usable & ((teacher_mass < LEAST_MASS) == 0)

        divergence_sum = tl.zeros((BLOCK,), tl.float32)
        student_entropy = tl.zeros((BLOCK,), tl.float32)
        teacher_entropy = tl.zeros((BLOCK,), tl.float32)
        mean_slope = tl.zeros((BLOCK,), tl.float32)
        for first in range(0, position - start + 1, BLOCK):
            column = first + tl.arange(0, BLOCK)
            teacher, seen, in_prompt = _shared_at(
                PLANE_T, LINKED, start, column, position, other_position, window_s, window_t, WINDOWED
            )
            student = tl.load(PLANE_S + column, mask=seen, other=0.0) * student_scale
            target = _target(
                teacher, in_prompt, column, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s,
                window_t, boost, shuffled_boost, scale, WINDOWED, HANDLING,
            )  # fmt: skip
            divergence_sum += _terms(target, student, beta, KIND)
            student_entropy -= student * _log(student)
            teacher_entropy -= target * _log(target)
            mean_slope += _slope(target, student, beta, KIND) * student
        divergence = tl.where(usable, tl.sum(divergence_sum, 0), 0.0)
        READINGS += row
        tl.store(READINGS, divergence)
        both = solution + teacher_mass
        tl.store(READINGS + num_rows, solution / tl.where(both < LEAST_MASS, LEAST_MASS, both))
        tl.store(READINGS + 2 * num_rows, teacher_mass)
        tl.store(READINGS + 3 * num_rows, tl.sum(student_entropy, 0))
        tl.store(READINGS + 4 * num_rows, tl.sum(teacher_entropy, 0))

        if GRADIENT:
            centre = tl.sum(mean_slope, 0)
            factor = tl.where(usable, tl.load(WEIGHT + row) * student_scale / num_heads, 0.0)
            for first in range(0, position - start + 1, BLOCK):
                column = first + tl.arange(0, BLOCK)
                teacher, seen, in_prompt = _shared_at(
                    PLANE_T, LINKED, start, column, position, other_position, window_s, window_t, WINDOWED
                )
                student = tl.load(PLANE_S + column, mask=seen, other=0.0) * student_scale
                target = _target(
                    teacher, in_prompt, column, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s,
                    window_t, boost, shuffled_boost, scale, WINDOWED, HANDLING,
                )  # fmt: skip
                centred = tl.where(seen, (_slope(target, student, beta, KIND) - centre) * factor, 0.0)
                tl.store(CENTRED + column, centred.to(CENTRED.dtype.element_ty), mask=column <= position - start)
