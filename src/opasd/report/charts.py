"""Line charts as plain SVG, drawn with the page's own colours so that they work in light and dark."""

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 14, 34
Point = tuple[float, float]


def line_chart(title: str, series: Mapping[str, Sequence[Point]], *, x_label: str = "step") -> str:
    """One line for each named series; points that are not finite are left out."""
    lines = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    if not xs:
        return ""
    x_ticks, y_ticks = _ticks(min(xs), max(xs)), _ticks(min(0.0, min(ys)), max(ys))
    x_span, y_span = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])

    def place(x: float, y: float) -> str:
        across = LEFT + (x - x_span[0]) / (x_span[1] - x_span[0]) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - y_span[0]) / (y_span[1] - y_span[0]) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">']
    for y in y_ticks:
        (x1, y1), (x2, y2) = (point.split(",") for point in (place(x_span[0], y), place(x_span[1], y)))
        parts.append(f'<line class="grid" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 6}" y="{float(y1) + 4}" text-anchor="end">{_number(y)}</text>')
    for x in x_ticks:
        x1 = place(x, y_span[0]).split(",")[0]
        parts.append(f'<text class="tick" x="{x1}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_number(x)}</text>')
    parts.append(f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{escape(x_label)}</text>')
    for number, points in enumerate(lines.values()):
        parts.append(f'<polyline class="line s{number}" points="{" ".join(place(x, y) for x, y in points)}"/>')
    parts.append("</svg>")
    return f"<figure><figcaption>{escape(title)}</figcaption>{''.join(parts)}</figure>"


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers that enclose the range."""
    span = (high - low) or abs(high) or 1.0
    step = 10 ** math.floor(math.log10(span / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= 6)
    first = math.floor(low / step + 1e-9)
    last = max(math.ceil(high / step - 1e-9), first + 1)
    return [index * step for index in range(first, last + 1)]


def _number(value: float) -> str:
    return f"{value:.3g}"
