"""The tables of a sweep, for a terminal and as files."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from opasd.analysis.curves import number
from opasd.analysis.seeds import Summary, summarise
from opasd.files import write_json, write_text
from opasd.recipes.fields import value_of
from opasd.report.run import BenchmarkResult
from opasd.report.summary import LAST, summary_table
from opasd.report.tables import Cell, Table, to_csv, to_latex, to_markdown
from opasd.rounding import aligned, fixed, per_cent, with_interval
from opasd.sweep.job import differing_settings
from opasd.sweep.names import short_names, shortened_texts, value_text
from opasd.sweep.results import AVERAGE, Row, RunResult, benchmarks_of, pass_rate, rows_of, with_average
from opasd.sweep.spec import SEED, Sweep, TableConfig

NOTHING = Cell("–")
_MOST_SETTINGS = 4
_HEADINGS = {"rollout/accuracy": "rollout accuracy, %", "rollout/length_mean": "rollout length"}
_PERCENT = ("rollout/accuracy", "rollout/truncated")

Column = tuple[str, list[Cell]]
"""A heading, and a cell for each row."""


def make_table(sweep: Sweep, results: Sequence[RunResult]) -> Table:
    """Return the table at the end."""
    rows, benchmarks = rows_of(results), benchmarks_of(results)
    counts = {score.samples for result in results for score in result.scores.values()}
    samples = max(counts) if len(counts) == 1 else "k"
    several_seeds = any(len(row.results) > 1 for row in rows)
    several_budgets = len({row.budget for row in rows} - {None}) > 1
    columns: list[Column] = [
        (sweep.table.first, [Cell(row.label) for row in rows]),
        *_settings(rows),
        ("seeds", [Cell(", ".join(map(str, row.seeds)) if several_seeds else "") for row in rows]),
        ("budget", [Cell(f"{row.budget:,}" if row.budget and several_budgets else "", row.budget) for row in rows]),
        *_metrics(sweep, rows, evaluated=bool(benchmarks)),
    ]
    columns += [
        (f"{name} Avg@{samples}, %", _with_best([_accuracy(row, members) for row in rows]))
        for name, members in with_average(benchmarks).items()
    ]
    columns.append(("against base", [_gain(row, benchmarks) for row in rows]))
    if samples not in (1, "k"):
        columns.append((f"Pass@{samples}, %", [_mean(row, benchmarks, pass_rate, per_cent) for row in rows]))
    columns += [
        ("answer length", [_mean(row, benchmarks, lambda score: score.tokens.mean, float) for row in rows]),
        ("cut, %", [_mean(row, benchmarks, lambda score: score.truncated.mean, per_cent) for row in rows]),
        ("paper's average, %", [_published(row) for row in rows]),
        ("", [Cell(_state(row)) for row in rows]),
    ]
    shown = columns[:1] + [column for column in columns[1:] if any(cell.text not in ("", "–") for cell in column[1])]
    cells = [[own[number] for _, own in shown] for number in range(len(rows))]
    title = sweep.table.title or sweep.description or sweep.name
    return Table(sweep.name, title, [heading for heading, _ in shown], cells, _caption(sweep, rows, benchmarks))


def _settings(rows: Sequence[Row]) -> list[Column]:
    """Return the fields in which the trained runs differ."""
    configs = [result.run.config for row in rows for result in row.results if not result.run.evaluate_only]
    names = dict.fromkeys(name for config in configs for name in differing_settings(configs[0], config))
    columns = []
    for name, heading in list(short_names([name for name in names if name != SEED]).items())[:_MOST_SETTINGS]:
        shown = [row for row in rows if not row.run.evaluate_only or name == "model.name_or_path"]
        values = [value_of(row.run.config, name) for row in shown]
        texts = shortened_texts(list(map(value_text, values)))
        cells = {id(row): Cell(text, number(v)) for row, text, v in zip(shown, texts, values, strict=True)}
        columns.append((heading, [cells.get(id(row), NOTHING) for row in rows]))
    return columns


def _metrics(sweep: Sweep, rows: Sequence[Row], *, evaluated: bool) -> list[Column]:
    """Return the metrics of training, and the validations if nothing was evaluated."""
    known = dict.fromkeys(name for row in rows for result in row.results for name in result.training)
    names = [name for name in sweep.table.metrics if name in known]
    names += [] if evaluated else [name for name in known if name.startswith("validation/")]
    columns = []
    for name in names:
        percent = name in _PERCENT or name.startswith("validation/")
        heading = _HEADINGS.get(name, name.removeprefix("validation/") + ", %" if percent else name)
        columns.append((heading, [_metric(row, name, percent=percent) for row in rows]))
    return columns


def _metric(row: Row, name: str, *, percent: bool) -> Cell:
    scale = per_cent if percent else float
    values = [scale(result.training[name]) for result in row.results if name in result.training]
    if not values:
        return NOTHING
    summary = summarise(values)
    return Cell(_with_spread(summary, 1 if percent or abs(summary.mean) >= 1 else 4), summary.mean)


def _with_spread(summary: Summary, digits: int) -> str:
    return fixed(summary.mean, digits) + ("" if summary.sd is None else f" ± {fixed(summary.sd, digits)}")


def _accuracy(row: Row, benchmarks: Sequence[str]) -> Cell:
    accuracy = row.accuracy(benchmarks)
    if accuracy is None:
        return NOTHING
    summary, interval = accuracy
    digits = 1 if summary.sd is None else 2
    bounds = "" if interval is None else f" [{fixed(interval[0], digits)}, {fixed(interval[1], digits)}]"
    return Cell(_with_spread(summary, digits) + bounds, summary.mean)


def _with_best(cells: list[Cell]) -> list[Cell]:
    values = [cell.value for cell in cells if cell.value is not None]
    return [replace(cell, best=len(values) > 1 and cell.value == max(values)) for cell in cells]


def _gain(row: Row, benchmarks: Sequence[str]) -> Cell:
    gain = row.gain(benchmarks)
    return Cell("") if gain is None else Cell(with_interval(gain, sign=True), gain.mean)


def _mean(
    row: Row, benchmarks: Sequence[str], of: Callable[[BenchmarkResult], float], scale: Callable[[float], float]
) -> Cell:
    values = [of(score) for name in benchmarks for (score,) in row.scores([name])]
    mean = scale(math.fsum(values) / len(values)) if values else None
    return Cell(fixed(mean, 1), mean)


def _published(row: Row) -> Cell:
    """Return the paper's average, the mean of several seeds."""
    values = []
    for result in row.results:
        expects = result.run.expects if isinstance(result.run.expects, Mapping) else {}
        by_budget = expects.get("avg@12_by_budget")
        source, key = (expects.get("avg@12"), AVERAGE) if by_budget is None else (by_budget, str(row.budget))
        values.append(number(source.get(key)) if isinstance(source, Mapping) else None)
    known = [value for value in values if value is not None]
    mean = math.fsum(known) / len(known) if len(known) == len(values) else None
    return Cell("" if mean is None else fixed(mean, 2), mean)


def _state(row: Row) -> str:
    count, done = len(row.results), sum(result.done for result in row.results)
    if failed := sum(bool(result.failed) for result in row.results):
        return "failed" if count == 1 else f"{failed} of {count} failed"
    return "" if done == count else f"{done} of {count} done" if done else "not done"


def _caption(sweep: Sweep, rows: Sequence[Row], benchmarks: Sequence[str]) -> str:
    sentences = [sweep.table.caption] if sweep.table.caption else []
    known = {name for row in rows for result in row.results for name in result.training}
    if known:
        sentences.append(f"Metrics of training are means over its last {100 * LAST:.0f} % of steps.")
    if benchmarks:
        sentences.append("In brackets: 95 % intervals, of a single run for problems like these.")
        if any(len(row.results) > 1 for row in rows):
            sentences.append(
                "Of several seeds: mean ± sample standard deviation, and the mean's interval by Student's t."
            )
        if any(row.base for row in rows):
            sentences.append("Differences from the base are paired on the same problems.")
    requested = sweep.table.metrics if sweep.table.metrics != TableConfig().metrics else ()
    if known and (absent := [name for name in requested if name not in known]):
        sentences.append(f"No run has {', '.join(absent)}.")
    return " ".join(sentences)


def seed_tables(results: Sequence[RunResult]) -> list[Table]:
    """Return, for each group of several seeds, a row for each seed, then mean, standard deviation and interval."""
    tables = []
    for row in rows_of(results):
        scored = [result for result in row.results if result.scores]
        names = list(dict.fromkeys(name for result in scored for name, budget in result.scores if budget == row.budget))
        columns = {}
        for name, members in with_average(names).items():
            by_seed = [Row([result], row.budget).accuracy(members) for result in scored]
            columns[name] = [accuracy[0].mean for accuracy in by_seed if accuracy is not None]
        if len(scored) < 2 or not columns or any(len(values) < len(scored) for values in columns.values()):
            continue
        title = row.label + (f", {row.budget:,} tokens" if row.budget else "")
        seeds = [f"Seed {result.run.config.train.seed}" for result in scored]
        name = f"seeds-{row.name}" + (f"-{row.budget}" if row.budget else "")
        tables.append(summary_table(name, title, "Seed", seeds, columns, "Accuracy in per cent."))
    return tables


def write(folder: Path, tables: Sequence[Table], record: Mapping[str, Any]) -> None:
    """Write the first table as results.csv, .md and .tex, the others under their own names, and results.json."""
    files: dict[str, str] = {}
    for index, table in enumerate(tables):
        stem = table.id if index else "results"
        files |= {f"{stem}.csv": to_csv(table), f"{stem}.tex": to_latex(table)}
        files[f"{stem}.md"] = f"{table.title}\n\n{to_markdown(table)}\n{table.caption}\n"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("seeds-*.*"):
        if old.name not in files:
            old.unlink()  # of seeds that the sweep no longer has
    for name, text in files.items():
        write_text(folder / name, text)
    write_json(folder / "results.json", record)


def as_text(table: Table) -> str:
    """Return the table for a terminal, in columns of one width."""
    lines = aligned([table.header, *([cell.text for cell in row] for row in table.rows)])
    return "\n".join([table.title, "", *lines, *(["", table.caption] if table.caption else []), ""])
