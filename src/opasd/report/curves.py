"""The curves of methods: a thin line for each seed, their mean bold, with a band from the lowest to the highest."""

import math
from collections.abc import Callable, Sequence

from opasd.analysis.curves import Point
from opasd.report.figure import Series
from opasd.report.methods import Method
from opasd.report.run import Run

SEEDS = "Thin: seeds; bold: their mean; band: lowest to highest."
Band = tuple[Sequence[float], Sequence[float]]
"""The lower and the upper ends of a band, one of each for a point."""


def by_method(
    methods: Sequence[Method],
    curve_of: Callable[[Run], Sequence[Point]],
    *,
    smooth: Callable[[Sequence[Point]], list[Point]] | None = None,
    band_of: Callable[[Run], Band] = lambda _: ((), ()),
    marks: bool = False,
    least: int = 1,
) -> list[Series]:
    """Return the curves of every method with at least `least` points; of a single run its own curve and band.

    A smoothed curve of one run has its raw values behind it."""
    series = []
    for method in methods:
        own = [(run, points) for run in method.runs if len(points := curve_of(run)) >= least]
        shown = [(run, smooth(points) if smooth else points) for run, points in own]
        if len(own) == 1:
            ((run, points),) = own
            if smooth and len(points) > 2:
                series.append(Series(f"{method.name} (raw)", method.slot, points, faint=True))
            few = marks or len(points) < 3
            series.append(Series(method.name, method.slot, shown[0][1], *band_of(run), marks=few))
        elif own:
            series += _seeds(method, shown, marks)
    return series


def _seeds(method: Method, curves: Sequence[tuple[Run, Sequence[Point]]], marks: bool) -> list[Series]:
    """Return each run's curve, thin, and their mean over the points that all of them have."""
    tables = [dict(points) for _, points in curves]
    common = sorted(set.intersection(*map(set, tables)))
    if not common:
        return [Series(run.name, method.slot, points, marks=marks) for run, points in curves]
    columns = [[table[x] for table in tables] for x in common]
    means = [(x, math.fsum(column) / len(column)) for x, column in zip(common, columns, strict=True)]
    thin = [Series(run.name, method.slot, points, faint=True) for run, points in curves]
    few = marks or len(common) < 3
    return [*thin, Series(method.name, method.slot, means, [*map(min, columns)], [*map(max, columns)], marks=few)]
