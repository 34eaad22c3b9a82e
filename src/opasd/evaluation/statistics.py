"""Means over problems with 95 % intervals by bootstrap, and paired differences on the same problems.

Samples of one problem are not independent, so problems are what is resampled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000


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
    values = np.asarray(per_problem, dtype=float)
    if values.size == 0:
        raise ValueError("no problems to average over")
    generator = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    for start in range(0, RESAMPLES, 500):  # a few rows at a time: problems may be many
        chosen = generator.integers(0, values.size, (500, values.size))
        means[start : start + 500] = values[chosen].mean(-1)
    low, high = np.percentile(means, [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))


def paired_difference(first: Sequence[float], second: Sequence[float], seed: int = 0) -> Estimate:
    """first − second on the same problems, in the same order."""
    if len(first) != len(second):
        raise ValueError(f"paired values must be of the same problems; got {len(first)} and {len(second)}")
    return estimate(np.subtract(first, second).tolist(), seed)
