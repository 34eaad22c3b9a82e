"""Curves of a run, from the rows of its metrics.jsonl.

A row is what training wrote for a step, or what a validation found after it. A value that is missing, null or no finite
number is no point; of several rows for one step (a run that went on) the last one counts.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Point = tuple[float, float]
SMOOTHING = 0.7
"""Of the paper's attention-alignment curve."""
LARGEST = 1e150
"""No measurement is larger; below it neither sums nor squares overflow."""


def number(value: Any) -> float | None:
    """A finite number of a sensible size as a float; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        converted = float(value)
    except OverflowError:
        return None
    return converted if abs(converted) < LARGEST else None


def curve(rows: Iterable[Row], name: str) -> list[Point]:
    """(step, value) of one measure, by step."""
    found: dict[float, float] = {}
    for row in rows:
        step, value = number(row.get("step")), number(row.get(name))
        if step is not None and value is not None:
            found[step] = value
    return sorted(found.items())


def ema(points: Sequence[Point], smoothing: float = SMOOTHING) -> list[Point]:
    """Exponential moving average: m₁ = y₁, m_t = s·m_{t−1} + (1 − s)·y_t."""
    smoothed: list[Point] = []
    for x, y in points:
        before = smoothed[-1][1] if smoothed else y
        smoothed.append((x, smoothing * before + (1 - smoothing) * y))
    return smoothed


def cumulative(points: Sequence[Point]) -> list[Point]:
    """(x, Σ of y up to x)."""
    total, summed = 0.0, []
    for x, y in points:
        total += y
        summed.append((x, total))
    return summed


def against_total(spent: Sequence[Point], reached: Sequence[Point]) -> list[Point]:
    """(what was spent up to a step, what was reached at it), such as accuracy against generated tokens."""
    summed = cumulative(spent)
    steps = [step for step, _ in summed]
    pairs = []
    for step, value in reached:
        place = bisect.bisect_right(steps, step)
        pairs.append((summed[place - 1][1] if place else 0.0, value))
    return pairs


def ends(points: Sequence[Point], window: int) -> tuple[float, float] | None:
    """The mean of the first and of the last `window` values; None of nothing."""
    if not points:
        return None
    values = [y for _, y in points]
    size = max(1, min(window, len(values)))
    return math.fsum(values[:size]) / size, math.fsum(values[-size:]) / size


def validation_curves(rows: Sequence[Row]) -> dict[str, dict[str, list[Point]]]:
    """Set ─► measure ─► curve, of what is named `validation/SET/MEASURE`; a set's name may hold slashes."""
    names = dict.fromkeys(name for row in rows for name in row if str(name).startswith("validation/"))
    found: dict[str, dict[str, list[Point]]] = {}
    for name in names:
        _, _, rest = name.partition("/")
        named, _, measure = rest.rpartition("/")
        if named and (points := curve(rows, name)):
            found.setdefault(named, {})[measure] = points
    return found
