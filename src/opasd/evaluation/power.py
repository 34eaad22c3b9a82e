"""How many problems and samples a claim needs, from how much problems and samples vary.

A problem's rate θ has mean p and variance B over problems; a sample of it has variance θ (1 − θ), on average
W = p (1 − p) − B. With P problems and n samples of each:

    one model        Var Avg = (B + W / n) / P                      these problems alone: W / n P
    two, paired      Var gap = (D + 2 W / n) / P                    these problems alone: 2 W / n P

D is the variance over problems of the difference of two models' rates. More samples remove W, only more problems B and
D. The width of a 95 % interval is 2 t √Var; a difference of (t + z) √Var is found with the wanted power.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, variance
from typing import Any, NamedTuple

from opasd.analysis.seeds import t_quantile
from opasd.errors import ConfigError

MOST = 1_000_000


class Spread(NamedTuple):
    """How much problems and samples vary."""

    between: float
    """B, the variance of rates over problems."""
    within: float
    """W, the mean variance of one sample."""
    difference: float
    """D, the variance over problems of the difference of two rates."""

    def error(self, problems: int, samples: int, *, paired: bool) -> float:
        """Return the standard error of Avg, or of a paired difference, for problems like these."""
        between, models = (self.difference, 2) if paired else (self.between, 1)
        return math.sqrt((between + models * self.within / samples) / problems)

    def width(self, problems: int, samples: int, *, paired: bool) -> float:
        """Return the width of the 95 % interval."""
        return 2 * t_quantile(min(problems - 1, 200)) * self.error(problems, samples, paired=paired)

    def detectable(self, problems: int, samples: int, power: float) -> float:
        """Return the difference of two models that a 95 % interval excludes 0 for with this power."""
        z = NormalDist().inv_cdf(power)
        return (t_quantile(min(problems - 1, 200)) + z) * self.error(problems, samples, paired=True)

    def problems_for(self, wanted: float, samples: int, power: float | None) -> int | None:
        """Return the fewest problems for a width of Avg's interval, or with `power` for a detectable difference."""

        def enough(problems: int) -> bool:
            reached = self.width(problems, samples, paired=False)
            return (reached if power is None else self.detectable(problems, samples, power)) <= wanted

        low, high = 1, 2
        while not enough(high):
            low, high = high, 2 * high
            if high > MOST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if enough(middle) else (middle, high)
        return high


def assumed(accuracy: float, correlation: float, agreement: float) -> Spread:
    """Return the spread for a mean rate, and the correlations of a problem's samples and of two models' rates."""
    between = correlation * accuracy * (1 - accuracy)
    return Spread(between, accuracy * (1 - accuracy) - between, 2 * (1 - agreement) * between)


def measured(counts: Sequence[int], samples: int, other: Sequence[int] | None = None, agreement: float = 0.9) -> Spread:
    """Return the spread of an evaluation from the right ones of each problem's samples, of one model or of two."""
    if len(counts) < 2 or samples < 2:
        raise ConfigError(
            f"spread cannot be measured with {len(counts)} problems and {samples} samples; give an evaluation of 2 and "
            "more of each, or --accuracy and --correlation"
        )
    within = _within(counts, samples)
    between = max(variance([count / samples for count in counts]) - within / samples, 0.0)
    if other is None:
        return Spread(between, within, 2 * (1 - agreement) * between)
    gaps = [(count - second) / samples for count, second in zip(counts, other, strict=True)]
    noise = (within + _within(other, samples)) / samples
    return Spread(between, noise * samples / 2, max(variance(gaps) - noise, 0.0))


def _within(counts: Sequence[int], samples: int) -> float:
    return fmean(count * (samples - count) / (samples * (samples - 1)) for count in counts)


def measured_spreads(evaluation: Mapping[str, Any], agreement: float) -> dict[str, Spread]:
    """Return the spread of each benchmark of an evaluation.json: of its first target, and of the second against it."""
    found: dict[str, list[tuple[int, dict[str, int]]]] = {}
    largest = max((row["budget"] for row in evaluation["results"]), default=0)
    for row in evaluation["results"]:
        if row["budget"] == largest:
            counts = {problem: own["correct"] for problem, own in row["per_problem"].items()}
            found.setdefault(row["benchmark"], []).append((row["samples"], counts))
    spreads = {}
    for name, rows in found.items():
        samples, first = rows[0]
        second = next((own for _, own in rows[1:] if own.keys() == first.keys()), None)
        other = None if second is None else [second[problem] for problem in first]
        spreads[name] = measured(list(first.values()), samples, other, agreement)
    return spreads


def averaged_problems(sizes: Sequence[int]) -> int:
    """Return the problems of one benchmark whose Avg is as exact as the average over benchmarks of these sizes.

    Each benchmark weighs the same, so Var = Σ 1 / P_b over the square of their number.
    """
    return max(2, round(len(sizes) ** 2 / sum(1 / size for size in sizes)))


def power_rows(
    spread: Spread, sizes: Sequence[int], samples: Sequence[int], power: float
) -> list[tuple[int, int, float, float, float]]:
    """Return problems, samples, the width of Avg's interval, that of a paired difference, and the detectable one."""
    return [
        (
            problems, n, spread.width(problems, n, paired=False), spread.width(problems, n, paired=True),
            spread.detectable(problems, n, power),
        )
        for problems in sizes for n in samples
    ]  # fmt: skip
