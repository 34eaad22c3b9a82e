"""The token loss of a chunk: matrix products by the library, everything between them in one kernel over rows.

A chunk's two buffers [C, V] are in the hidden states' own precision: the student's products a_S = h_S Wᵀ, and the
*difference* of the teacher's from them, Δ = a_T − a_S. What rounding a_S to bfloat16 loses is then common to both
distributions, where two roundings would swamp the small differences between a model and itself: with one head for
both, Δ = (h_T − h_S) Wᵀ, and equal hidden states give exactly 0. The kernel goes over a row twice (log-sum-exp;
divergence and gradient), or three times where the gradient needs a sum that the first pass cannot know (reverse KL,
JSD, pointwise clipping), each time in the other direction: what was read last is still in the cache. The gradient
replaces the student's products in place. Nothing waits for the device, and every sum has one order.

Shapes as in `opasd.losses.token`; a row is read in tiles of [L lanes, W neighbours], sums are kept per lane.
Logits are in base 2 here: x = z / temperature · log₂ e.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from opasd.losses.divergence import LOG_SMALLEST, SMALLEST
from opasd.losses.inputs import OutputHead
from opasd.losses.token import TokenComparison

MEMORY_BYTES = 2**30
"""What a chunk and the gradient of all hidden states may take together, where the chunk is not given."""
ROUND_TOKENS = 512
"""Chunks are multiples of this: the matrix products lose speed between."""

LOG2_E, LN_2 = math.log2(math.e), math.log(2)
FLOOR: tl.constexpr = tl.constexpr(math.log2(SMALLEST))
NATS: tl.constexpr = tl.constexpr(LN_2)
LOWEST: tl.constexpr = tl.constexpr(-1e30)
"""Stands for −∞ where the difference of two of them is taken."""
WIDTH: tl.constexpr = tl.constexpr(8)
MAX_LANES = 512
KINDS = {"forward_kl": 0, "reverse_kl": 1, "jsd": 2}
CLIPS = {"none": 0, "per_token": 1, "pointwise": 2}


def default_chunk_tokens(hidden_TE: Tensor, vocabulary: int, top_k: int | None) -> int:
    """As many tokens as MEMORY_BYTES allows; a quarter of it is for them however long the gradient."""
    num_tokens, size = hidden_TE.shape
    buffers, itemsize = (2 if top_k is None else 3), hidden_TE.dtype.itemsize
    free = max(MEMORY_BYTES - num_tokens * size * itemsize, MEMORY_BYTES // 4)
    largest = max(1, free // (buffers * vocabulary * itemsize + 8 * size))
    return largest - largest % ROUND_TOKENS if largest > ROUND_TOKENS else largest


def judge(
    hidden_CE: Tensor,
    student_head: OutputHead,
    teacher_hidden_CE: Tensor,
    teacher_head: OutputHead,
    compare: TokenComparison,
    needs_grad: bool,
) -> tuple[Tensor, Tensor | None]:
    """Readings [C, 4] and d D / d (hidden Wᵀ + bias) [C, V]."""
    with torch.cuda.device_of(hidden_CE):
        student_CV = hidden_CE @ student_head.weight_VE.T
        if _same(student_head.weight_VE, teacher_head.weight_VE):
            difference_CV = (teacher_hidden_CE - hidden_CE) @ teacher_head.weight_VE.T
        else:
            difference_CV = torch.addmm(student_CV, teacher_hidden_CE, teacher_head.weight_VE.T, beta=-1)
        row = _Row(student_CV, difference_CV, student_head, teacher_head, compare.temperature)
        step = _judge_all if compare.top_k is None else _judge_top
        readings_C4 = step(row, compare, needs_grad)
    return readings_C4, student_CV if needs_grad else None


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


class _Row:
    """The buffers and heads of a chunk, as kernels take them."""

    def __init__(
        self, student_CV: Tensor, difference_CV: Tensor, student: OutputHead, teacher: OutputHead, temperature: float
    ) -> None:
        self.student_CV, self.difference_CV, self.temperature = student_CV, difference_CV, temperature
        self.student, self.teacher = student, teacher
        self.num_tokens, self.vocabulary = student_CV.shape
        lanes = min(MAX_LANES, triton.next_power_of_2(triton.cdiv(self.vocabulary, WIDTH.value)))
        self.arguments = (student_CV, difference_CV, student.bias_V, teacher.bias_V, self.vocabulary)
        self.numbers = (*_numbers(student, temperature), *_numbers(teacher, temperature))
        self.options: dict[str, Any] = {
            "CAPS": (student.softcap is not None) + 2 * (teacher.softcap is not None),
            "LANES": lanes,
            "num_warps": max(1, lanes // 32),
        }

    @property
    def slope(self) -> float:
        """d x / d (hidden Wᵀ + bias) in nats, before the soft cap."""
        return self.student.scale / self.temperature


def _numbers(head: OutputHead, temperature: float) -> tuple[float, float]:
    """`inner` and `gain`: x = gain · raw, or with a soft cap x = gain · tanh(inner · ln 2 / 2 · raw)."""
    if head.softcap is None:
        return 0.0, head.scale / temperature * LOG2_E
    return 2 * LOG2_E * head.scale / head.softcap, head.softcap / temperature * LOG2_E


def _judge_all(row: _Row, compare: TokenComparison, needs_grad: bool) -> Tensor:
    readings_C4 = torch.empty(row.num_tokens, 4, dtype=torch.float32, device=row.student_CV.device)
    choices: dict[str, Any] = {"KIND": KINDS[compare.divergence], "CLIP": CLIPS[compare.clip], "GRADIENT": needs_grad}
    _compare_rows[(row.num_tokens,)](
        *row.arguments,
        readings_C4,
        *row.numbers,
        row.slope,
        compare.jsd_beta,
        compare.clip_threshold,
        **choices,
        **row.options,
    )
    return readings_C4


def _judge_top(row: _Row, compare: TokenComparison, needs_grad: bool) -> Tensor:
    """The teacher's k likeliest tokens here; the sums over all others, and their gradient, by kernels."""
    assert compare.top_k is not None
    teacher_CV = row.student_CV + row.difference_CV
    if row.teacher.bias_V is not None:
        teacher_CV += row.teacher.bias_V
    top_CK = teacher_CV.topk(compare.top_k, -1).indices
    del teacher_CV
    student_CK = row.student_CV.gather(-1, top_CK).float()
    teacher_CK = student_CK + row.difference_CV.gather(-1, top_CK).float()
    student_CK, teacher_CK = _finish(student_CK, row.student, top_CK), _finish(teacher_CK, row.teacher, top_CK)
    row.student_CV.scatter_(-1, top_CK, -torch.inf)  # out of the others' sums

    rest_3C = torch.empty(3, row.num_tokens, dtype=torch.float32, device=row.student_CV.device)
    _sum_rest[(row.num_tokens,)](*row.arguments, rest_3C, *row.numbers, **row.options)
    student_rest_C, teacher_rest_C, entropy_C = rest_3C
    student_log_CK = _lump(student_CK / compare.temperature, student_rest_C)
    *values_C, slope_CK = compare.judge(_lump(teacher_CK / compare.temperature, teacher_rest_C), student_log_CK)
    probability_CK = student_log_CK.exp()
    entropy_C = entropy_C * probability_CK[:, -1] - torch.linalg.vecdot(probability_CK, student_log_CK)
    if needs_grad:
        grad_CK = (slope_CK - probability_CK * slope_CK.sum(-1, keepdim=True)) * row.slope
        _spread_rest[(row.num_tokens,)](
            row.student_CV,
            row.student.bias_V,
            row.vocabulary,
            student_rest_C,
            grad_CK[:, -1].contiguous(),
            *_numbers(row.student, row.temperature),
            **row.options,
        )
        grad_CK = grad_CK[:, :-1]
        if row.student.softcap is not None:
            grad_CK = grad_CK * (1 - (student_CK / row.student.softcap).square())
        row.student_CV.scatter_(-1, top_CK, grad_CK.to(row.student_CV.dtype))
    return torch.stack([*values_C, entropy_C], -1)


def _finish(product_CK: Tensor, head: OutputHead, top_CK: Tensor) -> Tensor:
    """Logits from products, as `OutputHead.logits` ends."""
    if head.bias_V is not None:
        product_CK = product_CK + head.bias_V[top_CK]
    logits_CK = product_CK * head.scale
    return logits_CK if head.softcap is None else head.softcap * torch.tanh(logits_CK / head.softcap)


def _lump(top_CK: Tensor, rest_C: Tensor) -> Tensor:
    """Log-probabilities [C, K + 1] of the chosen entries and of all others together, floored."""
    return torch.cat([top_CK, rest_C[:, None] * LN_2], -1).log_softmax(-1).clamp_min_(LOG_SMALLEST)


@triton.jit
def _compare_rows(
    STUDENT,
    DIFFERENCE,
    STUDENT_BIAS,
    TEACHER_BIAS,
    vocabulary,
    READINGS,
    student_inner,
    student_gain,
    teacher_inner,
    teacher_gain,
    slope,
    beta,
    threshold,
    KIND: tl.constexpr,
    CLIP: tl.constexpr,
    GRADIENT: tl.constexpr,
    CAPS: tl.constexpr,
    LANES: tl.constexpr,
):
    """One row: readings, and with GRADIENT the gradient in place of the student's products."""
    row = tl.program_id(0).to(tl.int64)
    STUDENT += row * vocabulary
    DIFFERENCE += row * vocabulary
    student = (STUDENT_BIAS, student_inner, student_gain)
    teacher = (TEACHER_BIAS, teacher_inner, teacher_gain)
    tiles = tl.cdiv(vocabulary, LANES * WIDTH)
    student_lse, teacher_lse, lowest = _sums(STUDENT, DIFFERENCE, vocabulary, student, teacher, CAPS, LANES)

    # Σ_v u_v is −1 for the forward KL, unless an entry is clipped or its logarithm is at the floor.
    THREE: tl.constexpr = KIND != 0 or CLIP == 2
    total = -1.0
    if GRADIENT:  # noqa: SIM102 (one is decided when the kernel is compiled, the other for each row)
        if THREE or (lowest - student_lse <= FLOOR):
            total_L = tl.zeros((LANES,), tl.float32)
            for step in range(tiles):
                place_LW = _place(tiles - 1 - step, LANES)
                student_LW, teacher_LW = _logits(STUDENT, DIFFERENCE, place_LW, vocabulary, student, teacher, CAPS)
                term_LW, slope_LW, _ = _terms(student_LW - student_lse, teacher_LW - teacher_lse, beta, KIND)
                if CLIP == 2:
                    slope_LW = tl.where(term_LW > threshold, 0.0, slope_LW)
                total_L += tl.sum(slope_LW, 1)
            total = tl.sum(total_L, 0)

    divergence_L = tl.zeros((LANES,), tl.float32)
    loss_L = tl.zeros((LANES,), tl.float32)
    clipped_L = tl.zeros((LANES,), tl.float32)
    entropy_L = tl.zeros((LANES,), tl.float32)
    for step in range(tiles):
        place_LW = _place(step if THREE else tiles - 1 - step, LANES)
        student_LW, teacher_LW = _logits(STUDENT, DIFFERENCE, place_LW, vocabulary, student, teacher, CAPS)
        log_LW = student_LW - student_lse
        term_LW, slope_LW, probability_LW = _terms(log_LW, teacher_LW - teacher_lse, beta, KIND)
        divergence_L += tl.sum(term_LW, 1)
        entropy_L -= tl.sum(probability_LW * tl.maximum(log_LW, FLOOR), 1)
        if CLIP == 2:
            over_LW = term_LW > threshold
            loss_L += tl.sum(tl.where(over_LW, threshold, term_LW), 1)
            clipped_L += tl.sum(over_LW.to(tl.float32), 1)
            slope_LW = tl.where(over_LW, 0.0, slope_LW)
        if GRADIENT:
            grad_LW = (slope_LW - probability_LW * total) * slope
            _store_gradient(STUDENT, grad_LW, student_LW, place_LW, vocabulary, student_gain, CAPS & 1)

    divergence = tl.sum(divergence_L, 0)
    loss = divergence
    clipped = 0.0
    if CLIP == 1:
        loss = tl.where(divergence > threshold, threshold, divergence)
        clipped = tl.where(divergence > threshold, 1.0, 0.0)
    if CLIP == 2:
        loss = tl.sum(loss_L, 0)
        clipped = tl.sum(clipped_L, 0) / vocabulary
    tl.store(READINGS + row * 4, loss)
    tl.store(READINGS + row * 4 + 1, divergence)
    tl.store(READINGS + row * 4 + 2, clipped)
    tl.store(READINGS + row * 4 + 3, tl.sum(entropy_L, 0) * NATS)


@triton.jit
def _sum_rest(
    STUDENT,
    DIFFERENCE,
    STUDENT_BIAS,
    TEACHER_BIAS,
    vocabulary,
    REST,
    student_inner,
    student_gain,
    teacher_inner,
    teacher_gain,
    CAPS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Of the entries that are not −∞: both log-sum-exps in base 2, and the student's entropy among them in nats."""
    row = tl.program_id(0).to(tl.int64)
    STUDENT += row * vocabulary
    DIFFERENCE += row * vocabulary
    student = (STUDENT_BIAS, student_inner, student_gain)
    teacher = (TEACHER_BIAS, teacher_inner, teacher_gain)
    student_lse, teacher_lse, _ = _sums(STUDENT, DIFFERENCE, vocabulary, student, teacher, CAPS, LANES)
    entropy_L = tl.zeros((LANES,), tl.float32)
    tiles = tl.cdiv(vocabulary, LANES * WIDTH)
    for step in range(tiles):
        place_LW = _place(tiles - 1 - step, LANES)
        log_LW = (
            _logit(_load(STUDENT, place_LW, vocabulary), 0.0, place_LW, vocabulary, student, CAPS & 1) - student_lse
        )
        entropy_L -= tl.sum(tl.exp2(log_LW) * tl.maximum(log_LW, FLOOR), 1)
    num_tokens = tl.num_programs(0)
    tl.store(REST + row, student_lse)
    tl.store(REST + num_tokens + row, teacher_lse)
    tl.store(REST + 2 * num_tokens + row, tl.sum(entropy_L, 0) * NATS)


@triton.jit
def _spread_rest(
    STUDENT,
    STUDENT_BIAS,
    vocabulary,
    REST,
    GRAD,
    student_inner,
    student_gain,
    CAPS: tl.constexpr,
    LANES: tl.constexpr,
):
    """The gradient of all others together goes to each by its part of their probability."""
    row = tl.program_id(0).to(tl.int64)
    STUDENT += row * vocabulary
    student = (STUDENT_BIAS, student_inner, student_gain)
    lse = tl.load(REST + row)
    grad = tl.load(GRAD + row)
    for tile in range(tl.cdiv(vocabulary, LANES * WIDTH)):
        place_LW = _place(tile, LANES)
        student_LW = _logit(_load(STUDENT, place_LW, vocabulary), 0.0, place_LW, vocabulary, student, CAPS & 1)
        _store_gradient(
            STUDENT, tl.exp2(student_LW - lse) * grad, student_LW, place_LW, vocabulary, student_gain, CAPS & 1
        )


@triton.jit
def _sums(
    STUDENT,
    DIFFERENCE,
    vocabulary,
    student,
    teacher,
    CAPS: tl.constexpr,
    LANES: tl.constexpr,
):
    """Both log-sum-exps of a row, and the student's lowest logit."""
    student_max_L = tl.full((LANES,), LOWEST, tl.float32)
    teacher_max_L = tl.full((LANES,), LOWEST, tl.float32)
    student_sum_L = tl.zeros((LANES,), tl.float32)
    teacher_sum_L = tl.zeros((LANES,), tl.float32)
    lowest_L = tl.full((LANES,), float("inf"), tl.float32)
    for tile in range(tl.cdiv(vocabulary, LANES * WIDTH)):
        place_LW = _place(tile, LANES)
        student_LW, teacher_LW = _logits(STUDENT, DIFFERENCE, place_LW, vocabulary, student, teacher, CAPS)
        student_max_L, student_sum_L = _add(student_max_L, student_sum_L, student_LW)
        teacher_max_L, teacher_sum_L = _add(teacher_max_L, teacher_sum_L, teacher_LW)
        lowest_L = tl.minimum(lowest_L, tl.min(tl.where(place_LW < vocabulary, student_LW, float("inf")), 1))
    return _log_sum(student_max_L, student_sum_L), _log_sum(teacher_max_L, teacher_sum_L), tl.min(lowest_L, 0)


@triton.jit
def _add(max_L, sum_L, x_LW):
    """A lane's running maximum and sum of 2^(x − maximum), with some more entries."""
    new_L = tl.maximum(max_L, tl.max(x_LW, 1))
    return new_L, sum_L * tl.exp2(max_L - new_L) + tl.sum(tl.exp2(x_LW - new_L[:, None]), 1)


@triton.jit
def _log_sum(max_L, sum_L):
    top = tl.max(max_L, 0)
    lse = top + tl.log2(tl.sum(sum_L * tl.exp2(max_L - top), 0))
    return tl.where(lse < LOWEST, LOWEST, lse)


@triton.jit
def _place(tile, LANES: tl.constexpr):
    return tile * (LANES * WIDTH) + tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def _load(STUDENT, place_LW, vocabulary):
    return tl.load(STUDENT + place_LW, mask=place_LW < vocabulary, other=-float("inf")).to(tl.float32)


@triton.jit
def _logits(
    STUDENT,
    DIFFERENCE,
    place_LW,
    vocabulary,
    student,
    teacher,
    CAPS: tl.constexpr,
):
    """Both roles' logits at some places of a row; −∞ outside of it."""
    product_LW = _load(STUDENT, place_LW, vocabulary)
    difference_LW = tl.load(DIFFERENCE + place_LW, mask=place_LW < vocabulary, other=0.0).to(tl.float32)
    student_LW = _logit(product_LW, 0.0, place_LW, vocabulary, student, CAPS & 1)
    return student_LW, _logit(product_LW, difference_LW, place_LW, vocabulary, teacher, CAPS & 2)


@triton.jit
def _logit(product_LW, difference_LW, place_LW, vocabulary, head, CAP: tl.constexpr):
    """x of a head = (bias, inner, gain); −∞ stays that."""
    raw_LW = product_LW + difference_LW
    if head[0] is not None:
        raw_LW += tl.load(head[0] + place_LW, mask=place_LW < vocabulary, other=0.0).to(tl.float32)
    if CAP:
        bent_LW = 1 - 2 / (tl.exp2(raw_LW * head[1]) + 1)
        return tl.where(product_LW == -float("inf"), product_LW, bent_LW * head[2])
    return raw_LW * head[2]


@triton.jit
def _store_gradient(STUDENT, grad_LW, student_LW, place_LW, vocabulary, gain, CAP: tl.constexpr):
    """Through the soft cap, in place of the student's products."""
    if CAP:
        bent_LW = tl.maximum(student_LW / gain, -1.0)
        grad_LW *= 1 - bent_LW * bent_LW
    tl.store(STUDENT + place_LW, grad_LW.to(STUDENT.dtype.element_ty), mask=place_LW < vocabulary)


@triton.jit
def _terms(student_log_LW, teacher_log_LW, beta, KIND: tl.constexpr):
    """`divergence.log_terms` from base-2 logarithms that are not floored yet; and the student's probability."""
    student_LW, teacher_LW = tl.exp2(student_log_LW), tl.exp2(teacher_log_LW)
    student_log_LW = tl.maximum(student_log_LW, FLOOR)
    gap_LW = (tl.maximum(teacher_log_LW, FLOOR) - student_log_LW) * NATS
    if KIND == 0:
        return teacher_LW * gap_LW, tl.where(student_log_LW > FLOOR, -teacher_LW, 0.0), student_LW
    if KIND == 1:
        term_LW = -student_LW * gap_LW
        return term_LW, student_LW + term_LW, student_LW
    # log M = max + log1p(w·expm1(−|log T − log S|)), w the smaller one's weight: exact where they are equal.
    mixture_LW = _log1p(tl.where(gap_LW >= 0, 1 - beta, beta) * _expm1(-tl.abs(gap_LW)))
    slope_LW = (beta - 1) * student_LW * (tl.maximum(gap_LW, 0.0) + mixture_LW)
    return beta * teacher_LW * (tl.minimum(gap_LW, 0.0) - mixture_LW) + slope_LW, slope_LW, student_LW


@triton.jit
def _expm1(x):
    """e^x − 1 for x ≤ 0."""
    series = x * (1 + x * (0.5 + x * (0.16666667 + x * 0.041666668)))
    return tl.where(x > -0.03, series, tl.exp(x) - 1)


@triton.jit
def _log1p(x):
    """log(1 + x) for −1 < x ≤ 0."""
    series = x * (1 - x * (0.5 - x * (0.33333334 - x * 0.25)))
    return tl.where(x > -0.03, series, tl.log(1 + x))
