"""Runs of one experiment: which they are, what they reached together, and the settings in which runs differ."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opasd.analysis.curves import Point, ends
from opasd.analysis.seeds import summarise
from opasd.report.accuracy import capital, telling_measures
from opasd.report.methods import IDENTITY, Method, flat
from opasd.report.run import Run
from opasd.report.tables import Cell, Table
from opasd.rounding import MINUS, fixed, per_cent

LAST = 0.2
"""The share of a run's steps over which its final rollout figures are means."""
_MANY = 6
"""With more methods than these, the table of settings has a row for each instead of a column."""


def tail(points: Sequence[Point]) -> list[float]:
    """Return the values of the last steps, at least one of them."""
    return [y for _, y in points[-max(1, round(LAST * len(points))) :]] if points else []


def evaluated_sets(runs: Sequence[Run]) -> list[str]:
    """Return the data sets of which some run has answers or results."""
    names = (name for run in runs for name in (*run.answers, *(result.benchmark for result in run.results)))
    return list(dict.fromkeys(names))


def validated_measures(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the validation sets and their accuracies, without Pass@1, which is Avg@k."""
    names = dict.fromkeys(name for run in runs for name in run.validation)
    return [(name, m) for name in names for m in telling_measures(runs, name) if "@" in m and m != "pass@1"]


def seeds(method: Method, number: int) -> Table:
    """Return the table of one method: its runs, then mean, sample standard deviation and 95 % interval.

    A run that lacks a measure has a dash there, and the statistics are those of the others."""
    chosen = method.runs
    measures: dict[str, list[float | None]] = {}
    for name in evaluated_sets(chosen):
        budget = max((most for run in chosen for most in run.budgets(name)), default=None)
        shares = [list(run.shares(name, budget).values()) for run in chosen]
        measures[f"{name}, %"] = [_mean(values, per_cent) for values in shares]
    for name, measure in validated_measures(chosen):
        curves = [run.validation.get(name, {}).get(measure) for run in chosen]
        measures[f"{name} {capital(measure)}, %"] = [per_cent(points[-1][1]) if points else None for points in curves]
    for title, metric, scale in (
        ("rollout accuracy, %", "rollout/accuracy", per_cent),
        ("rollout length", "rollout/length_mean", float),
        ("attention divergence", "attention/divergence", float),
    ):
        measures[title] = [_mean(tail(run.curve(metric)), scale) for run in chosen]
    columns = {name: values for name, values in measures.items() if any(value is not None for value in values)}
    names = [f"seed {run.setting('train', 'seed')}" for run in chosen]
    caption = f"Last values; rollout figures: mean of the last {100 * LAST:.0f} % of the steps."
    slots = [method.slot] * len(chosen)
    return summary_table(f"seeds-{number}", f"Seeds of {method.name}", "seed", names, columns, caption, slots=slots)


def summary_table(
    table_id: str,
    title: str,
    first: str,
    names: Sequence[str],
    columns: Mapping[str, Sequence[float | None]],
    caption: str,
    *,
    slots: Sequence[int] = (),
) -> Table:
    """Return the numbers in rows, then their mean, sample standard deviation and 95 % t-interval's half width.

    A dash is a number that is missing; the statistics are those of the others."""
    known = {name: [value for value in values if value is not None] for name, values in columns.items()}
    digits = {name: _digits(values) if name.endswith("divergence") else 2 for name, values in known.items()}

    def row(name: str, values: dict[str, float | None], sign: str = "") -> list[Cell]:
        texts = {column: fixed(value, digits[column]) for column, value in values.items()}
        return [
            Cell(name),
            *(Cell(texts[c] if value is None else sign + texts[c], value) for c, value in values.items()),
        ]

    summaries = {column: summarise(values) for column, values in known.items()}
    rows = [row(name, {column: values[n] for column, values in columns.items()}) for n, name in enumerate(names)]
    rows.append(row("Mean", {column: summary.mean for column, summary in summaries.items()}))
    rows.append(row("Std", {column: summary.sd for column, summary in summaries.items()}))
    rows.append(row("95 % CI", {column: summary.half_width for column, summary in summaries.items()}, sign="± "))
    caption += " Std: sample standard deviation. CI: half width of the 95 % interval of the mean, Student's t."
    fewer = [f"{name} of {len(own)}" for name, own in known.items() if len(own) < len(names)]
    caption += f" Statistics of {', '.join(fewer)} in place of {len(names)} runs." if fewer else ""
    owners = (*slots, None, None, None) if slots else ()
    return Table(table_id, title, [first, *columns], rows, caption.strip(), len(names), owners)


def settings_that_differ(methods: Sequence[Method]) -> Table | None:
    """Return the table of the configuration's fields in which the methods differ; None if there are none."""
    runs = [method.runs[0] for method in methods]
    known = {n: flat(run.config) for n, run in enumerate(runs) if run.config}
    first, *others = known.values() or [{}]
    paths = dict.fromkeys(path for own in known.values() for path in own if path not in IDENTITY)
    differing = [path for path in paths if any(own.get(path) != first.get(path) for own in others)]
    if not differing:
        return None
    names, note = (
        list(map(".".join, differing)),
        "Every other field is the same in all methods; the seeds of a method are under Seeds.",
    )
    columns = {n: [Cell(shown(own.get(path)), wraps=True) for path in differing] for n, own in known.items()}
    if len(known) > _MANY:
        rows = [[Cell(methods[n].name), *cells] for n, cells in columns.items()]
        return Table(
            "settings", "Settings that differ", ["method", *names], rows, note, slots=[runs[n].slot for n in known]
        )
    rows = [[Cell(name), *cells] for name, *cells in zip(names, *columns.values(), strict=True)]
    return Table("settings", "Settings that differ", ["setting", *(methods[n].name for n in known)], rows, note)


def shown(value: Any) -> str:
    """Return a setting's value as text."""
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    negative = isinstance(value, int | float) and value < 0
    return str(value).replace("-", MINUS, 1) if negative else str(value)


def alignment_note(run: Run) -> str | None:
    """Return the alignment curve in one line, as the paper does: the means of the first and of the last steps."""
    points = run.curve("attention/divergence")
    window = min(20, max(1, len(points) // 4))
    means = ends(points, window)
    if means is None or len(points) < 2:
        return None
    first, last = ("first step", "last") if window == 1 else (f"first {window} steps", f"last {window}")
    return f"{run.name}: {means[0]:.4f} over the {first}, {means[1]:.4f} over the {last}"


def _mean(values: Sequence[float], scale: Callable[[float], float]) -> float | None:
    return scale(math.fsum(values) / len(values)) if values else None


def _digits(values: Sequence[float]) -> int:
    """Return how many decimals show three significant digits of the largest value."""
    largest = max(map(abs, values), default=0.0)
    return 2 if largest == 0 else max(0, min(8, 2 - math.floor(math.log10(largest))))
