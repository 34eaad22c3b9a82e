"""The divergences of the paper: teacher first, β weighs the teacher.

    forward_kl    KL(T‖S) = Σ T log(T/S)
    reverse_kl    KL(S‖T) = Σ S log(S/T)
    jsd           β KL(T‖M) + (1−β) KL(S‖M),   M = βT + (1−β)S

In a logarithm, a probability below the smallest normal float32 counts as that number, in every precision: equal
rows give exactly 0, disjoint ones a finite value (at most 87.4 nats), and no gradient is NaN.

Shapes: V entries of a distribution, last; anything before it is batch.
"""

import math

import torch
from torch import Tensor

from opasd.choices import Divergence

SMALLEST = torch.finfo(torch.float32).tiny
LOG_SMALLEST = math.log(SMALLEST)


def log(probability: Tensor) -> Tensor:
    """Logarithm with the floor described above."""
    return probability.clamp_min(SMALLEST).log()


def divergence(teacher_V: Tensor, student_V: Tensor, kind: Divergence, jsd_beta: float = 0.5) -> Tensor:
    """The definition: one number for each pair of rows; differentiable by autograd."""
    return terms(teacher_V, student_V, kind, jsd_beta).sum(-1)


def terms(teacher_V: Tensor, student_V: Tensor, kind: Divergence, jsd_beta: float = 0.5) -> Tensor:
    """What each entry contributes to the divergence."""
    if kind == "jsd" and not 0 < jsd_beta < 1:
        raise ValueError(f"jsd_beta must lie between 0 and 1, got {jsd_beta}")
    match kind:
        case "forward_kl":
            return teacher_V * (log(teacher_V) - log(student_V))
        case "reverse_kl":
            return student_V * (log(student_V) - log(teacher_V))
        case "jsd":
            # Written around the student so that equal rows mix to exactly themselves.
            log_mixture_V = log(student_V + jsd_beta * (teacher_V - student_V))
            teacher_part_V = jsd_beta * teacher_V * (log(teacher_V) - log_mixture_V)
            return teacher_part_V + (1 - jsd_beta) * student_V * (log(student_V) - log_mixture_V)
        case _:
            raise ValueError(f"no divergence {kind!r}; there are forward_kl, reverse_kl and jsd")


def slope(teacher_V: Tensor, student_V: Tensor, kind: Divergence, jsd_beta: float = 0.5) -> Tensor:
    """d divergence / d student, up to a constant per row, and 0 where the two are equal.

    A student row sums to one, so a constant changes no gradient; this one keeps small differences small.
    """
    match kind:
        case "forward_kl":
            return 1 - teacher_V / student_V.clamp_min(SMALLEST)
        case "reverse_kl":
            return log(student_V) - log(teacher_V)
        case "jsd":
            return (1 - jsd_beta) * (log(student_V) - log(student_V + jsd_beta * (teacher_V - student_V)))


def log_terms(
    teacher_log_V: Tensor, student_log_V: Tensor, kind: Divergence, jsd_beta: float = 0.5
) -> tuple[Tensor, Tensor]:
    """The terms from log-probabilities (floored), and d term / d log student: no autograd, no loss of precision.

    Rows are as long as a vocabulary, so every operation that can reuses a buffer.
    """
    difference_V = teacher_log_V - student_log_V
    match kind:
        case "forward_kl":
            teacher_V = teacher_log_V.exp()
            term_V = difference_V.mul_(teacher_V)
            return term_V, teacher_V.neg_().mul_(student_log_V > LOG_SMALLEST)
        case "reverse_kl":
            student_V = student_log_V.exp()
            slope_V = (1 - difference_V).mul_(student_V)
            return difference_V.mul_(student_V).neg_(), slope_V
        case "jsd":
            # log M = max + log1p(w·expm1(−|log T − log S|)), w the smaller one's weight: exact where they are equal.
            weight_V = torch.full_like(difference_V, jsd_beta).masked_fill_(difference_V >= 0, 1 - jsd_beta)
            log_mixture_V = difference_V.abs_().neg_().expm1_().mul_(weight_V).log1p_()
            log_mixture_V += torch.maximum(teacher_log_V, student_log_V, out=weight_V)
            term_V = torch.exp(teacher_log_V, out=weight_V).mul_(teacher_log_V - log_mixture_V).mul_(jsd_beta)
            slope_V = torch.sub(student_log_V, log_mixture_V, out=log_mixture_V)
            slope_V.mul_(student_log_V.exp()).mul_(1 - jsd_beta)
            return term_V.add_(slope_V), slope_V


def entropy(probability_V: Tensor) -> Tensor:
    """−Σ p log p, in nats."""
    return -(probability_V * log(probability_V)).sum(-1)
