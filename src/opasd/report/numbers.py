"""Numbers as people read them: rounded half away from zero in decimal, a real minus sign, units that fit."""

import math
from decimal import ROUND_HALF_UP, Decimal

MINUS = "−"


def fixed(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """`digits` decimals of the number as it is written: 29.035 is 29.04 (binary rounding would say 29.03)."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    text = f"{abs(rounded):,f}"
    minus = MINUS if rounded < 0 else "+" if sign and rounded > 0 else ""
    return minus + text


def short(value: float | None) -> str:
    """Three significant digits, with thousands as K, M, …: for axes and counts."""
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = abs(value)
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "K")):
        if size >= limit * (1 - 5e-4) and size < 1e15:
            scale = 1e3 if unit == "K" else limit
            return f"{value / scale:.3g}{unit}".replace("-", MINUS)
    text = f"{value:.3g}" if size < 1e3 or size >= 1e15 else f"{value:.0f}"
    return text.replace("e-0", "e-").replace("e+0", "e+").replace("-", MINUS)


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent."""
    return "–" if value is None else f"{fixed(100 * value, digits)} %"


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
