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

from opasd.losses.divergence import LOG_FLOOR
from opasd.losses.fused.token_kernels import CLIPS, WIDTH, compare_rows, spread_rest, sum_rest
from opasd.losses.inputs import OutputHead
from opasd.losses.token_chunked import TokenComparison, TokenRole

MEMORY_BYTES = 2**30
"""The memory of a chunk and of the gradient of all hidden states together, if `chunk_tokens` is unset."""
ROUND_TOKENS = 512
"""Chunks are multiples of this: the matrix products lose speed between."""
MAX_LANES = 512
Buffers = tuple[Tensor, Tensor, Tensor | None, Tensor | None, int]
"""The student's products, the difference, both biases, and the size of the vocabulary."""
LOG2_E, LN_2 = math.log2(math.e), math.log(2)


def default_chunk_tokens(hidden_TE: Tensor, vocabulary: int, top_k: int | None) -> int:
    """Return how many tokens MEMORY_BYTES allows; at least a quarter is for them, whatever the gradient needs."""
    num_tokens, size = hidden_TE.shape
    buffers, itemsize = (2 if top_k is None else 3), hidden_TE.dtype.itemsize
    free = max(MEMORY_BYTES - num_tokens * size * itemsize, MEMORY_BYTES // 4)
    largest = max(1, free // (buffers * vocabulary * itemsize + 8 * size))
    return largest - largest % ROUND_TOKENS if largest > ROUND_TOKENS else largest


def compare_chunk(
    student: TokenRole, teacher: TokenRole, comparison: TokenComparison, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return readings [C, 5], and with `needs_grad` d D / d (hidden Wᵀ + bias) [C, V]."""
    temperature = comparison.temperature
    with torch.cuda.device_of(student.hidden_TE):
        student_CV = student.hidden_TE @ student.head.weight_VE.T
        if student.head.weight_VE.is_set_to(teacher.head.weight_VE):
            difference_CV = (teacher.hidden_TE - student.hidden_TE) @ teacher.head.weight_VE.T
        else:
            difference_CV = torch.addmm(student_CV, teacher.hidden_TE, teacher.head.weight_VE.T, beta=-1)
        num_tokens, vocabulary = student_CV.shape
        lanes = min(MAX_LANES, triton.next_power_of_2(triton.cdiv(vocabulary, WIDTH.value)))
        caps = (student.head.softcap is not None) + 2 * (teacher.head.softcap is not None)
        options: dict[str, Any] = {"CAPS": caps, "LANES": lanes, "num_warps": max(1, lanes // 32)}
        buffers = (student_CV, difference_CV, student.head.bias_V, teacher.head.bias_V, vocabulary)
        numbers = (*head_numbers(student.head, temperature), *head_numbers(teacher.head, temperature))
        if comparison.top_k is not None:
            readings_C5 = _compare_top(
                student.head, teacher.head, comparison, comparison.top_k, needs_grad,
                (num_tokens,), buffers, numbers, options,
            )  # fmt: skip
        else:
            readings_C5 = torch.empty(num_tokens, 5, dtype=torch.float32, device=student_CV.device)
            options |= {"KIND": comparison.formulas.kernel_code, "CLIP": CLIPS[comparison.clip], "GRADIENT": needs_grad}
            compare_rows[(num_tokens,)](
                *buffers, readings_C5, *numbers, student.head.scale / temperature,
                comparison.jsd_beta, comparison.clip_threshold, **options,
            )  # fmt: skip
    return readings_C5, student_CV if needs_grad else None


def head_numbers(head: OutputHead, temperature: float) -> tuple[float, float]:
    """Return `inner` and `gain`: x = gain · raw, or with a soft cap x = gain · tanh(inner · ln 2 / 2 · raw)."""
    if head.softcap is None:
        return 0.0, head.scale / temperature * LOG2_E
    return 2 * LOG2_E * head.scale / head.softcap, head.softcap / temperature * LOG2_E


def _compare_top(
    student: OutputHead, teacher: OutputHead, comparison: TokenComparison, top_k: int, needs_grad: bool,
    grid: tuple[int], buffers: Buffers, numbers: tuple[float, float, float, float], options: dict[str, Any],
) -> Tensor:  # fmt: skip
    """Compare the teacher's k likeliest tokens here; kernels sum over all others and spread their gradient."""
    student_CV, difference_CV, student_bias_V, teacher_bias_V, vocabulary = buffers
    teacher_CV = student_CV + difference_CV
    if teacher_bias_V is not None:
        teacher_CV += teacher_bias_V
    top_CK = teacher_CV.topk(top_k, -1).indices
    del teacher_CV
    student_CK = student_CV.gather(-1, top_CK).float()
    teacher_CK = student_CK + difference_CV.gather(-1, top_CK).float()
    student_CK = student.bend(student_CK, None if student_bias_V is None else student_bias_V[top_CK])
    teacher_CK = teacher.bend(teacher_CK, None if teacher_bias_V is None else teacher_bias_V[top_CK])
    student_CV.scatter_(-1, top_CK, -torch.inf)  # out of the others' sums

    rest_3C = torch.empty(3, len(student_CV), dtype=torch.float32, device=student_CV.device)
    sum_rest[grid](*buffers, rest_3C, *numbers, **options)
    student_rest_C, teacher_rest_C, entropy_C = rest_3C
    student_log_CK = _lump(student_CK / comparison.temperature, student_rest_C)
    teacher_log_CK = _lump(teacher_CK / comparison.temperature, teacher_rest_C)
    probability_CK = student_log_CK.exp()
    *values_C, reversed_C, _, _, slope_CK = comparison.clip_terms(
        *comparison.formulas.log_terms(teacher_log_CK, student_log_CK, comparison.jsd_beta), probability_CK
    )
    entropy_C = entropy_C * probability_CK[:, -1] - torch.linalg.vecdot(probability_CK, student_log_CK)
    if needs_grad:
        slope_CK -= probability_CK * slope_CK.sum(-1, keepdim=True)
        grad_CK = slope_CK * (student.scale / comparison.temperature)
        rest_grad_C = grad_CK[:, -1].contiguous()
        spread_rest[grid](student_CV, student_bias_V, vocabulary, student_rest_C, rest_grad_C, *numbers[:2], **options)
        grad_CK = grad_CK[:, :-1]
        if student.softcap is not None:
            grad_CK = grad_CK * (1 - (student_CK / student.softcap).square())
        student_CV.scatter_(-1, top_CK, grad_CK.to(student_CV.dtype))
    return torch.stack([*values_C, entropy_C, reversed_C], -1)


def _lump(top_CK: Tensor, rest_C: Tensor) -> Tensor:
    """Return log-probabilities [C, K + 1] of the chosen entries and of all others together, floored."""
    return torch.cat([top_CK, rest_C[:, None] * LN_2], -1).log_softmax(-1).clamp_min_(LOG_FLOOR)
