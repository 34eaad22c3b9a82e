"""The answer of a page: one sentence, the table of methods by benchmarks, and their differences as a forest plot."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from opasd.report.figure import Figure, Series
from opasd.report.methods import Method
from opasd.report.numbers import percent
from opasd.report.run import Run
from opasd.report.scores import SEEDS, Score, Scores
from opasd.report.tables import Cell, Table
from opasd.rounding import fixed, per_cent, with_interval


def headline(scores: Scores) -> str:
    """Return the answer in one sentence; empty if no method has a score."""
    subject = _subject(scores)
    score = subject and scores.average(subject)
    if subject is None or score is None:
        return ""
    text = f"{subject.title} {_shown(score)} %"
    base, rival = scores.base, scores.best_of("OPSD" if subject.kind != "OPSD" else "OPASD")
    if base is not None and base is not subject and (gap := scores.difference(subject, base)):
        over = "over the base" if base.kind == "base" else f"against {base.title}"
        text += f", {_shown(gap, sign=True)} {over}{_doubt(gap)}"
    if rival not in (None, subject, base) and (gap := scores.difference(subject, rival)):
        text += f", {_shown(gap, sign=True)} against {rival.title}{_doubt(gap)}"
    return f"{text}{f'; {subject.repeats}' if subject.repeats else ''}."


def measured(scores: Scores) -> str:
    """Say what the headline's numbers are."""
    labels = [benchmark.label for benchmark in scores.benchmarks]
    if not labels:
        return ""
    what = labels[0] if len(labels) == 1 else f"Mean of {len(labels)} benchmarks: {'; '.join(labels)}"
    return f"{what}. In brackets: 95 % intervals."


def _subject(scores: Scores) -> Method | None:
    """Return the method that the page is about: OPASD, or else the best that is not the base."""
    for kind in ("OPASD", "attention only", "OPSD"):
        if found := scores.best_of(kind):
            return found
    known = [(score.mean, m) for m in scores.methods if m is not scores.base and (score := scores.average(m))]
    return max(known, key=lambda pair: pair[0], default=(0, scores.base))[1]


def method_table(scores: Scores) -> Table | None:
    """Return methods × benchmarks: average, difference from the base, then each benchmark; seeds fold out."""
    if not scores.benchmarks:
        return None
    several = len(scores.benchmarks) > 1
    base = scores.base
    header = ["method", *(["average, %"] if several else [f"{scores.benchmarks[0].name}, %"])]
    header += [f"against {_called(base)}"] if base and len(scores.methods) > 1 else []
    header += [f"{benchmark.name}, %" for benchmark in scores.benchmarks] if several else []
    rows, details, slots = [], [], []
    for method in scores.methods:
        if not any(benchmark.shares.get(id(run)) for run in method.runs for benchmark in scores.benchmarks):
            continue
        gap = scores.difference(method, base) if base and base is not method else None
        cells = [score_cell(scores.average(method))]
        cells += (
            [score_cell(gap, sign=True) if base is not method else Cell("")] if len(scores.methods) > 1 and base else []
        )
        cells += [score_cell(scores.score(method, benchmark)) for benchmark in scores.benchmarks] if several else []
        extras = [_lengths(method.runs), _truncated(method.runs)]
        rows.append([Cell(method.title), *cells, *extras])
        details.append([_seed_row(scores, method, run) for run in method.runs] if len(method.runs) > 1 else [])
        slots.append(method.slot)
    header += ["answer length", "truncated"]
    return _without_empty(Table("methods", "Methods", header, rows, _note(scores), slots=slots, details=details))


def _called(base: Method) -> str:
    return "the base" if base.kind == "base" else base.name


def _seed_row(scores: Scores, method: Method, run: Run) -> list[Cell]:
    several, base = len(scores.benchmarks) > 1, scores.base
    means = [_run_mean(benchmark.shares.get(id(run), {})) for benchmark in scores.benchmarks]
    known = [mean for mean in means if mean is not None]
    average = math.fsum(known) / len(known) if known and len(known) == len(means) else None
    cells = [_plain(average)]
    if base and len(scores.methods) > 1:
        gap = scores.difference(method, base, [run]) if base is not method and average is not None else None
        cells.append(_plain(gap.mean if gap else None, sign=True))
    cells += [_plain(mean) for mean in means] if several else []
    seed = run.setting("train", "seed")
    name = run.name if seed is None else f"seed {seed}"
    return [Cell(name if known else f"{name}: not evaluated"), *cells, _lengths([run]), _truncated([run])]


def forest(scores: Scores) -> Figure | None:
    """Return each method's difference from the base with its interval, a row each; dots: its seeds."""
    base = scores.base
    shown = [
        (m, gap) for m in scores.methods if base and m is not base and (gap := scores.difference(m, base)) is not None
    ]
    if base is None or not shown:
        return None
    series = []
    for row, (method, gap) in enumerate(shown):
        low, high = gap.interval or (gap.mean, gap.mean)
        series.append(Series(method.title, method.slot, [(100 * gap.mean, float(row))], [100 * low], [100 * high]))
        if len(method.runs) > 1:
            gaps = [scores.difference(method, base, [run]) for run in method.runs]
            dots = [(100 * own.mean, float(row)) for own in gaps if own]
            series.append(Series(f"{method.title}, seeds", method.slot, dots, faint=True))
    many = (
        f"the mean of {len(scores.benchmarks)} benchmarks" if len(scores.benchmarks) > 1 else scores.benchmarks[0].name
    )
    caption = f"On {many}; bars: 95 %, paired on the same problems" + (
        "; small dots: seeds." if any(one.faint for one in series) else "."
    )
    names = [method.title for method, _ in shown]
    return Figure("forest", f"Difference from {base.name}", "forest", "percentage points", "", series, caption, names)


def _note(scores: Scores) -> str:
    seeds = any(len(method.runs) >= SEEDS for method in scores.methods)
    note = "In brackets: 95 % intervals; " + (
        f"of methods with {SEEDS} runs or more over seeds (Student's t), of others over problems. " if seeds
        else "over problems. "
    )  # fmt: skip
    note += "Differences are paired on the same problems, each averaged over a method's runs first; their intervals "
    return f"{note}are over problems. {' '.join(scores.notes)}".strip()


def _shown(score: Score, *, sign: bool = False) -> str:
    if score.interval is None:
        return fixed(per_cent(score.mean), 1, sign=sign)
    return with_interval(map(per_cent, (score.mean, *score.interval)), sign=sign)


def _doubt(gap: Score) -> str:
    return " (no difference seen)" if gap.interval and gap.interval[0] <= 0 <= gap.interval[1] else ""


def score_cell(score: Score | None, *, sign: bool = False) -> Cell:
    return Cell("–") if score is None else Cell(_shown(score, sign=sign), per_cent(score.mean))


def _plain(mean: float | None, *, sign: bool = False) -> Cell:
    return Cell("–") if mean is None else Cell(fixed(per_cent(mean), 1, sign=sign), per_cent(mean))


def _run_mean(shares: Mapping[str, float]) -> float | None:
    values = list(shares.values())
    return math.fsum(values) / len(values) if values else None


def _mean_of(runs: Sequence[Run], of_sample: Callable[..., float]) -> float | None:
    values = [of_sample(sample) for run in runs for own in run.answers.values() for sample in own]
    return math.fsum(values) / len(values) if values else None


def _lengths(runs: Sequence[Run]) -> Cell:
    mean = _mean_of(runs, lambda sample: float(sample.tokens))
    return Cell(fixed(mean, 1), mean)


def _truncated(runs: Sequence[Run]) -> Cell:
    share = _mean_of(runs, lambda sample: float(sample.truncated))
    return Cell(percent(share), share)


def _without_empty(table: Table) -> Table:
    """Return the table without the columns in which no row has a value."""
    kept = [n for n in range(len(table.header)) if any(row[n].text not in ("", "–") for row in table.rows)]
    pick = lambda row: [row[n] for n in kept]  # noqa: E731
    return replace(
        table,
        header=pick(table.header),
        rows=[pick(row) for row in table.rows],
        details=[[pick(row) for row in own] for own in table.details],
    )
