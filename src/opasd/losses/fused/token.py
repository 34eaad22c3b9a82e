"""The token loss of a chunk: matrix products by the library, everything between them in one kernel over rows.

A chunk's two buffers [C, V] are in the hidden states' own precision: the student's products a_S = h_S Wᵀ, and the
*difference* of the teacher's from them, Δ = a_T − a_S. The error of rounding a_S to bfloat16 is then common to both
distributions; two roundings would swamp the small differences between a model and itself. With one head for both,
Δ = (h_T − h_S) Wᵀ, and equal hidden states give exactly 0.

The kernel goes over a row twice (log-sum-exp; divergence and gradient), or three times where the gradient needs a sum
that the first pass cannot know (reverse KL, JSD, pointwise clipping). Each pass runs in the opposite direction of the
one before: the cache still holds what was read last. The gradient replaces the student's products in place. Nothing
waits for the device, and every sum has one order.

Shapes as in `opasd.losses.token`.
"""

import math
from typing import Any

import torch
import triton
from torch import Tensor

from opasd.losses.divergence import LOG_SMALLEST
from opasd.losses.fused.token_kernels import CLIPS, WIDTH, compare_rows, spread_rest, sum_rest
from opasd.losses.inputs import OutputHead
from opasd.losses.token_chunked import TokenComparison

MEMORY_BYTES = 2**30
"""The memory of a chunk and of the gradient of all hidden states together, if the chunk's size is not given."""
ROUND_TOKENS = 512
"""Chunks are multiples of this: the matrix products lose speed between."""
MAX_LANES = 512
LOG2_E, LN_2 = math.log2(math.e), math.log(2)


def default_chunk_tokens(hidden_TE: Tensor, vocabulary: int, top_k: int | None) -> int:
    """As many tokens as MEMORY_BYTES allows; they get a quarter of it even if the gradient needs more than the rest."""
    num_tokens, size = hidden_TE.shape
    buffers, itemsize = (2 if top_k is None else 3), hidden_TE.dtype.itemsize
    free = max(MEMORY_BYTES - num_tokens * size * itemsize, MEMORY_BYTES // 4)
    largest = max(1, free // (buffers * vocabulary * itemsize + 8 * size))
    return largest - largest % ROUND_TOKENS if largest > ROUND_TOKENS else largest


def compare_chunk(
    hidden_CE: Tensor,
    student_head: OutputHead,
    teacher_hidden_CE: Tensor,
    teacher_head: OutputHead,
    comparison: TokenComparison,
    needs_grad: bool,
) -> tuple[Tensor, Tensor | None]:
    """Readings [C, 4], and with `needs_grad` d D / d (hidden Wᵀ + bias) [C, V]."""
    with torch.cuda.device_of(hidden_CE):
        student_CV = hidden_CE @ student_head.weight_VE.T
        if _same(student_head.weight_VE, teacher_head.weight_VE):
            difference_CV = (teacher_hidden_CE - hidden_CE) @ teacher_head.weight_VE.T
        else:
            difference_CV = torch.addmm(student_CV, teacher_hidden_CE, teacher_head.weight_VE.T, beta=-1)
        rows = _Rows(student_CV, difference_CV, student_head, teacher_head, comparison.temperature)
        compare = _compare_all if comparison.top_k is None else _compare_top
        readings_C4 = compare(rows, comparison, needs_grad)
    return readings_C4, student_CV if needs_grad else None


def _same(left: Tensor, right: Tensor) -> bool:
    """Whether both are the same memory, read in the same way."""
    return left.data_ptr() == right.data_ptr() and left.shape == right.shape and left.stride() == right.stride()


class _Rows:
    """The buffers and heads of a chunk, as arguments of the kernels."""

    def __init__(
        self, student_CV: Tensor, difference_CV: Tensor, student: OutputHead, teacher: OutputHead, temperature: float
    ) -> None:
        self.student_CV, self.difference_CV, self.temperature = student_CV, difference_CV, temperature
        self.student, self.teacher = student, teacher
        self.num_tokens, self.vocabulary = student_CV.shape
        lanes = min(MAX_LANES, triton.next_power_of_2(triton.cdiv(self.vocabulary, WIDTH.value)))
        self.arguments = (student_CV, difference_CV, student.bias_V, teacher.bias_V, self.vocabulary)
        self.numbers = (*head_numbers(student, temperature), *head_numbers(teacher, temperature))
        self.options: dict[str, Any] = {
            "CAPS": (student.softcap is not None) + 2 * (teacher.softcap is not None),
            "LANES": lanes,
            "num_warps": max(1, lanes // 32),
        }

    @property
    def slope(self) -> float:
        """d x / d (hidden Wᵀ + bias) in nats, before the soft cap."""
        return self.student.scale / self.temperature


def head_numbers(head: OutputHead, temperature: float) -> tuple[float, float]:
    """`inner` and `gain`: x = gain · raw, or with a soft cap x = gain · tanh(inner · ln 2 / 2 · raw)."""
    if head.softcap is None:
        return 0.0, head.scale / temperature * LOG2_E
    return 2 * LOG2_E * head.scale / head.softcap, head.softcap / temperature * LOG2_E


def _compare_all(rows: _Rows, comparison: TokenComparison, needs_grad: bool) -> Tensor:
    readings_C4 = torch.empty(rows.num_tokens, 4, dtype=torch.float32, device=rows.student_CV.device)
    choices: dict[str, Any] = {
        "KIND": comparison.formulas.kernel_code,
        "CLIP": CLIPS[comparison.clip],
        "GRADIENT": needs_grad,
    }
    compare_rows[(rows.num_tokens,)](
        *rows.arguments,
        readings_C4,
        *rows.numbers,
        rows.slope,
        comparison.jsd_beta,
        comparison.clip_threshold,
        **choices,
        **rows.options,
    )
    return readings_C4


def _compare_top(rows: _Rows, comparison: TokenComparison, needs_grad: bool) -> Tensor:
    """Compare the teacher's k likeliest tokens here; kernels sum over all others and spread their gradient."""
    assert comparison.top_k is not None
    teacher_CV = rows.student_CV + rows.difference_CV
    if rows.teacher.bias_V is not None:
        teacher_CV += rows.teacher.bias_V
    top_CK = teacher_CV.topk(comparison.top_k, -1).indices
    del teacher_CV
    student_CK = rows.student_CV.gather(-1, top_CK).float()
    teacher_CK = student_CK + rows.difference_CV.gather(-1, top_CK).float()
    student_CK, teacher_CK = _logits(student_CK, rows.student, top_CK), _logits(teacher_CK, rows.teacher, top_CK)
    rows.student_CV.scatter_(-1, top_CK, -torch.inf)  # out of the others' sums

    rest_3C = torch.empty(3, rows.num_tokens, dtype=torch.float32, device=rows.student_CV.device)
    sum_rest[(rows.num_tokens,)](*rows.arguments, rest_3C, *rows.numbers, **rows.options)
    student_rest_C, teacher_rest_C, entropy_C = rest_3C
    student_log_CK = _lump(student_CK / comparison.temperature, student_rest_C)
    teacher_log_CK = _lump(teacher_CK / comparison.temperature, teacher_rest_C)
    *values_C, slope_CK = comparison.clip_terms(
        *comparison.formulas.log_terms(teacher_log_CK, student_log_CK, comparison.jsd_beta)
    )
    probability_CK = student_log_CK.exp()
    entropy_C = entropy_C * probability_CK[:, -1] - torch.linalg.vecdot(probability_CK, student_log_CK)
    if needs_grad:
        grad_CK = (slope_CK - probability_CK * slope_CK.sum(-1, keepdim=True)) * rows.slope
        spread_rest[(rows.num_tokens,)](
            rows.student_CV,
            rows.student.bias_V,
            rows.vocabulary,
            student_rest_C,
            grad_CK[:, -1].contiguous(),
            *head_numbers(rows.student, rows.temperature),
            **rows.options,
        )
        grad_CK = grad_CK[:, :-1]
        if rows.student.softcap is not None:
            grad_CK = grad_CK * (1 - (student_CK / rows.student.softcap).square())
        rows.student_CV.scatter_(-1, top_CK, grad_CK.to(rows.student_CV.dtype))
    return torch.stack([*values_C, entropy_C], -1)


def _logits(product_CK: Tensor, head: OutputHead, top_CK: Tensor) -> Tensor:
    """The logits of some entries from their products hidden Wᵀ."""
    if head.bias_V is not None:
        product_CK = product_CK + head.bias_V[top_CK]
    logits_CK = product_CK * head.scale
    return logits_CK if head.softcap is None else head.softcap * torch.tanh(logits_CK / head.softcap)


def _lump(top_CK: Tensor, rest_C: Tensor) -> Tensor:
    """Log-probabilities [C, K + 1] of the chosen entries and of all others together, floored."""
    return torch.cat([top_CK, rest_C[:, None] * LN_2], -1).log_softmax(-1).clamp_min_(LOG_SMALLEST)
