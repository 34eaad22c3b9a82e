"""Curves of a run, from the rows of its metrics.jsonl.

A row holds the metrics of a training step or of the validation after it. A missing value, null or an infinite number
is no point. If a step has several rows, because the run was resumed, the last one counts.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

Row = Mapping[str, Any]
Point = tuple[float, float]
SMOOTHING = 0.7
"""The smoothing of the paper's attention-alignment curve."""
LARGEST = 1e150
"""No measurement is larger; below it neither sums nor squares overflow."""


def number(value: Any) -> float | None:
    """Return a finite number of a sensible size as a float, and None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if abs(converted) < LARGEST else None


def curve(rows: Iterable[Row], name: str) -> list[Point]:
    """Return (step, value) of one measure, sorted by step."""
    points: dict[float, float] = {}
    for row in rows:
        step, value = number(row.get("step")), number(row.get(name))
        if step is not None and value is not None:
            points[step] = value
    return sorted(points.items())


def ema(points: Sequence[Point], smoothing: float = SMOOTHING) -> list[Point]:
    """Return the exponential moving average: m₁ = y₁, m_t = s·m_{t−1} + (1 − s)·y_t."""
    smoothed: list[Point] = []
    for x, y in points:
        before = smoothed[-1][1] if smoothed else y
        smoothed.append((x, smoothing * before + (1 - smoothing) * y))
    return smoothed


def cumulative(points: Sequence[Point]) -> list[Point]:
    """Return (x, Σ of y up to x)."""
    return list(zip((x for x, _ in points), accumulate(y for _, y in points), strict=True))


def against_total(spent: Sequence[Point], reached: Sequence[Point]) -> list[Point]:
    """Return (total spent up to a step, value reached at it), such as accuracy against generated tokens."""
    steps, totals = [step for step, _ in spent], [0.0, *(total for _, total in cumulative(spent))]
    return [(totals[bisect.bisect_right(steps, step)], value) for step, value in reached]


def ends(points: Sequence[Point], window: int) -> tuple[float, float] | None:
    """Return the means of the first and of the last `window` values; None if there are no values."""
    if not points:
        return None
    values = [y for _, y in points]
    size = max(1, min(window, len(values)))
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size


def validation_curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Point]]]:
    """Return set ─► measure ─► curve of the values named `validation/SET/MEASURE`; SET may contain slashes."""
    names = dict.fromkeys(name for row in rows for name in row if str(name).startswith("validation/"))
    curves: dict[str, dict[str, list[Point]]] = {}
    for name in names:
        dataset, _, measure = name.removeprefix("validation/").rpartition("/")
        if dataset and (points := curve(rows, name)):
            curves.setdefault(dataset, {})[measure] = points
    return curves
