"""The figures that runs support, by section; a figure is left out if no run has data for it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from opasd.analysis.curves import SMOOTHING, Point, cumulative, ema
from opasd.analysis.spending import EXA, PARTS, pareto_front
from opasd.recipes.reading import read_yaml
from opasd.report.accuracy import evaluation, validation
from opasd.report.curves import by_method
from opasd.report.figure import Figure, Series, with_points
from opasd.report.markers import markers
from opasd.report.methods import Method
from opasd.report.numbers import operations
from opasd.report.run import Run
from opasd.report.scores import Benchmark, find_scores

SECTIONS = read_yaml(Path(__file__).with_name("figures.yaml"))
"""Heading of a section ─► `about`, what its figures show, and `curves`, its figures of metrics of training."""
_BOLD = f"bold: moving average ({SMOOTHING:g})."


def all_figures(methods: Sequence[Method]) -> dict[str, list[Figure]]:
    """Return the figures of every section by its heading; a section without data has none."""
    others = {"Validation": validation, "Evaluation": evaluation, "Cost": cost, "Epistemic markers": markers}
    return {
        heading: [
            *training_curves(methods, section["curves"]),
            *(others[heading](methods) if heading in others else []),
        ]
        for heading, section in SECTIONS.items()
    }


def training_curves(methods: Sequence[Method], curves: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """Return a figure for each metric: the curve of each method that has it, and thin lines behind it."""
    figures = []
    for metric, about in curves.items():
        rare = about.get("rare", False)
        series = by_method(methods, _metric(metric), smooth=None if rare else ema)
        if not rare or any(y for curve in series for _, y in curve.points):
            figures.append(
                Figure(
                    about["id"], about["title"], "line", "step", about["y_label"], series,
                    about["caption"].format(bold=_BOLD),
                    from_zero=about.get("from_zero", False), percent=about.get("percent", False),
                )
            )  # fmt: skip
    return with_points(figures)


def _metric(name: str) -> Callable[[Run], list[Point]]:
    return lambda run: run.curve(name)


def cost(methods: Sequence[Method]) -> list[Figure]:
    """Return cumulative tokens, operations and minutes by part, and accuracy against wall clock."""
    runs = [run for method in methods for run in method.runs]
    unit, scale = operations([EXA * count for run in runs for count in run.spending.eflops_by_part.values()])
    figures = [
        *pareto(methods),
        Figure(
            "generated-tokens", "Response tokens generated", "line", "step", "tokens so far",
            by_method(methods, lambda run: cumulative(run.curve("tokens/generated"))), from_zero=True,
        ),
        Figure(
            "operations", "Estimated operations by part", "bar", "part", unit,
            _parts(methods, lambda run: run.spending.eflops_by_part, scale / EXA),
            "2 operations a parameter and token, plus attention; a backward through frozen weights is one forward's "
            "worth, through trained ones two.", PARTS,
        ),
        Figure(
            "seconds", "Wall clock by part", "bar", "part", "minutes",
            _parts(methods, lambda run: run.spending.seconds_by_part, 60), categories=PARTS,
        ),
    ]  # fmt: skip
    return with_points(figures)


def pareto(methods: Sequence[Method]) -> list[Figure]:
    """Return the figure of final accuracy against wall clock, a bubble a run, if there are several.

    The accuracy is that of the last validation or, where no run has one, of the evaluation."""
    of_run, label = _final_accuracy, "final validation accuracy"
    if not any(_final_accuracy(run) is not None for method in methods for run in method.runs):
        benchmarks = find_scores(methods).comparable().benchmarks
        benchmarks = [one for one in benchmarks if one.asked]
        of_run, label = _evaluated(benchmarks), f"accuracy on {', '.join(one.name for one in benchmarks)}"
    chosen = [
        (method, run, (run.spending.hours * 60, accuracy, run.spending.tokens_generated or 0.0))
        for method in methods
        for run in method.runs
        if run.spending.hours and (accuracy := of_run(run)) is not None
    ]
    if len(chosen) < 2:
        return []
    ways = {str(n): (accuracy, -time, -tokens) for n, (_, _, (time, accuracy, tokens)) in enumerate(chosen)}
    named = ", ".join(chosen[int(n)][1].name for n in pareto_front(ways))
    series = [Series(run.name, method.slot, [(x, y)], sizes=[size]) for method, run, (x, y, size) in chosen]
    caption = (
        "A bubble is a run; its area is the number of response tokens generated. Not beaten in accuracy, time and "
        f"tokens at once: {named}."
    )
    return [
        Figure(
            "pareto", "Accuracy and cost", "scatter", "wall clock of training, minutes", label,
            series, caption, percent=True,
        )
    ]  # fmt: skip


def _final_accuracy(run: Run) -> float | None:
    """Return the last Avg@k, averaged over validation sets."""
    curves = [points for by_name in run.validation.values() for m, points in by_name.items() if m.startswith("avg@")]
    return math.fsum(points[-1][1] for points in curves) / len(curves) if curves else None


def _evaluated(benchmarks: Sequence[Benchmark]) -> Callable[[Run], float | None]:
    """Return the function run ─► its mean over these benchmarks, if it has them all."""

    def mean(run: Run) -> float | None:
        shares = [list(one.shares.get(id(run), {}).values()) for one in benchmarks]
        return math.fsum(math.fsum(own) / len(own) for own in shares) / len(shares) if shares and all(shares) else None

    return mean


def _parts(methods: Sequence[Method], spent: Callable[[Run], Mapping[str, float]], unit: float) -> list[Series]:
    """Return the mean over a method's runs for each part, with the lowest and the highest as whiskers."""
    series = []
    for method in methods:
        own = [values for run in method.runs if (values := spent(run))]
        if own:
            columns = [[values.get(part, 0.0) / unit for values in own] for part in PARTS]
            points = [(float(x), math.fsum(column) / len(column)) for x, column in enumerate(columns)]
            ends: Iterable[list[float]] = ([*map(min, columns)], [*map(max, columns)]) if len(own) > 1 else ([], [])
            series.append(Series(method.name, method.slot, points, *ends))
    return series
