"""What a sweep came to: one row for each run, or for the runs that differ in their seed alone, as tables and as JSON.

A single run's accuracy has a 95 % interval by bootstrap over problems. Several seeds give mean ± sample standard
deviation and the 95 % interval of the mean by Student's t. `against base` is paired on the same problems, with the same
model's row that was asked in the same way.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opasd.analysis.curves import curve, number
from opasd.analysis.seeds import Summary, summarise
from opasd.evaluation.comparability import sampling_key
from opasd.evaluation.statistics import Estimate, macro_average
from opasd.recipes.fields import value_of
from opasd.report.summary import LAST, summary_table
from opasd.report.tables import Cell, Table, to_csv, to_latex, to_markdown
from opasd.rounding import fixed, per_cent
from opasd.run.records import Records
from opasd.sweep.running import Place, differing
from opasd.sweep.spec import SEED, Planned, Sweep, TableConfig, safe, short_names, shown

AVERAGE = "average"
_MOST_COLUMNS = 4
_LONGEST_TEXT = 40
_HEADINGS = {"rollout/accuracy": "rollout accuracy, %", "rollout/length_mean": "rollout length"}
_PERCENT = ("rollout/accuracy", "rollout/truncated")


@dataclass(frozen=True)
class Score:
    """One run on one benchmark at one budget; shares of 1."""

    avg: Estimate
    samples: int
    tokens: float
    truncated: float
    passed: float
    """Pass@samples."""
    correct: Mapping[str, float]
    """The share of right samples, by problem."""


@dataclass
class Outcome:
    """What is known of one run."""

    run: Planned
    done: bool
    failed: str = ""
    training: dict[str, float] = field(default_factory=dict)
    scores: dict[tuple[str, int], Score] = field(default_factory=dict)
    """By benchmark and budget."""


def read_outcome(place: Place, metrics: Sequence[str], failed: str = "") -> Outcome:
    """From the run's folder and its evaluation's, whatever is there."""
    found = Outcome(place.run, place.next() is None, failed)
    rows = list(Records(place.path / "metrics.jsonl")) if (place.path / "metrics.jsonl").is_file() else []
    steps = [row for row in rows if "grad_norm" in row]
    for name in metrics:
        if values := [value for _, value in curve(steps, name)]:
            last = values[-max(1, round(LAST * len(values))) :]
            found.training[name] = math.fsum(last) / len(last)
    for name in dict.fromkeys(name for row in rows for name in row if name.startswith("validation/") and "@" in name):
        if points := curve(rows, name):
            found.training[name] = points[-1][1]
    try:
        for row in place.results().get("results", ()):
            found.scores[str(row["benchmark"]), int(row["budget"])] = _score(row)
    except (ValueError, KeyError, TypeError, AttributeError):
        found.scores.clear()
    return found


def _score(row: Mapping[str, Any]) -> Score:
    samples = int(row["samples"])
    values = [number(row["avg"][name]) for name in Estimate._fields]
    if None in values:
        raise ValueError("no number")
    return Score(
        avg=Estimate(*(value for value in values if value is not None)),
        samples=samples,
        tokens=float(row["tokens"]["mean"]),
        truncated=float(row["truncated"]["mean"]),
        passed=float(row["pass"][str(samples)]["mean"]),
        correct={str(problem): one["correct"] / samples for problem, one in row["per_problem"].items()},
    )


@dataclass
class Row:
    """Runs that differ in nothing but the seed, at one budget of tokens."""

    outcomes: list[Outcome]
    budget: int | None
    against: "Row | None" = None
    """The same model untrained, asked in the same way."""

    @property
    def run(self) -> Planned:
        return self.outcomes[0].run

    @property
    def name(self) -> str:
        return safe("+".join(dict.fromkeys(one.run.group for one in self.outcomes)))

    @property
    def label(self) -> str:
        return ", ".join(dict.fromkeys(one.run.label for one in self.outcomes))

    def scores(self, benchmark: str) -> list[Score]:
        found = (one.scores.get((benchmark, self.budget or 0)) for one in self.outcomes)
        return [score for score in found if score is not None]

    def accuracy(self, benchmark: str, benchmarks: Sequence[str]) -> tuple[Summary, tuple[float, float] | None] | None:
        """In per cent: over the seeds, and the interval that fits their number."""
        names = list(benchmarks) if benchmark == AVERAGE else [benchmark]
        by_seed = []
        for outcome in self.outcomes:
            scores = [outcome.scores.get((name, self.budget or 0)) for name in names]
            whole = [score for score in scores if score is not None]
            if whole and len(whole) == len(names):
                by_seed.append(whole)
        if not by_seed:
            return None
        means = [per_cent(math.fsum(score.avg.mean for score in scores) / len(scores)) for scores in by_seed]
        found = summarise(means)
        if len(by_seed) > 1:
            return found, found.interval
        alone = by_seed[0]
        one = alone[0].avg if len(alone) == 1 else macro_average([list(score.correct.values()) for score in alone])
        return found, (per_cent(one.low), per_cent(one.high))

    def gain(self, benchmarks: Sequence[str]) -> Estimate | None:
        """Against the base, in points: the mean over benchmarks, of problems' means over seeds."""
        gaps = []
        for name in benchmarks:
            mine, theirs = self._shares(name), self.against._shares(name) if self.against else {}
            common = [problem for problem in mine if problem in theirs]
            if not common:
                return None
            gaps.append([mine[problem] - theirs[problem] for problem in common])
        return Estimate(*map(per_cent, macro_average(gaps))) if gaps else None

    def _shares(self, benchmark: str) -> dict[str, float]:
        several = [score.correct for score in self.scores(benchmark)]
        problems = [problem for problem in several[0] if all(problem in one for one in several)] if several else []
        return {problem: math.fsum(one[problem] for one in several) / len(several) for problem in problems}


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Grouped by what is not the seed, then by budget."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(_without_seed(outcome.run), []).append(outcome)
    rows = []
    for several in groups.values():
        budgets = sorted({budget for one in several for _, budget in one.scores}) or [None]
        rows += [Row(several, budget) for budget in budgets]
    bases = {_asked(row): row for row in rows if row.run.evaluate_only}
    for row in rows:
        if not row.run.evaluate_only:
            row.against = bases.get(_asked(row))
    return rows


def _asked(row: Row) -> str:
    """Which model, and how its answers were drawn: what a run and its base must have in common."""
    drawn = sampling_key(row.run.asked(), row.run.config.prompts.template_options)
    return repr((row.run.model, row.budget, drawn))


def _without_seed(run: Planned) -> str:
    made = run.config.model_dump(exclude={"name": True, "output_dir": True, "train": {"seed"}})
    return f"{run.untrained() if run.evaluate_only else made} {run.evaluate}"


def make_table(sweep: Sweep, outcomes: Sequence[Outcome]) -> Table:
    """The table at the end."""
    rows = rows_of(outcomes)
    benchmarks = list(dict.fromkeys(name for one in outcomes for name, _ in one.scores))
    counts = {score.samples for one in outcomes for score in one.scores.values()}
    samples = max(counts) if len(counts) == 1 else "k"
    columns: list[tuple[str, list[Cell]]] = [
        (sweep.table.first, [Cell(row.label) for row in rows]),
        *_what_differs(sweep, rows),
    ]
    if any(len(row.outcomes) > 1 for row in rows):
        columns.append(("seeds", [Cell(_seeds(row)) for row in rows]))
    if len({row.budget for row in rows} - {None}) > 1:
        columns.append(("budget", [Cell(f"{row.budget:,}" if row.budget else "", row.budget) for row in rows]))
    for name in _metrics(sweep, outcomes, evaluated=bool(benchmarks)):
        percent = name in _PERCENT or name.startswith("validation/")
        heading = _HEADINGS.get(name, name.removeprefix("validation/") + ", %" if percent else name)
        columns.append((heading, [_training(row, name, percent=percent) for row in rows]))
    columns += [
        (f"{name} Avg@{samples}, %", _best([_accuracy(row, name, benchmarks) for row in rows]))
        for name in [*benchmarks, *([AVERAGE] if len(benchmarks) > 1 else [])]
    ]
    gains = [_gain(row, benchmarks) for row in rows]
    if any(cell.text for cell in gains):
        columns.append(("against base", gains))
    if samples not in (1, "k"):
        columns.append((f"Pass@{samples}, %", [_mean(row, benchmarks, "passed") for row in rows]))
    if benchmarks:
        columns.append(("answer length", [_mean(row, benchmarks, "tokens", in_per_cent=False) for row in rows]))
        columns.append(("cut, %", [_mean(row, benchmarks, "truncated") for row in rows]))
    published = [_published(row) for row in rows]
    if any(cell.text for cell in published):
        columns.append(("paper's average, %", published))
    if any(not one.done for one in outcomes):
        columns.append(("", [Cell(_state(row)) for row in rows]))
    body = [[cells[place] for _, cells in columns] for place in range(len(rows))]
    title = sweep.table.title or sweep.description or sweep.name
    return Table(sweep.name, title, [name for name, _ in columns], body, _caption(sweep, rows, benchmarks))


def _what_differs(sweep: Sweep, rows: Sequence[Row]) -> list[tuple[str, list[Cell]]]:
    """The fields in which the trained runs differ."""
    trained = [run for run in sweep.runs if not run.evaluate_only]
    first = trained[0].config if trained else None
    fields = dict.fromkeys(
        name for run in trained if first is not None for name in differing(first, run.config) if name != SEED
    )
    short = short_names(list(fields))

    def cells(name: str) -> list[Cell]:
        shows = [not row.run.evaluate_only or name == "model.name_or_path" for row in rows]
        values = [value_of(row.run.config, name) for row, own in zip(rows, shows, strict=True) if own]
        texts = in_short([shown(value) for value in values])
        told = iter([Cell(text, number(value)) for text, value in zip(texts, values, strict=True)])
        return [next(told) if own else Cell("–") for own in shows]

    return [(short[name], cells(name)) for name in list(fields)[:_MOST_COLUMNS]]


def in_short(texts: Sequence[str]) -> list[str]:
    """Texts for the cells of a column: of long ones the words in which they differ, as far as these fit.

    One word, such as a path, stays whole: its end may be all that tells it from another."""
    if not any(len(text.split()) > 1 and (len(text) > _LONGEST_TEXT or "\n" in text) for text in texts):
        return list(texts)
    words = [text.split() for text in texts]
    shortest = min(map(len, words))
    first = next((n for n in range(shortest) if len({one[n] for one in words}) > 1), shortest)
    last = next((n for n in range(shortest - first) if len({one[-1 - n] for one in words}) > 1), shortest - first)
    cells = []
    for one in words:
        middle = ["…"] * (first > 0) + one[first : len(one) - last] + ["…"] * (last > 0)
        text = " ".join(middle)
        cells.append(text if len(text) <= _LONGEST_TEXT else f"{text[: _LONGEST_TEXT - 1]}…")
    return cells


def _metrics(sweep: Sweep, outcomes: Sequence[Outcome], *, evaluated: bool) -> list[str]:
    found = dict.fromkeys(name for one in outcomes for name in one.training)
    validated = [name for name in found if name.startswith("validation/")]
    return [name for name in sweep.table.metrics if name in found] + ([] if evaluated else validated)


def _seeds(row: Row) -> str:
    return "" if row.run.evaluate_only else ", ".join(str(one.run.config.train.seed) for one in row.outcomes)


def _training(row: Row, name: str, *, percent: bool) -> Cell:
    scale = per_cent if percent else float
    values = [scale(one.training[name]) for one in row.outcomes if name in one.training]
    if not values:
        return Cell("–")
    found = summarise(values)
    digits = 1 if percent or abs(found.mean) >= 1 else 4
    spread = "" if found.sd is None else f" ± {fixed(found.sd, digits)}"
    return Cell(fixed(found.mean, digits) + spread, found.mean)


def _accuracy(row: Row, name: str, benchmarks: Sequence[str]) -> Cell:
    measured = row.accuracy(name, benchmarks)
    if measured is None:
        return Cell("–")
    found, interval = measured
    digits = 1 if found.sd is None else 2
    text = fixed(found.mean, digits) + ("" if found.sd is None else f" ± {fixed(found.sd, digits)}")
    if interval is not None:
        text += f" [{fixed(interval[0], digits)}, {fixed(interval[1], digits)}]"
    return Cell(text, found.mean)


def _gain(row: Row, benchmarks: Sequence[str]) -> Cell:
    found = row.gain(benchmarks)
    if found is None:
        return Cell("")
    mean, low, high = (fixed(value, 1, sign=True) for value in found)
    return Cell(f"{mean} [{low}, {high}]", found.mean)


def _mean(row: Row, benchmarks: Sequence[str], name: str, *, in_per_cent: bool = True) -> Cell:
    values = [getattr(score, name) for benchmark in benchmarks for score in row.scores(benchmark)]
    mean = math.fsum(values) / len(values) if values else None
    mean = per_cent(mean) if in_per_cent and mean is not None else mean
    return Cell(fixed(mean, 1), mean)


def _published(row: Row) -> Cell:
    """The paper's average, of several seeds their mean."""
    values = []
    for one in row.outcomes:
        expects = one.run.expects if isinstance(one.run.expects, Mapping) else {}
        by_budget = expects.get("avg@12_by_budget")
        source, key = (expects.get("avg@12"), AVERAGE) if by_budget is None else (by_budget, str(row.budget))
        values.append(number(source.get(key)) if isinstance(source, Mapping) else None)
    known = [value for value in values if value is not None]
    mean = math.fsum(known) / len(known) if len(known) == len(values) else None
    return Cell("" if mean is None else fixed(mean, 2), mean)


def _best(cells: list[Cell]) -> list[Cell]:
    values = [cell.value for cell in cells if cell.value is not None]
    return [Cell(c.text, c.value, len(values) > 1 and c.value == max(values)) for c in cells]


def _state(row: Row) -> str:
    failed = [one for one in row.outcomes if one.failed]
    done = sum(one.done for one in row.outcomes)
    if failed:
        return "failed" if len(row.outcomes) == 1 else f"{len(failed)} of {len(row.outcomes)} failed"
    return "" if done == len(row.outcomes) else "not done" if not done else f"{done} of {len(row.outcomes)} done"


def _caption(sweep: Sweep, rows: Sequence[Row], benchmarks: Sequence[str]) -> str:
    parts = [sweep.table.caption]
    if any(one.training for row in rows for one in row.outcomes):
        parts.append(f"Metrics of training are means over its last {100 * LAST:.0f} % of steps.")
    if benchmarks:
        parts.append("In brackets: 95 % intervals, of a single run by bootstrap over problems.")
        if any(len(row.outcomes) > 1 for row in rows):
            parts.append("Of several seeds: mean ± sample standard deviation, and the mean's interval by Student's t.")
    if benchmarks and any(row.against for row in rows):
        parts.append("Differences from the base are paired on the same problems.")
    known = {name for row in rows for one in row.outcomes for name in one.training}
    asked = sweep.table.metrics if sweep.table.metrics != TableConfig().metrics else ()
    if known and (absent := [name for name in asked if name not in known]):
        parts.append(f"No run has {', '.join(absent)}.")
    return " ".join(part for part in parts if part)


def as_json(sweep: Sweep, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Every number behind the table."""
    rows = rows_of(outcomes)
    benchmarks = list(dict.fromkeys(name for one in outcomes for name, _ in one.scores))
    return {
        "sweep": sweep.name,
        "description": sweep.description,
        "benchmarks": benchmarks,
        "rows": [_row_json(row, benchmarks) for row in rows],
        "runs": [
            {
                "name": one.run.name,
                "recipe": one.run.recipe,
                "settings": dict(one.run.settings),
                "evaluate_only": one.run.evaluate_only,
                "done": one.done,
                "failed": one.failed or None,
                "training": one.training,
                "evaluation": [
                    {"benchmark": benchmark, "budget": budget, "samples": score.samples, "avg": score.avg._asdict()}
                    | {"pass": score.passed, "tokens": score.tokens, "truncated": score.truncated}
                    for (benchmark, budget), score in one.scores.items()
                ],
            }
            for one in outcomes
        ],
    }


def _row_json(row: Row, benchmarks: Sequence[str]) -> dict[str, Any]:
    accuracy = {}
    for name in [*benchmarks, *([AVERAGE] if len(benchmarks) > 1 else [])]:
        if measured := row.accuracy(name, benchmarks):
            found, interval = measured
            accuracy[name] = {"runs": found.count, "mean": found.mean, "sd": found.sd, "interval": interval}
    gain = row.gain(benchmarks)
    return {
        "run": row.name,
        "label": row.label,
        "budget": row.budget,
        "seeds": [one.run.config.train.seed for one in row.outcomes if not one.run.evaluate_only],
        "accuracy": accuracy,
        "against_base": None if gain is None else gain._asdict(),
        "expects": row.run.expects,
    }


def seed_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """For each group of several seeds: a row for each, then mean, sample standard deviation and interval."""
    tables = []
    for row in rows_of(outcomes):
        whole = [one for one in row.outcomes if one.scores]
        names = list(dict.fromkeys(name for one in whole for name, budget in one.scores if budget == row.budget))
        columns = {}
        for name in [*names, *([AVERAGE] if len(names) > 1 else [])]:
            alone = [Row([one], row.budget).accuracy(name, names) for one in whole]
            columns[name] = [found[0].mean for found in alone if found is not None]
        if len(whole) < 2 or not columns or any(len(values) < len(whole) for values in columns.values()):
            continue
        title = row.label + (f", {row.budget:,} tokens" if row.budget else "")
        seeds = [f"Seed {one.run.config.train.seed}" for one in whole]
        name = f"seeds-{row.name}" + (f"-{row.budget}" if row.budget else "")
        tables.append(summary_table(name, title, "Seed", seeds, columns, "Accuracy in per cent."))
    return tables


def write(folder: Path, tables: Sequence[Table], whole: Mapping[str, Any]) -> None:
    """results.csv, .md, .tex of the first table, the others under their own names, and results.json."""
    files = {"results.json": json.dumps(whole, indent=1, ensure_ascii=False) + "\n"}
    for place, table in enumerate(tables):
        stem = table.id if place else "results"
        files |= {f"{stem}.csv": to_csv(table), f"{stem}.tex": to_latex(table)}
        files[f"{stem}.md"] = f"{table.title}\n\n{to_markdown(table)}\n{table.caption}\n"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("seeds-*.*"):
        if old.name not in files:
            old.unlink()  # of seeds that the sweep no longer has
    for name, text in files.items():
        staged = folder / f".{name}.part"
        staged.write_text(text, encoding="utf-8", errors="replace")
        staged.replace(folder / name)


def as_text(table: Table) -> str:
    """For a terminal: columns of one width."""
    texts = [list(table.header), *([cell.text for cell in row] for row in table.rows)]
    widths = [max(len(row[place]) for row in texts) for place in range(len(table.header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    return "\n".join([table.title, "", *lines, *(["", table.caption] if table.caption else []), ""])
