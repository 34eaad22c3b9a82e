"""A figure's data. `figures` and `accuracy` make figures of runs, `facts` of published numbers, `charts` draws them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from opasd.analysis.curves import Point
from opasd.report.text import csv_text


@dataclass(frozen=True)
class Series:
    """Points of one colour. `low` and `high` are a band around a line or the whiskers of a bar or a forest's row."""

    name: str
    slot: int
    """The slot of the method, which decides colour and mark: one method has one colour everywhere."""
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    faint: bool = False
    """Whether this is a thin line behind a bold one: a seed behind the mean, raw values behind a smoothed curve."""
    sizes: Sequence[float] = ()
    """Areas of a scatter's bubbles."""
    marks: bool = False
    """Whether each point is marked."""


@dataclass(frozen=True)
class Figure:
    """One picture's data."""

    id: str
    title: str
    kind: Literal["line", "bar", "scatter", "forest"]
    x_label: str
    y_label: str
    series: Sequence[Series]
    caption: str = ""
    categories: Sequence[str] = ()
    """Names of a bar chart's groups: x is the number of the group; of a forest's rows: y is the number of the row."""
    x_marks: Sequence[float] = ()
    """Where the x axis has its marks; round numbers if empty."""
    from_zero: bool = False
    percent: bool = False
    """Whether values are shares, shown as per cent."""


def with_points(figures: Iterable[Figure]) -> list[Figure]:
    """Return the figures that have something to draw."""
    return [figure for figure in figures if any(series.points for series in figure.series)]


def to_csv(figure: Figure) -> str:
    """Return the figure's data, one row for each point."""
    has_band = any(series.low for series in figure.series)
    has_size = any(series.sizes for series in figure.series)
    header = ["series", figure.x_label, figure.y_label]
    rows: list[list[str | float]] = [[*header, *(["low", "high"] if has_band else []), *(["size"] if has_size else [])]]
    for series in figure.series:
        for index, (x, y) in enumerate(series.points):
            whole = float(x).is_integer()
            place = int(x) if whole else x
            if figure.categories and figure.kind == "bar":
                place = figure.categories[int(x)]
            row = [series.name, place, figure.categories[int(y)] if figure.kind == "forest" else y]
            if has_band:
                row += [series.low[index], series.high[index]] if series.low else ["", ""]
            if has_size:
                row.append(series.sizes[index] if series.sizes else "")
            rows.append(row)
    return csv_text(rows)
