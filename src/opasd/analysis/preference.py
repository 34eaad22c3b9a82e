"""Measures of how a teacher's reading of a student's answers to one problem separates right from wrong."""

import math
from collections.abc import Sequence

import numpy as np

LARGEST = 0.1
"""The share of a trajectory's tokens that `top_share` looks at."""


def preference(right: Sequence[float], wrong: Sequence[float]) -> float | None:
    """Return the share of (right, wrong) pairs in which `right` is higher, ties 1/2; None without a pair."""
    if not right or not wrong:
        return None
    return sum((a > b) + 0.5 * (a == b) for a in right for b in wrong) / (len(right) * len(wrong))


def top_share(values: Sequence[float]) -> float:
    """Return the share of the sum that the 10 % largest values hold (at least one value).

    If the sum is 0, return the share of their number."""
    count = math.ceil(LARGEST * len(values))
    total = math.fsum(values)
    return math.fsum(sorted(values)[-count:]) / total if total > 0 else count / len(values)


def tenths(values: Sequence[float]) -> list[float] | None:
    """Return the sums over ten consecutive parts of nearly equal length, the longer ones first (`numpy.array_split`).

    They add up to the whole sum. None for fewer than ten values, since some parts would be empty."""
    return [math.fsum(part) for part in np.array_split(values, 10)] if len(values) >= 10 else None


def before_the_end(parts: Sequence[float], count: int) -> float:
    """Return the mean of the values in the first nine of the `tenths` of `count` values."""
    return math.fsum(parts[:9]) / (count - count // 10)
