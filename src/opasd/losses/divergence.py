"""The divergences between a teacher's and a student's distribution, in one table; β weighs the teacher.

    forward_kl    KL(T‖S) = Σ T log(T/S)
    reverse_kl    KL(S‖T) = Σ S log(S/T)
    jsd           β KL(T‖M) + (1−β) KL(S‖M),   M = βT + (1−β)S

`DIVERGENCES` holds the formulas of each: the definition, the chunked losses and the kernels read them from there, and
`register_divergence` adds one more.

In the logarithm of a probability, one below the smallest normal float32 counts as that number, in every precision:
equal rows give exactly 0, disjoint ones a finite value (at most 87.4 nats), and no gradient is NaN. Where the logarithm
itself is known, as in the token loss, only one below LOG_FLOOR counts as that: a logit of −∞.

Shapes: V entries of a distribution, last; anything before it is batch.
"""

import math
import reprlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from opasd import choices
from opasd.errors import ConfigError
from opasd.losses import fused

SMALLEST = torch.finfo(torch.float32).tiny
LOG_SMALLEST = math.log(SMALLEST)
LOG_FLOOR = -1e5

Formula = Callable[[Tensor, Tensor, float], Tensor]
LogFormula = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class DivergenceFormulas:
    """All that the losses know about one divergence."""

    name: str
    terms: Formula
    """(teacher_V, student_V, β) → what each entry contributes; the definition, differentiable by autograd."""
    slope: Formula
    """(teacher_V, student_V, β) → d divergence / d student, up to a constant per row.

    A student's row sums to one, so a constant changes no gradient. The constant that makes the slope 0 where both rows
    are equal keeps small differences small."""
    terms_of_logs: Formula
    """(teacher_log_V, student_log_V, β) → the same terms from log-probabilities above LOG_FLOOR, which cannot
    underflow; the definition where there are logits, differentiable by autograd."""
    log_terms: LogFormula
    """(teacher_log_V, student_log_V, β) → the terms and d term / d log student, from log-probabilities above LOG_FLOOR.

    Rows are as long as a vocabulary, so every operation that can reuses a buffer; the inputs stay as they are."""
    kernel_code: int | None = None
    """The constant that selects the divergence in a kernel; None if the kernels do not know it."""


DIVERGENCES: dict[str, DivergenceFormulas] = {}


def formulas_of(name: str) -> DivergenceFormulas:
    """Look a divergence up by its name."""
    formulas = DIVERGENCES.get(name) if isinstance(name, str) else None
    if formulas is None:
        raise ConfigError(f"divergence: got {reprlib.repr(name)}; use one of {', '.join(DIVERGENCES)}")
    return formulas


def register_divergence(
    name: str,
    terms: Formula,
    *,
    slope: Formula | None = None,
    terms_of_logs: Formula | None = None,
    log_terms: LogFormula | None = None,
    kernel_code: int | None = None,
) -> DivergenceFormulas:
    """Add a divergence to the table; autograd on `terms` replaces missing formulas.

    `terms` must be finite and differentiable at 0. Without `kernel_code`, the divergence runs in chunks.
    """
    if name in DIVERGENCES:
        raise ConfigError(f"there is already a divergence named {name!r}; choose another name")
    slope = slope or _slope_by_autograd(name, terms)
    terms_of_logs = terms_of_logs or (lambda teacher_V, student_V, beta: terms(teacher_V.exp(), student_V.exp(), beta))
    log_terms = log_terms or _log_terms_by_autograd(name, terms)
    DIVERGENCES[name] = DivergenceFormulas(name, terms, slope, terms_of_logs, log_terms, kernel_code)
    if name not in choices.DIVERGENCES:
        choices.DIVERGENCES.append(name)
    return DIVERGENCES[name]


def divergence(teacher_V: Tensor, student_V: Tensor, kind: str, jsd_beta: float = 0.5) -> Tensor:
    """Return the divergence of each pair of rows by its definition; differentiable by autograd."""
    return formulas_of(kind).terms(teacher_V, student_V, jsd_beta).sum(-1)


def entropy(probability_V: Tensor) -> Tensor:
    """Return −Σ p log p, in nats."""
    return -(probability_V * log(probability_V)).sum(-1)


def log(probability: Tensor) -> Tensor:
    """Return the logarithm with the floor described above."""
    return probability.clamp_min(SMALLEST).log()


def _forward_kl(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    return teacher_V * (log(teacher_V) - log(student_V))


def _forward_kl_slope(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    return 1 - teacher_V / student_V.clamp_min(SMALLEST)


def _forward_kl_of_logs(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> Tensor:
    return teacher_log_V.exp() * (teacher_log_V - student_log_V)


def _forward_kl_log_terms(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    teacher_V = teacher_log_V.exp()
    term_V = (teacher_log_V - student_log_V).mul_(teacher_V)
    return term_V, teacher_V.neg_().mul_(student_log_V > LOG_FLOOR)


def _reverse_kl(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    return student_V * (log(student_V) - log(teacher_V))


def _reverse_kl_slope(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    return log(student_V) - log(teacher_V)


def _reverse_kl_of_logs(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> Tensor:
    return student_log_V.exp() * (student_log_V - teacher_log_V)


def _reverse_kl_log_terms(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    difference_V = teacher_log_V - student_log_V
    student_V = student_log_V.exp()
    slope_V = (1 - difference_V).mul_(student_V)
    return difference_V.mul_(student_V).neg_(), slope_V


def _jsd(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    if not 0 < beta < 1:
        raise ValueError(f"jsd_beta must lie between 0 and 1, got {beta}")
    # Written around the student so that equal rows mix to exactly themselves.
    log_mixture_V = log(student_V + beta * (teacher_V - student_V))
    teacher_part_V = beta * teacher_V * (log(teacher_V) - log_mixture_V)
    return teacher_part_V + (1 - beta) * student_V * (log(student_V) - log_mixture_V)


def _jsd_slope(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    return (1 - beta) * (log(student_V) - log(student_V + beta * (teacher_V - student_V)))


def _jsd_of_logs(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> Tensor:
    # log M around the likelier one, so that no exponential overflows and equal rows mix to exactly themselves.
    gap_V = teacher_log_V - student_log_V
    around_student_V = student_log_V + torch.log1p(beta * torch.expm1(gap_V.clamp_max(0)))
    around_teacher_V = teacher_log_V + torch.log1p((1 - beta) * torch.expm1(-gap_V.clamp_min(0)))
    log_mixture_V = torch.where(gap_V <= 0, around_student_V, around_teacher_V)
    teacher_part_V = beta * teacher_log_V.exp() * (teacher_log_V - log_mixture_V)
    return teacher_part_V + (1 - beta) * student_log_V.exp() * (student_log_V - log_mixture_V)


def _jsd_log_terms(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    # log M = max + log1p(w·expm1(−|log T − log S|)), w the smaller one's weight: exact where they are equal.
    difference_V = teacher_log_V - student_log_V
    weight_V = torch.full_like(difference_V, beta).masked_fill_(difference_V >= 0, 1 - beta)
    log_mixture_V = difference_V.abs_().neg_().expm1_().mul_(weight_V).log1p_()
    log_mixture_V += torch.maximum(teacher_log_V, student_log_V, out=weight_V)
    term_V = torch.exp(teacher_log_V, out=weight_V).mul_(teacher_log_V - log_mixture_V).mul_(beta)
    slope_V = torch.sub(student_log_V, log_mixture_V, out=log_mixture_V)
    slope_V.mul_(student_log_V.exp()).mul_(1 - beta)
    return term_V.add_(slope_V), slope_V


def _slope_by_autograd(name: str, terms: Formula) -> Formula:
    def slope(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
        fused.say_once(f"divergence: {name} has no slope of its own; autograd computes it, chunk by chunk")
        with torch.enable_grad():
            student_V = student_V.detach().requires_grad_()
            (slope_V,) = torch.autograd.grad(terms(teacher_V, student_V, beta).sum(), student_V)
        return slope_V

    return slope


def _log_terms_by_autograd(name: str, terms: Formula) -> LogFormula:
    def log_terms(teacher_log_V: Tensor, student_log_V: Tensor, beta: float) -> tuple[Tensor, Tensor]:
        fused.say_once(f"divergence: {name} has no log_terms of its own; autograd computes them, chunk by chunk")
        with torch.inference_mode(False), torch.enable_grad():
            student_V = student_log_V.clamp_min(LOG_SMALLEST).exp().requires_grad_()
            term_V = terms(teacher_log_V.clamp_min(LOG_SMALLEST).exp(), student_V, beta)
            (slope_V,) = torch.autograd.grad(term_V.sum(), student_V)
        # A probability as small as that underflows: it has no slope.
        return term_V.detach(), (slope_V * student_V.detach()).masked_fill_(student_log_V <= LOG_SMALLEST, 0)

    return log_terms


register_divergence(
    "forward_kl",
    _forward_kl,
    slope=_forward_kl_slope,
    terms_of_logs=_forward_kl_of_logs,
    log_terms=_forward_kl_log_terms,
    kernel_code=0,
)
register_divergence(
    "reverse_kl",
    _reverse_kl,
    slope=_reverse_kl_slope,
    terms_of_logs=_reverse_kl_of_logs,
    log_terms=_reverse_kl_log_terms,
    kernel_code=1,
)
register_divergence("jsd", _jsd, slope=_jsd_slope, terms_of_logs=_jsd_of_logs, log_terms=_jsd_log_terms, kernel_code=2)
