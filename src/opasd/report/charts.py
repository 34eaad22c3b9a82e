"""Draw figures as SVG: in a page with the page's colours, or standalone with fixed ones.

The page's script reads the scales of a plot and its points from `hover`, for the crosshair.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.util import find_spec
from typing import Any

from opasd.analysis.curves import Point
from opasd.errors import ConfigError
from opasd.report.assets import CHART_STYLE, COLOURS, resolved
from opasd.report.figure import Figure, Series
from opasd.report.numbers import labels, percent
from opasd.report.text import printable, safe, shared_start, shortened

WIDTH, PLOT_HEIGHT = 560, 236
LEFT, RIGHT, BOTTOM = 52, 18, 46
TOP = 22
"""Height above the plot, for the label of the y axis."""
LEGEND_ROW, CLOSE_ROW = 20, 17
"""Height of a legend's row, with few and with many rows."""
LONGEST_NAME = 34
TITLE = 36
"""Height of the title that a standalone picture carries."""
MAX_POINTS = 1200
"""A curve with more points is drawn by the lowest and the highest point of each stretch."""
_CHARACTER = 7.0
"""The width of one character of the legend, roughly."""


@dataclass(frozen=True)
class _Frame:
    """The edges of the plot in the picture, and the numbers at its edges."""

    left: float
    right: float
    top: float
    bottom: float
    x: tuple[float, float]
    y: tuple[float, float]

    def across(self, value: float) -> float:
        return self.left + (value - self.x[0]) / (self.x[1] - self.x[0]) * (self.right - self.left)

    def down(self, value: float) -> float:
        return self.bottom - (value - self.y[0]) / (self.y[1] - self.y[0]) * (self.bottom - self.top)


def svg(figure: Figure, *, standalone: bool = False) -> str:
    """Return the picture; a standalone one carries title, background and style."""
    figure = _finite(figure)
    legend, legend_height = _legend(figure)
    top = TOP + legend_height + (TITLE if standalone else 0)
    frame = _frame(figure, top)
    height = round(frame.bottom + BOTTOM)
    name = safe(f"{figure.title}: {figure.y_label} by {figure.x_label}")
    head = ">"
    if standalone:
        head = (
            f' xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}">'
            f'<style>{resolved(CHART_STYLE)}</style><rect class="back" width="{WIDTH}" height="{height}"/>'
            f'<text class="title" x="16" y="26">{safe(figure.title)}</text>'
        )
    draw = {"line": _lines, "bar": _bars, "scatter": _bubbles}[figure.kind]
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{name}"{head}'
        f'<g transform="translate(0 {TITLE if standalone else 0})">{legend}</g>'
        f"{_axes(figure, frame)}{draw(figure, frame)}</svg>"
    )


def rasteriser() -> Callable[[str], bytes]:
    """Return the function SVG text ─► PNG bytes, with three pixels a unit; it needs the `png` extra."""
    if find_spec("resvg_py") is None:
        raise ConfigError(
            "--png needs resvg; pip install 'opasd[png]', or use the PNG button under each figure of the page"
        )
    import resvg_py

    return lambda picture: bytes(resvg_py.svg_to_bytes(svg_string=picture, zoom=3))


def hover(figure: Figure) -> dict[str, Any]:
    """Return what the page's script needs: the figure's plot, scales and points."""
    figure = _finite(figure)
    frame = _frame(figure, TOP + _legend(figure)[1])
    return {
        "id": figure.id,
        "kind": figure.kind,
        "plot": [frame.left, frame.right, frame.top, frame.bottom],
        "x": [*frame.x],
        "y": [*frame.y],
        "xl": figure.x_label,
        "yl": figure.y_label,
        "pct": figure.percent,
        "cat": [printable(name) for name in figure.categories],
        "series": list(map(_hover_series, figure.series)),
    }


def _hover_series(series: Series) -> dict[str, Any]:
    points = [_compact(point) for point in series.points]
    columns = {"lo": _compact(series.low), "hi": _compact(series.high), "s": _compact(series.sizes)}
    values: dict[str, Any] = {"n": printable(series.name), "r": series.run, "p": points}
    values |= {"f": 1} if series.faint else {}
    return values | {name: column for name, column in columns.items() if column}


def ticks(low: float, high: float, count: int = 5, *, whole: bool = False) -> list[float]:
    """Return about `count` round numbers within the range; `whole` allows only whole ones."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    step = 10.0 ** math.floor(math.log10(span / count))
    factors = (1, 2, 5, 10) if whole else (1, 2, 2.5, 5, 10)
    step *= next(factor for factor in factors if span / (step * factor) <= count + 0.5)
    step = max(step, 1.0) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [0.0 if index == 0 else index * step for index in range(first, last + 1)]


def _finite(figure: Figure) -> Figure:
    """Return the figure without the points that cannot be drawn."""
    drawn = []
    for series in figure.series:
        indices = [index for index, point in enumerate(series.points) if all(map(_drawable, point))]
        columns = {"points": series.points, "low": series.low, "high": series.high, "sizes": series.sizes}
        drawn.append(replace(series, **{name: [own[n] for n in indices] for name, own in columns.items() if own}))
    return replace(figure, series=drawn)


def _drawable(value: float) -> bool:
    return math.isfinite(value) and abs(value) < 1e300


def _frame(figure: Figure, top: float) -> _Frame:
    xs = [x for series in figure.series for x, _ in series.points] or [0.0]
    ys = [y for series in figure.series for _, y in series.points] or [0.0]
    ys += [v for series in figure.series for v in (*series.low, *series.high) if _drawable(v)]
    if figure.kind == "bar":
        x = (-0.5, len(figure.categories) - 0.5) if figure.categories else (-0.5, 0.5)
    else:
        x = _padded(min(xs), max(xs), 0.12 if figure.kind == "scatter" else 0.0)
    low, high = min(ys), max(ys)
    if figure.from_zero or figure.kind == "bar":
        low, high = min(low, 0.0), max(high, 0.0)
    y_low, y_high = _padded(low, high, 0.25 if figure.kind == "scatter" else 0.08)
    if (figure.from_zero or figure.kind == "bar") and low == 0:
        y_low = 0.0
    if figure.kind == "bar" and high == 0 and low < 0:
        y_high = 0.0
    if figure.percent and low >= 0 and high <= 1:
        y_low, y_high = max(y_low, 0.0), min(y_high, 1.0)
    return _Frame(LEFT, WIDTH - RIGHT, top, top + PLOT_HEIGHT, x, (y_low, y_high))


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    span = high - low
    if span <= abs(high) * 1e-9:
        room = abs(high) * 0.1 or 1.0
        return low - room, high + room
    return low - span * share, high + span * share


def _axes(figure: Figure, frame: _Frame) -> str:
    parts = []
    marks = ticks(*frame.y)
    for value, text in zip(marks, labels(marks, percent=figure.percent), strict=True):
        y = frame.down(value)
        parts.append(f'<line class="grid" x1="{frame.left:g}" y1="{y:.1f}" x2="{frame.right:g}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{frame.left - 8:g}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    base = frame.down(0) if figure.kind == "bar" and frame.y[0] < 0 < frame.y[1] else frame.bottom
    parts.append(f'<line class="axis" x1="{frame.left:g}" y1="{base:.1f}" x2="{frame.right:g}" y2="{base:.1f}"/>')
    if figure.categories:
        room = int((frame.right - frame.left) / max(len(figure.categories), 1) / _CHARACTER)
        marks = range(len(figure.categories))
        texts = [safe(shortened(name, max(room, 4))) for name in figure.categories]
    else:
        whole = all(float(x).is_integer() for series in figure.series for x, _ in series.points)
        marks = ticks(*frame.x, 7, whole=whole)
        texts = map(escape, labels(marks))
    for value, text in zip(marks, texts, strict=True):
        x = frame.across(value)
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 18:.1f}" text-anchor="middle">{text}</text>')
    middle = (frame.left + frame.right) / 2
    label = "" if figure.categories else safe(shortened(figure.x_label, 70))
    parts.append(f'<text x="{middle:g}" y="{frame.bottom + 38:.1f}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="16" y="{frame.top - 13:.1f}">{safe(shortened(figure.y_label, 60))}</text>')
    return "".join(parts)


def _legend(figure: Figure) -> tuple[str, float]:
    """Return the runs' names in their colours, in as many rows as they need, and the height of the legend."""
    shown = (series for series in figure.series if series.points and not series.faint)
    names = dict.fromkeys((series.name, series.run) for series in shown)
    texts = [printable(shortened(name, LONGEST_NAME)) for name in without_shared_start([name for name, _ in names])]
    widths = [26 + _CHARACTER * len(text) + 14 for text in texts]
    row = LEGEND_ROW
    if len(names) > COLOURS:
        widths, row = [max(widths)] * len(widths), CLOSE_ROW
    parts, x, y = [], 16.0, 14.0
    for (name, run), text, width in zip(names, texts, widths, strict=True):
        if x > 16 and x + width > WIDTH:
            x, y = 16.0, y + row
        colour = run % COLOURS
        sample = (
            f'<path class="curve k{colour}{_dash(run)}" d="M{x:.0f} {y - 4:.0f}h18"/>'
            if figure.kind == "line"
            else f'<rect class="f{colour}" x="{x + 3:.0f}" y="{y - 10:.0f}" width="12" height="12" rx="3"/>'
        )
        parts.append(
            f'<g class="run{run}">{sample}<text class="name" x="{x + 24:.0f}" y="{y:.0f}">{escape(text)}'
            f"<title>{safe(name)}</title></text></g>"
        )
        x += width
    return "".join(parts), y + 12 if parts else 8.0


def without_shared_start(names: Sequence[str]) -> Sequence[str]:
    """Return many or long names without the words that all of them begin with, so that their ends are shown."""
    if len(names) < 2 or (len(names) <= COLOURS and max(map(len, names)) <= LONGEST_NAME):
        return names
    shared = len(shared_start(names))
    cut = max(names[0].rfind(separator, 0, shared) for separator in "-_/ ") + 1
    return names if any(len(name) == cut for name in names) else [name[cut:] for name in names]


def _lines(figure: Figure, frame: _Frame) -> str:
    parts = []
    # Raw values and bands of many runs would hide the curves.
    many = len({series.run for series in figure.series}) > COLOURS
    for series in sorted(figure.series, key=lambda series: not series.faint):
        if many and series.faint:
            continue
        colour, dash = series.run % COLOURS, _dash(series.run)
        points = [(frame.across(x), frame.down(y)) for x, y in series.points]
        inner = ""
        if series.low and not many:
            edge = [(x, frame.down(v)) for (x, _), v in zip(points, series.low, strict=True) if _drawable(v)]
            back = [(x, frame.down(v)) for (x, _), v in zip(points, series.high, strict=True) if _drawable(v)][::-1]
            inner += f'<polygon class="band f{colour}" points="{_join([*edge, *back])}"/>'
        faint = " faint" if series.faint else ""
        inner += f'<polyline class="curve k{colour}{dash}{faint}" points="{_join(_thinned(points))}"/>'
        if series.marks and len(points) <= 60:
            inner += "".join(f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.4"/>' for x, y in points)
        parts.append(f'<g class="run{series.run}">{inner}</g>')
    return "".join(parts)


def _bars(figure: Figure, frame: _Frame) -> str:
    shown = [series for series in figure.series if series.points]
    group = (frame.right - frame.left) / max(len(figure.categories), 1)
    width = min(group * 0.8 / max(len(shown), 1), 54)
    texts = [[percent(y) if figure.percent else f"{y:.3g}" for _, y in series.points] for series in shown]
    fits = _CHARACTER * max((len(text) for own in texts for text in own), default=0) <= width + 8
    zero = frame.down(min(max(0.0, frame.y[0]), frame.y[1]))
    parts = []
    for number, series in enumerate(shown):
        colour, inner = series.run % COLOURS, ""
        for index, (x, y) in enumerate(series.points):
            left = frame.across(x) + (number - len(shown) / 2) * width
            end = frame.down(y)
            inner += (
                f'<rect class="f{colour}" x="{left + 1:.1f}" y="{min(end, zero):.1f}" width="{max(width - 2, 1):.1f}" '
                f'height="{max(abs(end - zero), 0.6):.1f}" rx="2"/>'
            )
            if series.low:
                middle, low, high = left + width / 2, frame.down(series.low[index]), frame.down(series.high[index])
                inner += f'<line class="whisker" x1="{middle:.1f}" y1="{low:.1f}" x2="{middle:.1f}" y2="{high:.1f}"/>'
            elif fits:
                above = end - 5 if y >= 0 else end + 14
                text = escape(texts[number][index])
                inner += f'<text x="{left + width / 2:.1f}" y="{above:.1f}" text-anchor="middle">{text}</text>'
        if len(series.points) == 1:
            ((_, y),) = series.points
            inner += f"<title>{safe(series.name)}: {percent(y) if figure.percent else f'{y:,.4g}'}</title>"
        parts.append(f'<g class="run{series.run}">{inner}</g>')
    return "".join(parts)


def _bubbles(figure: Figure, frame: _Frame) -> str:
    largest = max((size for series in figure.series for size in series.sizes), default=0.0)
    parts = []
    for series in figure.series:
        colour, inner = series.run % COLOURS, ""
        for index, (x, y) in enumerate(series.points):
            size = series.sizes[index] if series.sizes else largest
            radius = 26 * math.sqrt(size / largest) if largest > 0 and size > 0 else 6.0
            inner += (
                f'<circle class="bubble f{colour} k{colour}" cx="{frame.across(x):.1f}" cy="{frame.down(y):.1f}" '
                f'r="{max(radius, 4):.1f}"/><circle class="f{colour}" cx="{frame.across(x):.1f}" '
                f'cy="{frame.down(y):.1f}" r="2.5"/>'
            )
        parts.append(f'<g class="run{series.run}">{inner}</g>')
    return "".join(parts)


def _thinned(points: Sequence[Point]) -> Sequence[Point]:
    """Return at most MAX_POINTS points that keep every peak."""
    if len(points) <= MAX_POINTS:
        return points
    stretch = math.ceil(2 * len(points) / MAX_POINTS)
    thinned = []
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        thinned += sorted({min(part, key=lambda point: point[1]), max(part, key=lambda point: point[1])})
    return thinned


def _join(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _dash(run: int) -> str:
    return f" d{min(run // COLOURS, 3)}" if run >= COLOURS else ""


def _compact(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.12g}") for value in values]
