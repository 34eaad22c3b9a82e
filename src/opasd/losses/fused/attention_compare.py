"""The kernel of the attention loss that compares the roles' averaged rows: divergence, readings, centred slopes.

`attention.py` beside this file says what it costs. A step's `row` is a tuple: the two planes and the links at its row,
the permutation, the key of its first column, its position in each role, and the windows.
"""

import triton
import triton.language as tl

from opasd.losses.fused.attention_tables import (
    COUNTS,
    FIRST_ROW,
    LINKS,
    STATISTICS,
    STEPS,
    STUDENT_POSITION,
    TEACHER_POSITION,
    block_of,
    field,
    number,
    sees,
)
from opasd.losses.fused.divergence import log, slope, terms
from opasd.losses.projection import LEAST_MASS as LEAST_MASS_OF_A_ROW

# ruff: noqa: RUF059 (a tuple of arguments is unpacked whole)
# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

HANDLINGS = {"project": 0, "redistribute": 1, "shuffle": 2}
PROJECT, SHUFFLE = (tl.constexpr(HANDLINGS[name]) for name in ("project", "shuffle"))
LEAST_MASS = tl.constexpr(LEAST_MASS_OF_A_ROW)


@triton.jit(do_not_specialize=COUNTS, do_not_specialize_on_alignment=STATISTICS)
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
    if step < number(SEQUENCES, sequence, STEPS):
        offset, width, start = block_of(SEQUENCES, sequence, block, window_s, WINDOWED, ROWS)
        position = number(SEQUENCES, sequence, STUDENT_POSITION) + step
        other_position = number(SEQUENCES, sequence, TEACHER_POSITION) + step
        statistics = number(SEQUENCES, sequence, FIRST_ROW) + step
        LINKED += field(SEQUENCES, sequence, LINKS)
        PERMUTED += field(SEQUENCES, sequence, LINKS)
        PLANE_S += offset - plane_begin.to(tl.int64) * (ROWS * ROWS) + inner * width
        PLANE_T += offset - plane_begin.to(tl.int64) * (ROWS * ROWS) + inner * width
        CENTRED += offset + inner * width
        row = (PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t)

        head = tl.arange(0, HEADS)
        share = tl.load(SHARE + head * num_rows + statistics, mask=head < num_heads, other=0.0)
        solution = tl.sum(share, 0) / num_heads
        student_mass, teacher_mass, prompt_mass = _masses(row, WINDOWED, BLOCK)
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

        if GRADIENT:
            factor = tl.where(usable, tl.load(WEIGHT + statistics) * student_scale / num_heads, 0.0)
            for first in range(0, position - start + 1, BLOCK):
                column = first + tl.arange(0, BLOCK)
                student, target, seen = _both_at(row, scales, column, HANDLING, WINDOWED)
                centred = tl.where(seen, (slope(target, student, beta, KIND) - centre) * factor, 0.0)
                tl.store(CENTRED + column, centred.to(CENTRED.dtype.element_ty), mask=column <= position - start)


@triton.jit
def _masses(row, WINDOWED: tl.constexpr, BLOCK: tl.constexpr):
    """The student's and the teacher's attention on the support, and the teacher's on the prompt's part of it."""
    PLANE_S, PLANE_T, LINKED, PERMUTED, start, position, other_position, window_s, window_t = row
    student_sum = tl.zeros((BLOCK,), tl.float32)
    teacher_sum = tl.zeros((BLOCK,), tl.float32)
    prompt_sum = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, position - start + 1, BLOCK):
        column = first + tl.arange(0, BLOCK)
        teacher, seen, in_prompt = _teacher_at(row, column, WINDOWED)
        student_sum += tl.load(PLANE_S + column, mask=seen, other=0.0)
        teacher_sum += teacher
        prompt_sum += tl.where(in_prompt, teacher, 0.0)
    return tl.sum(student_sum, 0), tl.sum(teacher_sum, 0), tl.sum(prompt_sum, 0)


@triton.jit
def _boosts(
    row, solution, teacher_mass, prompt_mass, WINDOWED: tl.constexpr, HANDLING: tl.constexpr, BLOCK: tl.constexpr
):
    """What the prompt's positions get of the solution's attention, per unit of their own and of the permuted one's.

    The third number is the target's mass with it.
    """
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
        # As shares of the prompt's mass; if less than LEAST_MASS of it arrives, the shares are not permuted.
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
    key = start + column
    link = tl.load(LINKED + key, mask=(column >= 0) & (key <= position), other=-1)
    seen = (link >= 0) & sees(position, key, window_s, WINDOWED) & sees(other_position, link // 2, window_t, WINDOWED)
    return tl.load(PLANE_T + column, mask=seen, other=0.0), seen, seen & (link % 2 == 1)
