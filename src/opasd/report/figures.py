"""The figures that runs support, by section; a figure is left out if no run has data for it."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from opasd.analysis.curves import SMOOTHING, cumulative, ema
from opasd.analysis.markers import MARKERS, change_from, density, density_by_marker
from opasd.analysis.spending import PARTS, pareto_front
from opasd.recipes.reading import read_yaml
from opasd.report.accuracy import evaluation, validation
from opasd.report.figure import Figure, Series, with_points
from opasd.report.run import ROLLOUT, Run

SECTIONS = read_yaml(Path(__file__).with_name("figures.yaml"))
"""Heading of a section ─► `about`, what its figures show, and `curves`, its figures of metrics of training."""
_BOLD = f"bold: moving average ({SMOOTHING:g})."


def all_figures(runs: Sequence[Run]) -> dict[str, list[Figure]]:
    """Return the figures of every section by its heading; a section without data has none."""
    others = {"Validation": validation, "Evaluation": evaluation, "Cost": cost, "Epistemic markers": markers}
    return {
        heading: [*training_curves(runs, section["curves"]), *(others[heading](runs) if heading in others else [])]
        for heading, section in SECTIONS.items()
    }


def training_curves(runs: Sequence[Run], curves: Mapping[str, Mapping[str, Any]]) -> list[Figure]:
    """Return a figure for each metric: the curve of each run that has it, and raw values behind a smoothed curve."""
    figures = []
    for metric, about in curves.items():
        rare = about.get("rare", False)
        series = []
        for number, points in enumerate(run.curve(metric) for run in runs):
            if not rare and len(points) > 2:
                series.append(Series(runs[number].name, number, points, faint=True))
            if points:
                shown = points if rare else ema(points)
                series.append(Series(runs[number].name, number, shown, marks=len(points) < 3))
        if not rare or any(y for curve in series for _, y in curve.points):
            figures.append(
                Figure(
                    about["id"], about["title"], "line", "step", about["y_label"], series,
                    about["caption"].format(bold=_BOLD),
                    from_zero=about.get("from_zero", False), percent=about.get("percent", False),
                )
            )  # fmt: skip
    return with_points(figures)


def cost(runs: Sequence[Run]) -> list[Figure]:
    """Return cumulative tokens, operations and minutes by part, and accuracy against wall clock."""
    tokens = [Series(run.name, n, cumulative(run.curve("tokens/generated"))) for n, run in enumerate(runs)]
    operations = {n: run.spending.eflops_by_part for n, run in enumerate(runs)}
    minutes = {
        n: {part: seconds / 60 for part, seconds in run.spending.seconds_by_part.items()} for n, run in enumerate(runs)
    }
    figures = [
        *pareto(runs),
        Figure(
            "generated-tokens", "Response tokens generated", "line", "step", "tokens so far",
            [series for series in tokens if series.points], from_zero=True,
        ),
        Figure(
            "operations", "Estimated operations by part", "bar", "part", "EFLOPs", _bars(runs, operations, PARTS),
            "2 operations a parameter and token, plus attention; a backward through frozen weights is one forward's "
            "worth, through trained ones two.", PARTS,
        ),
        Figure(
            "seconds", "Wall clock by part", "bar", "part", "minutes", _bars(runs, minutes, PARTS), categories=PARTS
        ),
    ]  # fmt: skip
    return with_points(figures)


def pareto(runs: Sequence[Run]) -> list[Figure]:
    """Return the figure of final validation accuracy against wall clock, if there are several such runs."""
    chosen = {
        number: (run.spending.hours * 60, accuracy, run.spending.tokens_generated or 0.0)
        for number, run in enumerate(runs)
        if run.spending.hours and (accuracy := _final_accuracy(run)) is not None
    }
    if len(chosen) < 2:
        return []
    front = pareto_front({str(n): (accuracy, -time, -tokens) for n, (time, accuracy, tokens) in chosen.items()})
    named = ", ".join(runs[int(n)].name for n in front)
    series = [Series(runs[n].name, n, [(x, y)], sizes=[size]) for n, (x, y, size) in chosen.items()]
    caption = (
        "A bubble's area is the number of response tokens generated. Not beaten in accuracy, time and tokens at once: "
        f"{named}."
    )
    return [
        Figure(
            "pareto", "Accuracy and cost", "scatter", "wall clock of training, minutes", "final validation accuracy",
            series, caption, percent=True,
        )
    ]  # fmt: skip


def _final_accuracy(run: Run) -> float | None:
    """Return the last Avg@k, averaged over validation sets."""
    curves = [points for by_name in run.validation.values() for m, points in by_name.items() if m.startswith("avg@")]
    return math.fsum(points[-1][1] for points in curves) / len(curves) if curves else None


def markers(runs: Sequence[Run]) -> list[Figure]:
    """Return the markers by correctness, by word, and the change of the mean count from the first run.

    They are counted on the data set that most runs have samples of, an evaluation's rather than training's."""
    datasets = dict.fromkeys(name for run in runs for name in run.markers)
    if not datasets:
        return []
    dataset = max(datasets, key=lambda name: (sum(name in run.markers for run in runs), name != ROLLOUT))
    by_run = {number: run.markers[dataset] for number, run in enumerate(runs) if dataset in run.markers}
    where = "training rollouts" if dataset == ROLLOUT else f"answers to {dataset}"
    verdicts = {"right": True, "wrong": False}
    by_verdict = {
        number: {name: density(c for c in own if c.correct is correct) for name, correct in verdicts.items()}
        for number, own in by_run.items()
    }
    by_word = {number: density_by_marker(own) for number, own in by_run.items()}
    words = [word for word in MARKERS if any(densities.get(word) for densities in by_word.values())]
    first, *others = by_run
    changes = [
        Series(runs[n].name, n, [(0.0, change)])
        for n in others
        if dataset != ROLLOUT and (change := change_from(by_run[first], by_run[n])) is not None
    ]
    figures = [
        Figure(
            "markers-by-correctness", "Markers by correctness", "bar", "answer", "per 1,000 tokens",
            _bars(runs, by_verdict, [*verdicts]), f"Pooled over {where}.", [*verdicts],
        ),
        Figure(
            "markers-by-word", "Markers by word", "bar", "marker", "per 1,000 tokens", _bars(runs, by_word, words),
            f"Pooled over {where}; words that nobody used are left out.", words,
        ),
        Figure(
            "markers-change", f"Change of the mean count from {runs[first].name}", "bar", "", "change", changes,
            f"Markers in a response, on average, in {where}.", ("all ten",), percent=True,
        ),
    ]  # fmt: skip
    return with_points(figures)


def _bars(
    runs: Sequence[Run], values: Mapping[int, Mapping[str, float | None]], categories: Sequence[str]
) -> list[Series]:
    """Return the bars of each run that has values: 0 for a category that it lacks, no bar where the value is None."""
    return [
        Series(
            runs[number].name,
            number,
            [(float(x), y) for x, name in enumerate(categories) if (y := own.get(name, 0.0)) is not None],
        )
        for number, own in values.items()
        if own
    ]
