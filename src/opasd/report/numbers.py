"""Numbers as people read them: rounded half away from zero in decimal, a real minus sign, units that fit."""

import math
from collections.abc import Sequence
from itertools import pairwise

from opasd.rounding import MINUS, fixed, per_cent

_UNITS = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "K"))
"""From this size on, divided by this, with this unit."""


def short(value: float | None) -> str:
    """Three significant digits, with thousands as K, M, …: for axes and counts."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    for limit, scale, unit in _UNITS:
        if size >= limit * (1 - 5e-4) and size < 1e15:
            return f"{value / scale:.3g}{unit}".replace("-", MINUS)
    text = f"{value:.3g}" if size < 1e3 or size >= 1e15 else f"{value:.0f}"
    return text.replace("e-0", "e-").replace("e+0", "e+").replace("-", MINUS)


def labels(values: Sequence[float], *, percent: bool = False) -> list[str]:
    """The marks of one axis, in one unit and with as many decimals as tell exactly where they are."""
    largest = max(map(abs, values), default=0.0)
    if not percent and not 1e-3 <= largest < 1e15:
        return [short(value) for value in values]
    scale, unit = next(((scale, unit) for limit, scale, unit in _UNITS if largest >= limit), (1.0, ""))
    if percent:
        scale, unit = 0.01, " %"
    scaled = [value / scale for value in values]
    fine = 1e-4 * min((abs(b - a) for a, b in pairwise(scaled)), default=largest / scale)
    decimals = next((d for d in range(7) if all(abs(value - round(value, d)) <= fine for value in scaled)), 7)
    return [f"{fixed(value, decimals)}{unit}" if value else f"0{unit if percent else ''}" for value in scaled]


def operations(counts: Sequence[float]) -> tuple[str, float]:
    """Return the unit in which the largest of these counts of operations reads well, and its size."""
    largest = max(counts, default=0.0)
    units = {"EFLOPs": 1e18, "PFLOPs": 1e15, "TFLOPs": 1e12}
    return next(((name, size) for name, size in units.items() if largest >= 0.1 * size), ("GFLOPs", 1e9))


def percent(value: float | None) -> str:
    """A share as per cent."""
    return "–" if value is None else f"{fixed(per_cent(value), 1)} %"


def duration(seconds: float | None) -> str:
    """Seconds, minutes or hours."""
    if seconds is None or not math.isfinite(seconds):
        return "–"
    if seconds < 90:
        return f"{fixed(seconds, 1)} s"
    return f"{fixed(seconds / 60, 1)} min" if seconds < 5400 else f"{fixed(seconds / 3600, 2)} h"


def size(count: float | None) -> str:
    """Bytes."""
    if count is None or not math.isfinite(count):
        return "–"
    return f"{fixed(count / 2**30, 2)} GiB" if count >= 2**30 else f"{fixed(count / 2**20, 1)} MiB"
