"""Draw figures as SVG: in a page with the page's colours, or standalone with title, legend and fixed colours.

`assets/charts.js` draws the same from `data`, in the page, when methods are hidden or the page is narrow: what changes
here changes there, and the browser tests compare the two.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.util import find_spec
from typing import Any

from opasd.errors import ConfigError
from opasd.report import marks
from opasd.report.assets import CHART_STYLE, COLOURS, mark, resolved
from opasd.report.figure import Figure, Series
from opasd.report.numbers import labels
from opasd.report.text import printable, safe, short_names, shortened, without_shared_start

WIDTH, PLOT_HEIGHT = 560, 236
TOP, BOTTOM, ROW = 24, 46, 30
"""Height above the plot, for the label of the y axis; below it, for the x axis; and of a forest's row."""
LEGEND_ROW = 20
LONGEST_NAME = 34
"""Characters of a name in a legend."""
TITLE = 36
"""Height of the title that a standalone picture carries."""


@dataclass(frozen=True)
class Frame:
    """The edges of the plot in the picture, and the numbers at its edges."""

    width: float
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


def svg(figure: Figure, *, standalone: bool = False, width: float = WIDTH) -> str:
    """Return the picture; a standalone one carries title, legend, background and style."""
    figure = _finite(figure)
    legend, legend_height = _legend(figure, width) if standalone else ("", 0.0)
    plot = frame(figure, TOP + legend_height + (TITLE if standalone else 0), width)
    height = round(plot.bottom + BOTTOM)
    name = safe(f"{figure.title}: {figure.y_label or 'difference'} by {figure.x_label or 'method'}")
    head = ">"
    if standalone:
        head = (
            f' xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height}">'
            f'<style>{resolved(CHART_STYLE)}</style><rect class="back" width="{width:g}" height="{height}"/>'
            f'<text class="title" x="16" y="26">{safe(figure.title)}</text>'
        )
    draw = {"line": marks.lines, "bar": marks.bars, "scatter": marks.bubbles, "forest": marks.forest}[figure.kind]
    direct = marks.direct_labels(figure, plot) if _labelled(figure, width) else ""
    return (
        f'<svg class="plot" viewBox="0 0 {width:g} {height}" role="img" aria-label="{name}"{head}'
        f'<g transform="translate(0 {TITLE if standalone else 0})">{legend}</g>'
        f"{_axes(figure, plot)}{draw(figure, plot)}{direct}</svg>"
    )


def rasteriser() -> Callable[[str], bytes]:
    """Return the function SVG text ─► PNG bytes, with three pixels a unit; it needs the `png` extra."""
    if find_spec("resvg_py") is None:
        raise ConfigError(
            "--png needs resvg; pip install 'opasd[png]', or use the PNG button under each figure of the page"
        )
    import resvg_py

    def rasterise(picture: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=picture, zoom=3))

    style = f"<style>{resolved(CHART_STYLE)}</style>"
    empty, written = (
        rasterise(f'<svg xmlns="http://www.w3.org/2000/svg" class="plot" width="9" height="9">{style}{text}</svg>')
        for text in ("", '<text y="9">x</text>')
    )
    if empty == written:  # resvg draws no text at all where it knows no font
        raise ConfigError(
            "--png finds no font here, and its figures would have no text; install one (on Debian: apt install "
            "fonts-dejavu-core), or use the PNG button under each figure of the page"
        )
    return rasterise


def data(figure: Figure) -> dict[str, Any]:
    """Return the figure as the page's script draws it."""
    figure = _finite(figure)
    return {
        "id": figure.id,
        "kind": figure.kind,
        "title": printable(figure.title),
        "xl": printable(figure.x_label),
        "yl": printable(figure.y_label),
        "pct": figure.percent,
        "zero": figure.from_zero,
        "cat": [printable(name) for name in figure.categories],
        "marks": list(figure.x_marks),
        "series": list(map(_series_data, figure.series)),
    }


def _series_data(series: Series) -> dict[str, Any]:
    points = [_compact(point) for point in series.points]
    columns = {"lo": _compact(series.low), "hi": _compact(series.high), "s": _compact(series.sizes)}
    values: dict[str, Any] = {"n": printable(series.name), "r": series.slot, "p": points}
    values |= {"f": 1} if series.faint else {}
    values |= {"m": 1} if series.marks else {}
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
        indices = [index for index, point in enumerate(series.points) if all(map(marks.drawable, point))]
        columns = {"points": series.points, "low": series.low, "high": series.high, "sizes": series.sizes}
        drawn.append(replace(series, **{name: [own[n] for n in indices] for name, own in columns.items() if own}))
    return replace(figure, series=drawn)


def frame(figure: Figure, top: float, width: float) -> Frame:
    """Return the plot's place in the picture and its scales: its margins hold the labels, whatever their length."""
    figure = _finite(figure)
    xs = [x for series in figure.series for x, _ in series.points] or [0.0]
    ys = [y for series in figure.series for _, y in series.points] or [0.0]
    ends = [v for series in figure.series for v in (*series.low, *series.high) if marks.drawable(v)]
    if figure.kind == "forest":
        x = _padded(min([*xs, *ends, 0.0]), max([*xs, *ends, 0.0]), 0.06)
        rows = len(figure.categories)
        left = 14 + marks.CHARACTER * max(map(len, marks.row_names(figure, width)), default=0)
        return Frame(width, left, width - marks.value_room(width), top, top + ROW * rows, x, (rows - 0.5, -0.5))
    ys += ends
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
    widest = max(map(len, labels(ticks(y_low, y_high), percent=figure.percent)), default=0)
    right = 20.0
    if _labelled(figure, width):
        right = 30 + marks.CHARACTER * max(map(len, marks.end_names(figure, width)), default=0)
    left = 16 + marks.CHARACTER * widest
    return Frame(width, left, width - right, top, top + PLOT_HEIGHT, x, (y_low, y_high))


def _labelled(figure: Figure, width: float) -> bool:
    """Return whether there is room for a name at the end of each bold curve."""
    return figure.kind == "line" and 0 < len(marks.bold(figure)) <= COLOURS and width >= marks.ROOMY


def _padded(low: float, high: float, share: float) -> tuple[float, float]:
    span = high - low
    if span <= abs(high) * 1e-9:
        room = abs(high) * 0.1 or 1.0
        return low - room, high + room
    return low - span * share, high + span * share


def _axes(figure: Figure, frame: Frame) -> str:
    parts = []
    if figure.kind != "forest":
        marked = ticks(*frame.y)
        for value, text in zip(marked, labels(marked, percent=figure.percent), strict=True):
            y = frame.down(value)
            parts.append(f'<line class="grid" x1="{frame.left:.1f}" y1="{y:.1f}" x2="{frame.right:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{frame.left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    base = frame.down(0) if figure.kind == "bar" and frame.y[0] < 0 < frame.y[1] else frame.bottom
    parts.append(f'<line class="axis" x1="{frame.left:.1f}" y1="{base:.1f}" x2="{frame.right:.1f}" y2="{base:.1f}"/>')
    for place, text in _x_marks(figure, frame):
        half = marks.CHARACTER * len(text) / 2
        x = (
            min(max(frame.across(place), half), frame.right + 20 - half)
            if figure.kind != "bar"
            else frame.across(place)
        )
        parts.append(f'<text x="{x:.1f}" y="{frame.bottom + 18:.1f}" text-anchor="middle">{safe(text)}</text>')
    middle = (frame.left + frame.right) / 2
    label = "" if figure.categories and figure.kind == "bar" else safe(shortened(figure.x_label, 70))
    parts.append(f'<text x="{middle:.1f}" y="{frame.bottom + 38:.1f}" text-anchor="middle">{label}</text>')
    parts.append(f'<text x="12" y="{frame.top - 12:.1f}">{safe(shortened(figure.y_label, 60))}</text>')
    return "".join(parts)


def _x_marks(figure: Figure, frame: Frame) -> list[tuple[float, str]]:
    """Return where the x axis has its marks, and their texts: those of the data where it has some, as many as fit."""
    if figure.categories and figure.kind == "bar":
        room = int((frame.right - frame.left) / max(len(figure.categories), 1) / marks.CHARACTER)
        return [(float(n), shortened(name, max(room, 3))) for n, name in enumerate(figure.categories)]
    if figure.x_marks:
        kept: list[tuple[float, str]] = []
        for value in figure.x_marks:
            text = f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"
            if not kept or frame.across(value) - frame.across(kept[-1][0]) > marks.CHARACTER * (len(text) + 1):
                kept.append((value, text))
        return kept
    whole = figure.kind != "forest" and all(float(x).is_integer() for series in figure.series for x, _ in series.points)
    marked = ticks(*frame.x, max(2, int((frame.right - frame.left) / 56)), whole=whole)
    return list(zip(marked, labels(marked), strict=True))


def _legend(figure: Figure, width: float) -> tuple[str, float]:
    """Return the names in their colours, in as many rows as they need, and the height of the legend."""
    if _labelled(figure, width) or figure.kind == "forest":
        return "", 0.0
    shown = (series for series in figure.series if series.points and not series.faint)
    names = dict.fromkeys((series.name, series.slot) for series in shown)
    many = len(names) > COLOURS
    own = [name for name, _ in names]
    texts = short_names(without_shared_start(own) if many else own, LONGEST_NAME)
    parts, x, y = [], 16.0, 14.0
    for (_, slot), text in zip(names, texts, strict=True):
        wide = 26 + marks.CHARACTER * len(text) + 12
        if x > 16 and x + wide > width:
            x, y = 16.0, y + LEGEND_ROW
        parts.append(
            f'<g class="run{slot}">{mark(slot, x + 8, y - 4, 5)}'
            f'<text class="name" x="{x + 22:.1f}" y="{y:.1f}">{safe(text)}</text></g>'
        )
        x += wide
    return "".join(parts), y + 14 if parts else 0.0


def _compact(values: Sequence[float]) -> list[float]:
    return [float(f"{value:.12g}") for value in values]
