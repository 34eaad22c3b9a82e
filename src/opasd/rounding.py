"""Decimals as people round them: half away from zero, so that one number reads the same in every table."""

import math
from decimal import ROUND_HALF_UP, Decimal

MINUS = "−"


def per_cent(value: float) -> float:
    """A share in per cent, scaled as it is written: 0.0765 is 7.65 (binary scaling would say 7.6499999999999995).

    Twelve digits: a mean of twelfths is a tie, too, where it is one."""
    return float(Decimal(f"{value:.12g}") * 100)


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
