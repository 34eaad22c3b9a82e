"""What stands in a plot: curves with bands, bars with whiskers, bubbles, and the rows of a forest plot."""

import math
from collections.abc import Sequence
from html import escape
from typing import Protocol

from opasd.analysis.curves import Point
from opasd.report.assets import COLOURS, dash, mark
from opasd.report.figure import Figure, Series
from opasd.report.numbers import percent, short
from opasd.report.text import safe, short_names
from opasd.rounding import fixed, with_interval

CHARACTER = 7.3
"""The width of one character, roughly."""
MAX_POINTS = 1200
"""A curve with more points is drawn by the lowest and the highest point of each stretch."""
LABEL_ROW = 15
ROOMY = 420
"""From this width on, curves have their names at their ends; narrower, the page's legend names them."""


class Scale(Protocol):
    """The plot's edges, and the place of a number in it."""

    @property
    def width(self) -> float: ...
    @property
    def left(self) -> float: ...
    @property
    def right(self) -> float: ...
    @property
    def top(self) -> float: ...
    @property
    def bottom(self) -> float: ...
    @property
    def y(self) -> tuple[float, float]: ...
    def across(self, value: float, /) -> float: ...
    def down(self, value: float, /) -> float: ...


def lines(figure: Figure, frame: Scale) -> str:
    """Return the curves; thin lines and bands of many methods would hide them, and are left out."""
    many = len({series.slot for series in figure.series}) > COLOURS
    parts = []
    for series in sorted(figure.series, key=lambda series: not series.faint):
        if many and series.faint:
            continue
        colour = series.slot % COLOURS
        points = [(frame.across(x), frame.down(y)) for x, y in series.points]
        inner = ""
        if series.low and not many:
            edge = [(x, frame.down(v)) for (x, _), v in zip(points, series.low, strict=True) if drawable(v)]
            back = [(x, frame.down(v)) for (x, _), v in zip(points, series.high, strict=True) if drawable(v)][::-1]
            inner += f'<polygon class="band f{colour}" points="{_join([*edge, *back])}"/>'
        faint = " faint" if series.faint else ""
        inner += f'<polyline class="curve k{colour}{dash(series.slot)}{faint}" points="{_join(_thinned(points))}"/>'
        if series.marks and len(points) <= 60:
            inner += "".join(mark(series.slot, x, y, 3.6) for x, y in points)
        elif many and points:  # the shape that the legend shows
            inner += mark(series.slot, *points[-1], 3.6)
        parts.append(f'<g class="run{series.slot}">{inner}</g>')
    return "".join(parts)


def bold(figure: Figure) -> list[Series]:
    """Return the curves that are drawn bold, which are those with names."""
    return [series for series in figure.series if series.points and not series.faint]


def end_names(figure: Figure, width: float) -> list[str]:
    """Return the names at the ends of the bold curves: at most a third of the picture's width."""
    return short_names([series.name for series in bold(figure)], int((width / 3 - 30) / CHARACTER))


def row_names(figure: Figure, width: float) -> list[str]:
    """Return the names of a forest's rows: at most two fifths of the picture's width."""
    return short_names(figure.categories, int((0.4 * width - 14) / CHARACTER))


def direct_labels(figure: Figure, frame: Scale) -> str:
    """Return the name of each bold curve beside its end, moved apart where they would overlap."""
    named = list(zip(bold(figure), end_names(figure, frame.width), strict=True))
    ends = sorted((frame.down(series.points[-1][1]), n) for n, (series, _) in enumerate(named))
    places: list[float] = []
    for y, _ in ends:
        places.append(max(y, places[-1] + LABEL_ROW) if places else max(y, frame.top + 4))
    for n in range(len(places) - 1, -1, -1):  # back up from the plot's end
        most = frame.bottom if n == len(places) - 1 else places[n + 1] - LABEL_ROW
        places[n] = min(places[n], most)
    parts = []
    for (y, n), place in zip(ends, places, strict=True):
        series, name = named[n]
        x = frame.across(series.points[-1][0])
        parts.append(
            f'<g class="run{series.slot}"><path class="lead k{series.slot % COLOURS}" d="M{x + 3:.1f} {y:.1f}L'
            f'{frame.right + 10:.1f} {place:.1f}"/>{mark(series.slot, frame.right + 12, place, 3.6)}'
            f'<text class="name" x="{frame.right + 20:.1f}" y="{place + 4:.1f}">{safe(name)}</text></g>'
        )
    return "".join(parts)


def bars(figure: Figure, frame: Scale) -> str:
    """Return groups of bars with whiskers, or with their values where they fit."""
    shown = [series for series in figure.series if series.points]
    group = (frame.right - frame.left) / max(len(figure.categories), 1)
    width = min(group * 0.8 / max(len(shown), 1), 54)
    texts = [[percent(y) if figure.percent else short(y) for _, y in series.points] for series in shown]
    fits = CHARACTER * max((len(text) for own in texts for text in own), default=0) <= width + 8
    zero = frame.down(min(max(0.0, frame.y[0]), frame.y[1]))
    parts = []
    for number, series in enumerate(shown):
        colour, inner = series.slot % COLOURS, ""
        hatch = f" h{min(series.slot // COLOURS, 3)}" if series.slot >= COLOURS else ""
        for index, (x, y) in enumerate(series.points):
            left = frame.across(x) + (number - len(shown) / 2) * width
            end = frame.down(y)
            inner += (
                f'<rect class="f{colour}{hatch} k{colour}" x="{left + 1:.1f}" y="{min(end, zero):.1f}" '
                f'width="{max(width - 2, 1):.1f}" height="{max(abs(end - zero), 0.6):.1f}"/>'
            )
            if series.low:
                middle, low, high = left + width / 2, frame.down(series.low[index]), frame.down(series.high[index])
                inner += f'<line class="whisker" x1="{middle:.1f}" y1="{low:.1f}" x2="{middle:.1f}" y2="{high:.1f}"/>'
            elif fits:
                above = end - 5 if y >= 0 else end + 14
                text = escape(texts[number][index])
                inner += f'<text x="{left + width / 2:.1f}" y="{above:.1f}" text-anchor="middle">{text}</text>'
        parts.append(f'<g class="run{series.slot}">{inner}</g>')
    return "".join(parts)


def bubbles(figure: Figure, frame: Scale) -> str:
    """Return a bubble for each point, its area after its size, and a mark in its middle."""
    largest = max((size for series in figure.series for size in series.sizes), default=0.0)
    parts = []
    for series in figure.series:
        colour, inner = series.slot % COLOURS, ""
        for index, (x, y) in enumerate(series.points):
            size = series.sizes[index] if series.sizes else largest
            radius = 26 * math.sqrt(size / largest) if largest > 0 and size > 0 else 6.0
            inner += (
                f'<circle class="bubble f{colour} k{colour}" cx="{frame.across(x):.1f}" cy="{frame.down(y):.1f}" '
                f'r="{max(radius, 4):.1f}"/>{mark(series.slot, frame.across(x), frame.down(y), 3.2)}'
            )
        parts.append(f'<g class="run{series.slot}">{inner}</g>')
    return "".join(parts)


def value_room(width: float) -> float:
    """Return the room right of a forest for its numbers; a narrow one has none."""
    return 168.0 if width >= 440 else 20.0


def forest(figure: Figure, frame: Scale) -> str:
    """Return a row for each method: its name, its difference with the interval as a bar, its seeds as small dots."""
    zero, names = frame.across(0.0), row_names(figure, frame.width)
    parts = [f'<line class="zero" x1="{zero:.1f}" y1="{frame.top:.1f}" x2="{zero:.1f}" y2="{frame.bottom:.1f}"/>']
    for series in sorted(figure.series, key=lambda series: not series.faint):
        colour, inner = series.slot % COLOURS, ""
        for index, (x, y) in enumerate(series.points):
            place, row = frame.across(x), frame.down(y)
            if series.faint:
                inner += f'<circle class="seed f{colour}" cx="{place:.1f}" cy="{row + 9:.1f}" r="2.4"/>'
                continue
            low, high = series.low[index], series.high[index]
            inner += (
                f'<text class="name" x="8" y="{row + 4:.1f}">{safe(names[int(y)])}</text>'
                f'<line class="curve k{colour}" x1="{frame.across(low):.1f}" y1="{row:.1f}" '
                f'x2="{frame.across(high):.1f}" y2="{row:.1f}"/>{mark(series.slot, place, row, 4.6)}'
            )
            if value_room(frame.width) > 100:
                text = with_interval([x, low, high], sign=True) if low != high else fixed(x, 1, sign=True)
                inner += f'<text class="name" x="{frame.right + 12:.1f}" y="{row + 4:.1f}">{escape(text)}</text>'
        parts.append(f'<g class="run{series.slot}">{inner}</g>')
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


def drawable(value: float) -> bool:
    """Return whether a picture can hold the number."""
    return math.isfinite(value) and abs(value) < 1e300
