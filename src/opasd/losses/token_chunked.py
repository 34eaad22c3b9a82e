"""The token loss of a few tokens at a time in plain PyTorch, with its gradient.

`opasd.losses.token` has the formulas and the shapes.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from opasd.choices import Clip, check_choice, check_positive
from opasd.losses.divergence import LOG_FLOOR, DivergenceFormulas
from opasd.losses.inputs import OutputHead
from opasd.losses.numerics import needs_gradient, wide

WORKSPACE_BUFFERS = 10
WORKSPACE_BYTES = 512 * 2**20
VOCABULARY_TILE = 16_384
"""Rows of a low-precision head converted to float32 at a time where the device has no mixed-precision product."""


class TokenRole(NamedTuple):
    """The hidden states of one role, and the head that turns them into logits."""

    hidden_TE: Tensor
    head: OutputHead

    def rows(self, rows: slice) -> "TokenRole":
        return TokenRole(self.hidden_TE[rows], self.head)


@dataclass(frozen=True)
class TokenComparison:
    """How two next-token distributions become one number."""

    formulas: DivergenceFormulas
    jsd_beta: float
    temperature: float
    clip: Clip
    clip_threshold: float
    top_k: int | None

    def __post_init__(self) -> None:
        check_positive("jsd_beta", self.jsd_beta, below=1)
        check_positive("temperature", self.temperature)
        check_choice("clip", self.clip, Clip)
        check_positive("clip_threshold", self.clip_threshold)
        check_positive("top_k", self.top_k, whole=True, optional=True)

    def clip_terms(self, term_CV: Tensor, slope_CV: Tensor, student_CV: Tensor) -> "ClippedTerms":
        """Return what clipping makes of the terms; in place, except for the student's probabilities.

        The slopes of a token that is clipped or masked as a whole stay: `factor` is 0 for it.
        """
        divergence_C = term_CV.sum(-1)
        loss_C, clipped_C = divergence_C, torch.zeros_like(divergence_C)
        reversed_C = inner_C = square_C = clipped_C
        if self.clip == "none":
            return ClippedTerms(loss_C, divergence_C, clipped_C, reversed_C, inner_C, square_C, slope_CV)
        over_CV = term_CV > self.clip_threshold
        pointwise_C = term_CV.clamp_(max=self.clip_threshold).sum(-1)
        # The gradient to the logits, g = u − p Σ u; the terms' buffer is free for it.
        whole_CV = torch.addcmul(slope_CV, student_CV, slope_CV.sum(-1, keepdim=True), value=-1, out=term_CV)
        square_C = torch.linalg.vecdot(whole_CV, whole_CV)
        if self.clip == "per_token":
            loss_C = divergence_C.clamp(max=self.clip_threshold)
            clipped_C = (divergence_C > self.clip_threshold).to(divergence_C)
            inner_C = square_C * (1 - clipped_C)
        else:
            loss_C = pointwise_C
            clipped_C = over_CV.sum(-1).to(divergence_C) / over_CV.shape[-1]
            slope_CV.masked_fill_(over_CV, 0)
            inner_C = torch.linalg.vecdot(whole_CV, slope_CV)
            inner_C -= slope_CV.sum(-1) * torch.linalg.vecdot(whole_CV, student_CV)
            reversed_C = ((inner_C < 0) & (clipped_C > 0)).to(divergence_C)
        if self.clip == "pointwise_masked":
            loss_C, inner_C = loss_C * (1 - reversed_C), inner_C * (1 - reversed_C)
        return ClippedTerms(loss_C, divergence_C, clipped_C, reversed_C, inner_C, square_C, slope_CV)

    def factor(self, weights_T: Tensor, readings_TR: Tensor) -> Tensor:
        """Return the factor of each token's gradient: its weight, or 0 if the token was clipped or masked whole."""
        if self.clip not in ("per_token", "pointwise_masked"):
            return weights_T
        return weights_T * (1 - readings_TR[:, 2 if self.clip == "per_token" else 4])


class ClippedTerms(NamedTuple):
    """A chunk's readings [C], and its slopes [C, V] with 0 for clipped entries."""

    loss_C: Tensor
    divergence_C: Tensor
    clipped_C: Tensor
    reversed_C: Tensor
    inner_C: Tensor
    square_C: Tensor
    slope_CV: Tensor


def default_chunk_tokens(vocabulary: int) -> int:
    """Return how many tokens keep the workspace within WORKSPACE_BYTES, and at least one."""
    return max(1, WORKSPACE_BYTES // (4 * WORKSPACE_BUFFERS * vocabulary))


def compare_chunk(
    student: TokenRole, teacher: TokenRole, comparison: TokenComparison, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Return readings [C, 7], and with `needs_grad` d D / d (hidden Wᵀ + bias) [C, V]."""
    temperature, head = comparison.temperature, student.head
    student_CV = head_logits(*student)
    # The logits are overwritten below, and the gradient of the soft cap needs them.
    cap_CV = None if head.softcap is None else 1 - (student_CV / head.softcap).square()
    student_log_CV = _log_softmax_(student_CV, temperature)
    teacher_log_CV = _log_softmax_(head_logits(*teacher), temperature)
    top_CK, lumped, full_log_CV = None, None, student_log_CV
    if comparison.top_k is not None:
        top_CK = teacher_log_CV.topk(comparison.top_k, -1).indices
        lumped = _lump_log(teacher_log_CV, top_CK), _lump_log(student_log_CV, top_CK)
    student_CV = student_log_CV.exp()
    entropy_C = -torch.linalg.vecdot(student_CV, student_log_CV.clamp_min_(LOG_FLOOR))
    teacher_log_CV, student_log_CV = lumped or (teacher_log_CV.clamp_min_(LOG_FLOOR), student_log_CV)
    *values_C, reversed_C, inner_C, square_C, slope_CV = comparison.clip_terms(
        *comparison.formulas.log_terms(teacher_log_CV, student_log_CV, comparison.jsd_beta),
        student_CV if top_CK is None else student_log_CV.exp(),
    )
    readings_C7 = torch.stack([*values_C, entropy_C, reversed_C, inner_C, square_C], -1)
    if not needs_grad:
        return readings_C7, None
    total_C1 = slope_CV.sum(-1, keepdim=True)
    if top_CK is not None:
        # The slope of all other entries together goes to each by its part of their probability.
        part_CV = full_log_CV.sub_(student_log_CV[:, -1:]).exp_()
        slope_CV = part_CV.mul_(slope_CV[:, -1:]).scatter_(-1, top_CK, slope_CV[:, :-1])
    grad_CV = slope_CV.sub_(student_CV.mul_(total_C1)).mul_(head.scale / temperature)
    return readings_C7, grad_CV if cap_CV is None else grad_CV.mul_(cap_CV)


class TokenGradients(NamedTuple):
    """Gradients of each token's own loss to its hidden state, and of the relatively weighted loss to the head."""

    hidden_TE: Tensor | None
    weight_VE: Tensor | None
    bias_V: Tensor | None

    @classmethod
    def empty(cls, student: TokenRole, hidden_dtype: torch.dtype) -> "TokenGradients":
        """Return buffers for the gradients that autograd needs; that of the hidden states is in `hidden_dtype`."""
        hidden_TE, weight_VE, bias_V = student.hidden_TE, student.head.weight_VE, student.head.bias_V
        dtype = wide(hidden_TE.dtype)
        return cls(
            torch.empty_like(hidden_TE, dtype=hidden_dtype) if needs_gradient(hidden_TE) else None,
            torch.zeros_like(weight_VE, dtype=dtype) if needs_gradient(weight_VE) else None,
            torch.zeros_like(bias_V, dtype=dtype) if bias_V is not None and needs_gradient(bias_V) else None,
        )

    def add(self, rows: slice, student: TokenRole, grad_CV: Tensor, factor_C1: Tensor) -> None:
        """Set the hidden states' rows and add to the head's sums; `student` holds the same rows."""
        if self.hidden_TE is not None:
            self.hidden_TE[rows] = _product(grad_CV, student.head.weight_VE)
        if self.bias_V is not None:
            _add_product_(self.bias_V[:, None], grad_CV.T, factor_C1)
        if self.weight_VE is not None:
            _add_product_(self.weight_VE, grad_CV.T, factor_C1 * student.hidden_TE)


def head_logits(hidden_CE: Tensor, head: OutputHead) -> Tensor:
    """Return z [C, V] as `OutputHead.logits` defines it, in a fresh buffer and without a float32 copy of the head."""
    weight_VE = head.weight_VE
    dtype = wide(hidden_CE.dtype)
    if hidden_CE.dtype == weight_VE.dtype == dtype:
        logits_CV = hidden_CE @ weight_VE.T
    elif hidden_CE.is_cuda and hidden_CE.dtype == weight_VE.dtype:
        logits_CV = torch.mm(hidden_CE, weight_VE.T, out_dtype=dtype)
    else:
        hidden_CE = hidden_CE.to(dtype)
        logits_CV = hidden_CE.new_empty(hidden_CE.shape[0], weight_VE.shape[0])
        for start in range(0, weight_VE.shape[0], VOCABULARY_TILE):
            tile = slice(start, start + VOCABULARY_TILE)
            torch.mm(hidden_CE, weight_VE[tile].to(dtype).T, out=logits_CV[:, tile])
    if head.bias_V is not None:
        logits_CV += head.bias_V
    if head.scale != 1.0:
        logits_CV *= head.scale
    return logits_CV if head.softcap is None else logits_CV.div_(head.softcap).tanh_().mul_(head.softcap)


def _log_softmax_(logits_CV: Tensor, temperature: float) -> Tensor:
    """Return log_softmax(logits / temperature), in place."""
    logits_CV.div_(temperature)
    return logits_CV.sub_(logits_CV.logsumexp(-1, keepdim=True))


def _lump_log(log_CV: Tensor, top_CK: Tensor) -> Tensor:
    """Return floored log-probabilities [C, K + 1] of the chosen entries and of all others together.

    The sum over the others avoids the cancellation of 1 − Σ, and the floor comes after it.
    """
    rest_log_C1 = log_CV.scatter(-1, top_CK, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_CV.gather(-1, top_CK), rest_log_C1], -1).clamp_min_(LOG_FLOOR)


def _product(grad_CV: Tensor, weight_VE: Tensor) -> Tensor:
    """Return grad [C, V] · W [V, E], accumulated in at least float32."""
    dtype = wide(grad_CV.dtype)
    if grad_CV.dtype == weight_VE.dtype == dtype:
        return grad_CV @ weight_VE
    if grad_CV.is_cuda:
        return torch.mm(grad_CV.to(weight_VE.dtype), weight_VE, out_dtype=dtype)
    grad_CE = grad_CV.new_zeros(grad_CV.shape[0], weight_VE.shape[1], dtype=dtype)
    for start in range(0, weight_VE.shape[0], VOCABULARY_TILE):
        tile = slice(start, start + VOCABULARY_TILE)
        grad_CE.addmm_(grad_CV[:, tile].to(dtype), weight_VE[tile].to(dtype))
    return grad_CE


def _add_product_(sum_VE: Tensor, grad_VC: Tensor, factor_CE: Tensor) -> None:
    """sum [V, E] += grad [V, C] · factor [C, E], accumulated in the sum's precision."""
    if grad_VC.is_cuda and grad_VC.dtype != sum_VE.dtype:
        torch.addmm(sum_VE, grad_VC, factor_CE.to(grad_VC.dtype), out_dtype=sum_VE.dtype, out=sum_VE)
    else:
        sum_VE.addmm_(grad_VC.to(sum_VE.dtype), factor_CE.to(sum_VE.dtype))
