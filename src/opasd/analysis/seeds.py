"""Several runs that differ in their seed: mean, sample standard deviation, 95 % interval of the mean by Student's t."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """One number over several runs; a single run has no spread."""

    count: int
    mean: float
    sd: float | None
    """The sample standard deviation, with n − 1 in the denominator."""
    half_width: float | None
    """The interval is mean ± this: t · sd / √n."""

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.half_width is None else (self.mean - self.half_width, self.mean + self.half_width)


def summarise(values: Sequence[float]) -> Summary:
    """Return mean, spread and interval of at least one value."""
    if not values:
        raise ValueError("no values to summarise")
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Summary(1, mean, None, None)
    sd = statistics.stdev(values)
    return Summary(len(values), mean, sd, t_quantile(len(values) - 1) * sd / math.sqrt(len(values)))


@cache
def t_quantile(freedom: int) -> float:
    """Return t with P(|T| < t) = CONFIDENCE, by bisection on the closed form of the distribution."""
    if freedom < 1:
        raise ValueError(f"degrees of freedom must be 1 or more, got {freedom}")
    low, high = 0.0, 1.0
    while within(high, freedom) < CONFIDENCE:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, freedom) < CONFIDENCE else (low, middle)
    return (low + high) / 2


def within(t: float, freedom: int) -> float:
    """Return P(|T| < t) for Student's t with ν whole degrees of freedom, a finite series in cos θ = √ν/√(ν + t²)."""
    angle = math.atan2(t, math.sqrt(freedom))
    cosine, sine = math.cos(angle), math.sin(angle)
    if freedom == 1:
        return 2 * angle / math.pi
    odd = freedom % 2
    term = total = cosine if odd else 1.0
    for power in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
