"""Round decimals as people do, half away from zero, so that a number reads the same in every table; align cells."""

import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_HALF_UP, Decimal

MINUS = "−"


def per_cent(value: float) -> float:
    """Return a share in per cent, scaled in decimal: 0.0765 is 7.65 (binary scaling gives 7.6499999999999995).

    Twelve digits, so that a mean of twelfths is a tie if it is one exactly.
    """
    return float(Decimal(f"{value:.12g}") * 100)


def fixed(value: float | None, digits: int = 2, *, sign: bool = False) -> str:
    """Return the number with `digits` decimals, rounded in decimal: 29.035 is 29.04 (binary rounding gives 29.03)."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1e15:
        return f"{value:.3g}"
    rounded = Decimal(repr(float(value))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)
    text = f"{abs(rounded):,f}"
    minus = MINUS if rounded < 0 else "+" if sign and rounded > 0 else ""
    return minus + text


def with_interval(values: Iterable[float], digits: int = 1, *, sign: bool = False) -> str:
    """Return a mean and the bounds of its interval as `mean [low, high]`."""
    mean, low, high = (fixed(value, digits, sign=sign) for value in values)
    return f"{mean} [{low}, {high}]"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row of cells, in columns of one width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
