"""Means over problems with 95 % intervals by bootstrap, and paired differences on the same problems.

Samples of one problem are not independent, so the bootstrap resamples problems.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
_AT_ONCE = 500


class Estimate(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def estimate(per_problem: Sequence[float], seed: int = 0) -> Estimate:
    """Return the mean over problems, with a percentile bootstrap."""
    return estimates([per_problem], seed)[0]


def estimates(columns: Sequence[Sequence[float]], seed: int = 0) -> list[Estimate]:
    """Return `estimate` of each measure of the same problems; all measures share the resamples."""
    values_MP = np.asarray(columns, dtype=float)
    means_RM = _resampled_means(values_MP, np.random.default_rng(seed))
    return [_estimate(values, means) for values, means in zip(values_MP, means_RM.T, strict=True)]


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Estimate:
    """Return first − second on the same problems, in the same order."""
    if len(first) != len(second):
        raise ValueError(f"paired values must be of the same problems; got {len(first)} and {len(second)}")
    return estimate(np.subtract(first, second).tolist(), seed)


def macro_average(sets: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """Return the mean of the sets' means, each set resampled by itself: a small set counts as much as a large one."""
    generator = np.random.default_rng(seed)
    values = [np.asarray([per_problem], dtype=float) for per_problem in sets]
    means_RS = np.concatenate([_resampled_means(values_1P, generator) for values_1P in values], axis=1)
    return _estimate(np.array([values_1P.mean() for values_1P in values]), means_RS.mean(-1))


def _resampled_means(values_MP: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return the means of each resample: [resamples, measures]."""
    count = values_MP.shape[-1]
    if count == 0:
        raise ValueError("no problems to average over")
    means = []
    for start in range(0, RESAMPLES, _AT_ONCE):  # a few rows at a time: problems may be many
        rows = min(_AT_ONCE, RESAMPLES - start)
        chosen_RP = generator.integers(0, count, (rows, count)) + count * np.arange(rows)[:, None]
        weights_RP = np.bincount(chosen_RP.ravel(), minlength=rows * count).reshape(rows, count)
        means.append(weights_RP @ values_MP.T / count)
    return np.concatenate(means)


def _estimate(values: np.ndarray, means: np.ndarray) -> Estimate:
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))
