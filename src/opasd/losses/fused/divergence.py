"""The divergences as the kernels compute them: from probabilities for attention, from base-2 logarithms for tokens.

`opasd.losses.divergence` has the formulas and the codes. A kernel that is compiled for another code fails to compile.
"""

import math

import triton
import triton.language as tl

from opasd.losses.divergence import DIVERGENCES, LOG_FLOOR
from opasd.losses.divergence import SMALLEST as SMALLEST_PROBABILITY

# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false

FORWARD_KL, REVERSE_KL, JSD = (
    tl.constexpr(DIVERGENCES[name].kernel_code) for name in ("forward_kl", "reverse_kl", "jsd")
)
SMALLEST = tl.constexpr(SMALLEST_PROBABILITY)
FLOOR = tl.constexpr(LOG_FLOOR / math.log(2))
NATS = tl.constexpr(math.log(2))


@triton.jit
def log(probability):
    """Natural logarithm with the floor; NaN stays NaN."""
    return tl.log(tl.maximum(probability, SMALLEST, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def terms(target, student, beta, KIND: tl.constexpr):
    """`terms` of the table."""
    if KIND == FORWARD_KL:
        return target * (log(target) - log(student))
    elif KIND == REVERSE_KL:
        return student * (log(student) - log(target))
    else:
        tl.static_assert(KIND == JSD, "the kernels do not know this divergence")
        mixture = log(student + beta * (target - student))
        return beta * target * (log(target) - mixture) + (1.0 - beta) * student * (log(student) - mixture)


@triton.jit
def slope(target, student, beta, KIND: tl.constexpr):
    """`slope` of the table."""
    if KIND == FORWARD_KL:
        return 1.0 - target / tl.maximum(student, SMALLEST, propagate_nan=tl.PropagateNan.ALL)
    elif KIND == REVERSE_KL:
        return log(student) - log(target)
    else:
        tl.static_assert(KIND == JSD, "the kernels do not know this divergence")
        return (1.0 - beta) * (log(student) - log(student + beta * (target - student)))


@triton.jit
def log_terms(student_log_LW, teacher_log_LW, beta, KIND: tl.constexpr):
    """`log_terms` of the table from base-2 logarithms without the floor; and the student's probability."""
    student_LW, teacher_LW = tl.exp2(student_log_LW), tl.exp2(teacher_log_LW)
    student_log_LW = tl.maximum(student_log_LW, FLOOR)
    gap_LW = (tl.maximum(teacher_log_LW, FLOOR) - student_log_LW) * NATS
    if KIND == FORWARD_KL:
        return teacher_LW * gap_LW, tl.where(student_log_LW > FLOOR, -teacher_LW, 0.0), student_LW
    elif KIND == REVERSE_KL:
        term_LW = -student_LW * gap_LW
        return term_LW, student_LW + term_LW, student_LW
    else:
        tl.static_assert(KIND == JSD, "the kernels do not know this divergence")
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
