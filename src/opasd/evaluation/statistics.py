"""Means over problems with 95 % intervals by bootstrap, and paired differences on the same problems.

Samples of one problem are not independent, so problems are what is resampled.
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

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.mean:.4g} [{self.low:.4g}, {self.high:.4g}]"


def estimate(per_problem: Sequence[float], seed: int = 0) -> Estimate:
    """The mean over problems; percentile bootstrap."""
    return estimates([per_problem], seed)[0]


def estimates(columns: Sequence[Sequence[float]], seed: int = 0) -> list[Estimate]:
    """`estimate` of several measures of the same problems, which are resampled once for all."""
    values_MP = np.asarray(columns, dtype=float)
    means_RM = _resampled_means(values_MP, np.random.default_rng(seed))
    return [_estimate(values, means) for values, means in zip(values_MP, means_RM.T, strict=True)]


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Estimate:
    """first − second on the same problems, in the same order."""
    if len(first) != len(second):
        raise ValueError(f"paired values must be of the same problems; got {len(first)} and {len(second)}")
    return estimate(np.subtract(first, second).tolist(), seed)


def macro_average(sets: Sequence[Sequence[float]], seed: int = 0) -> Estimate:
    """The mean of several sets' means, each set resampled by itself: a small one counts as much as a large one."""
    generator = np.random.default_rng(seed)
    values = [np.asarray([one], dtype=float) for one in sets]
    means_RS = np.concatenate([_resampled_means(one, generator) for one in values], axis=1)
    return _estimate(np.array([one.mean() for one in values]), means_RS.mean(-1))


def _resampled_means(values_MP: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """[resamples, measures]."""
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
