"""Means over problems with 95 % intervals, paired differences, and what several comparisons at once are worth.

An interval answers one of two questions:

    problems like these    what would other problems of the same kind give?  `estimate`, `paired_difference`, `mean_of`
    these problems         what would other samples of the same problems give?  `SampledScores`

The first is wider: problems differ more than samples of one problem. Both are closed forms. `benchmarks/intervals.py`
holds them against other methods; no bootstrap of 30 problems covers 95 % where most of them are hard.

Shares in [0, 1], of P problems with mean p and variance s²: Wilson's interval with P / r trials, r = s² / p (1 − p),
and Student's t with ν = 2P / (k + 2P / (P − 1)) degrees of freedom. There k = 0.85 (1 − r) κ, and κ is the excess
kurtosis of the beta distribution with that mean and variance: where a few solved problems carry the mean, s² itself is
uncertain. r is at least 1 / P. At r = 1, problems solved always or never, s² follows from p, and this is nearly
Wilson's own interval.

Differences and other means: mean ± t · s / √P with k = 0.5 κ of the values themselves, and on the side of the long tail
further by Johnson's term, γ (1 + 2t²) s / 6P, γ the values' skewness.

Where all problems agree there is no spread to estimate: one trial a problem is assumed, so no share has an interval of
width zero.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

LEVEL = 0.95
_SHARE_TAIL, _MEAN_TAIL = 0.85, 0.5
"""How much of the kurtosis counts; chosen with benchmarks/intervals.py."""
_NO_SPREAD = 1e-12


class Estimate(NamedTuple):
    """A mean and its interval."""

    mean: float
    low: float
    high: float


def estimate(per_problem: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean of shares between 0 and 1, for problems like these."""
    return estimates([per_problem], level)[0]


def estimates(columns: Sequence[Sequence[float]], level: float = LEVEL) -> list[Estimate]:
    """Return `estimate` of each measure of the same problems."""
    values_MP = _checked(columns)
    if values_MP.min() < -1e-9 or values_MP.max() > 1 + 1e-9:
        raise ValueError(f"shares must be between 0 and 1; got {values_MP.min():g} to {values_MP.max():g}")
    return _estimates(values_MP, *share_limits(values_MP, level))


def gap_estimate(gaps: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean of differences of shares, each between −1 and 1, for problems like these."""
    values_1P = _checked([gaps])
    return _estimates(values_1P, *mean_limits(values_1P, level, bound=1.0))[0]


def mean_of(values: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return the mean of numbers without bounds, such as lengths; equal ones have an interval of width zero."""
    values_1P = _checked([values])
    return _estimates(values_1P, *mean_limits(values_1P, level))[0]


def paired_difference(first: Sequence[float], second: Sequence[float], level: float = LEVEL) -> Estimate:
    """Return first − second of shares of the same problems, in the same order."""
    if len(first) != len(second):
        raise ValueError(f"paired values must be of the same problems; got {len(first)} and {len(second)}")
    return gap_estimate(np.subtract(first, second).tolist(), level)


def macro_average(sets: Sequence[Estimate]) -> Estimate:
    """Return the mean of several sets' means, each weighing the same; their distances to the bounds add as squares."""
    if not sets:
        raise ValueError("no sets to average over")
    mean = float(np.mean([own.mean for own in sets]))
    below = sqrt(sum((own.mean - own.low) ** 2 for own in sets)) / len(sets)
    above = sqrt(sum((own.high - own.mean) ** 2 for own in sets)) / len(sets)
    return Estimate(mean, mean - below, mean + above)


def share_limits(values_NP: np.ndarray, level: float = LEVEL) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the mean of each row of shares: Wilson's, see the module."""
    count = values_NP.shape[-1]
    p, spread = values_NP.mean(-1), _variance(values_NP)
    binary = p * (1 - p)
    # The variance as a share of the largest possible one, that of problems solved always or never.
    inflation = np.where(spread > _NO_SPREAD, spread / np.maximum(binary, _NO_SPREAD), 1.0)
    inflation = np.maximum(inflation, 1 / count)  # a few small deviations say little about the rare large ones
    concentration = 1 / np.minimum(inflation, 0.999) - 1
    kurtosis = _beta_kurtosis((p * count + 0.5) / (count + 1), concentration)
    t = _t(level, _freedom(_SHARE_TAIL * np.maximum(1 - inflation, 0) * kurtosis, count))
    return wilson(p, count / inflation, t)


def mean_limits(
    values_NP: np.ndarray, level: float = LEVEL, bound: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the mean of each row; values between −`bound` and `bound` have no interval of zero width."""
    count = values_NP.shape[-1]
    mean, spread = values_NP.mean(-1), _variance(values_NP)
    centred = values_NP - mean[:, None]
    squares = np.maximum((centred**2).mean(-1), _NO_SPREAD)
    kurtosis = (centred**4).mean(-1) / squares**2 - 3
    skewness = (centred**3).mean(-1) / squares**1.5
    t = _t(level, _freedom(_MEAN_TAIL * np.maximum(kurtosis, 0), count))
    half = t * np.sqrt(spread / count)
    tail = skewness * (1 + 2 * t**2) * np.sqrt(spread) / (6 * count)
    low, high = mean - half + np.minimum(tail, 0), mean + half + np.maximum(tail, 0)
    if bound is None:
        return low, high
    # No two problems differ: as many could as Wilson's upper bound of 0 in `count` allows.
    unseen = np.where(spread > _NO_SPREAD, 0.0, bound * t**2 / (count + t**2))
    return np.maximum(low - unseen, -bound), np.minimum(high + unseen, bound)


def wilson(p: np.ndarray, trials: np.ndarray | float, z: np.ndarray | float) -> tuple[np.ndarray, np.ndarray]:
    """Return Wilson's bounds of a share p of so many trials, which need not be whole."""
    grown = 1 + z**2 / trials
    centre = (p + z**2 / (2 * trials)) / grown
    half = z * np.sqrt(np.maximum(p * (1 - p), 0) / trials + z**2 / (4 * trials**2)) / grown
    return np.clip(centre - half, 0, p), np.clip(centre + half, p, 1)


def p_value(interval: Callable[[float], Estimate]) -> float:
    """Return the two-sided p of "the mean is 0": 1 − the level at which the interval begins to hold 0."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        bounds = interval(1 - middle)
        low, high = (low, middle) if bounds.low > 0 or bounds.high < 0 else (middle, high)
    return high


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's corrected p of each: (m − rank) · p, never below that of a smaller p."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min((len(order) - rank) * p_values[index], 1.0))
        corrected[index] = largest
    return corrected


def _checked(columns: Sequence[Sequence[float]]) -> np.ndarray:
    values_MP = np.asarray(columns, dtype=float)
    if values_MP.size == 0:
        raise ValueError("no problems to average over")
    return values_MP


def _estimates(values_MP: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[Estimate]:
    return [Estimate(*map(float, row)) for row in zip(values_MP.mean(-1), low, high, strict=True)]


def _variance(values_NP: np.ndarray) -> np.ndarray:
    return values_NP.var(-1, ddof=1) if values_NP.shape[-1] > 1 else np.zeros(len(values_NP))


def _freedom(kurtosis: np.ndarray, count: int) -> np.ndarray:
    """Return Satterthwaite's degrees of freedom of the variance of `count` values, `count` − 1 without kurtosis."""
    if count < 2:
        return np.ones_like(kurtosis)
    return np.maximum(2 * count / (kurtosis + 2 * count / (count - 1)), min(count - 1, 3))


def _beta_kurtosis(p: np.ndarray, concentration: np.ndarray) -> np.ndarray:
    """Return the excess kurtosis of Beta(a, b), a + b the concentration and a / (a + b) = p; at least −1.2."""
    a, b = p * concentration, (1 - p) * concentration
    total, product = a + b, np.maximum(a * b, 1e-9)
    kurtosis = 6 * ((a - b) ** 2 * (total + 1) - product * (total + 2)) / (product * (total + 2) * (total + 3))
    return np.maximum(kurtosis, -1.2)


def _t(level: float, freedom: np.ndarray) -> np.ndarray:
    """Return Student's t for any degrees of freedom ν, by the expansion in 1 / ν (within 0.2 % for ν of 3 or more)."""
    z = NormalDist().inv_cdf((1 + min(level, 1 - 1e-12)) / 2)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return sum((term / freedom**power for power, term in enumerate(terms, 1)), np.full_like(freedom, z))
