"""The answer of a page: one sentence, the table of methods by benchmarks, and their differences as a forest plot."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from opasd.report.figure import Figure, Series
from opasd.report.methods import Method
from opasd.report.numbers import percent
from opasd.report.run import Run
from opasd.report.scores import SEEDS, Benchmark, Score, Scores
from opasd.report.tables import Cell, Table
from opasd.report.text import short_names
from opasd.rounding import fixed, per_cent, with_interval

LONGEST_NAME = 44
"""Characters of a method's name in a sentence."""
MOST_COLUMNS = 7
"""Columns of the table of methods that fit beside its figure."""


def headline(scores: Scores) -> str:
    """Return the answer in one sentence; empty if no method has a score."""
    subject = _subject(scores)
    score = subject and scores.average(subject)
    if subject is None or score is None:
        return ""
    title = _titles(scores)
    text = f"{title[subject.slot]} {_shown(score, unit=' %')}"
    base, rival = scores.base, _rival(scores, subject)
    if base is not None and base is not subject and (gap := scores.difference(subject, base)):
        above = base.kind == "base" and gap.mean >= 0
        over = f"{'over' if above else 'against'} {'the base' if base.kind == 'base' else title[base.slot]}"
        text += f", {_shown(gap, sign=True)} {over}{_doubt(gap)}"
    if rival not in (None, subject, base) and (gap := scores.difference(subject, rival)):
        text += f", {_shown(gap, sign=True)} against {title[rival.slot]}{_doubt(gap)}"
    return f"{text}{_repeats(scores, subject)}."


def best(scores: Scores) -> str:
    """Say which method has the highest score, where there is a choice, and how far ahead of the headline's it is."""
    first, subject = scores.best, _subject(scores)
    compared = [method for method in scores.methods if scores.average(method)]
    score = first and scores.average(first)
    if first is None or score is None or subject is None or len(compared) < 3:
        return ""
    title = _titles(scores)
    text = f"Highest of {len(compared)} methods: {title[first.slot]}"
    if first is subject:
        return f"{text}."
    text += f", {_shown(score, unit=' %')}"
    if first is not _rival(scores, subject) and (gap := scores.difference(first, subject)):
        text += f", {_shown(gap, sign=True)} against {title[subject.slot]}{_doubt(gap)}"
    return f"{text}{_repeats(scores, first)}."


def _titles(scores: Scores) -> dict[int, str]:
    """Return each method's title by its slot, with a name that a sentence can hold."""
    names = short_names([method.name for method in scores.methods], LONGEST_NAME)
    return {
        m.slot: m.title if m.name == name else replace(m, name=name).title
        for m, name in zip(scores.methods, names, strict=True)
    }


def _repeats(scores: Scores, method: Method) -> str:
    """Say over how many seeds a mean is, and of how many."""
    scored = min(len(scores.shares(method, benchmark)) for benchmark in scores.benchmarks)
    whole = len(method.runs)
    return "" if whole == 1 else f"; {whole} seeds" if scored == whole else f"; {scored} of {whole} seeds"


def _rival(scores: Scores, subject: Method) -> Method | None:
    return _of_kind(scores, "OPSD" if subject.kind != "OPSD" else "OPASD", subject)


def _of_kind(scores: Scores, kind: str, other: Method | None) -> Method | None:
    """Return the method of a kind, rather one that was asked as the other one was."""
    same = [method for method in scores.methods if other and scores.difference(method, other)]
    return replace(scores, methods=same).best_of(kind) or scores.best_of(kind)


def measured(scores: Scores) -> str:
    """Say what the headline's numbers are."""
    labels = [benchmark.label for benchmark in scores.benchmarks]
    if not labels:
        return ""
    names = [benchmark.name for benchmark in scores.benchmarks]
    alike = {label.replace(f" on {name}", "") for label, name in zip(labels, names, strict=True)}
    what = labels[0] if len(labels) == 1 else f"Mean of {len(labels)} benchmarks: {'; '.join(labels)}"
    if len(alike) == 1 < len(labels):
        what = f"Mean of {', '.join(names[:-1])} and {names[-1]}: {alike.pop()}"
    what = what[:1].upper() + what[1:]
    return f"{what}{', which most methods have' if scores.of_several else ''}. In brackets: 95 % intervals."


def _subject(scores: Scores) -> Method | None:
    """Return the method that the page is about: OPASD, or else the best that is not the base."""
    for kind in ("OPASD", "attention only", "OPSD"):
        if found := _of_kind(scores, kind, scores.base if scores.base and scores.base.kind == "base" else None):
            return found
    known = [(score.mean, m) for m in scores.methods if m is not scores.base and (score := scores.average(m))]
    return max(known, key=lambda pair: pair[0], default=(0, scores.base))[1]


def method_table(scores: Scores) -> Table | None:
    """Return methods × benchmarks: average, difference from the base, then each benchmark; seeds fold out.

    The average and the difference are over the benchmarks that can be compared."""
    if not scores.benchmarks:
        return None
    common = scores.comparable()
    several, base = len(common.benchmarks) > 1, common.base
    others = [one for one in scores.benchmarks if several or one not in common.benchmarks]
    whole = "average" if not common.of_several else " and ".join(one.name for one in common.benchmarks)
    header = ["method", f"{whole if several else common.benchmarks[0].name}, %"]
    header += [f"against {_called(base)}"] if base and len(scores.methods) > 1 else []
    header += [f"{benchmark.name}, %" for benchmark in others]
    rows, details, slots = [], [], []
    for method in common.ranked:
        if not any(benchmark.shares.get(id(run)) for run in method.runs for benchmark in scores.benchmarks):
            continue
        gap = common.difference(method, base) if base and base is not method else None
        cells = [score_cell(common.average(method))]
        cells += (
            [score_cell(gap, sign=True) if base is not method else Cell("")] if len(scores.methods) > 1 and base else []
        )
        cells += [score_cell(scores.score(method, benchmark)) for benchmark in others]
        extras = [_lengths(method.runs), _truncated(method.runs)]
        rows.append([Cell(method.title), *cells, *extras])
        details.append([_seed_row(common, others, method, run) for run in method.runs] if len(method.runs) > 1 else [])
        slots.append(method.slot)
    for column in range(1, len(header)):
        highest = max((row[column].value for row in rows if row[column].value is not None), default=None)
        if len(rows) > 1 and highest is not None:
            for row in rows:
                row[column] = replace(row[column], best=row[column].value == highest)
    header += ["answer length", "truncated"]
    if len(header) > MOST_COLUMNS:  # every run's are in the table below
        header, rows, details = header[:-2], [row[:-2] for row in rows], [[row[:-2] for row in own] for own in details]
    return without_empty(Table("methods", "Methods", header, rows, _note(scores), slots=slots, details=details))


def _called(base: Method) -> str:
    return "the base" if base.kind == "base" else base.name


def _seed_row(common: Scores, others: Sequence[Benchmark], method: Method, run: Run) -> list[Cell]:
    means = [_run_mean(benchmark.shares.get(id(run), {})) for benchmark in common.benchmarks]
    known = [mean for mean in means if mean is not None]
    average = math.fsum(known) / len(known) if known and len(known) == len(means) else None
    cells = [_plain(average)]
    if (base := common.base) and len(common.methods) > 1:
        gap = common.difference(method, base, [run]) if base is not method and average is not None else None
        cells.append(_plain(gap.mean if gap else None, sign=True))
    beside = [_run_mean(benchmark.shares.get(id(run), {})) for benchmark in others]
    cells += [_plain(mean) for mean in beside]
    seed = run.setting("train", "seed")
    name = run.name if seed is None else f"seed {seed}"
    scored = any(mean is not None for mean in (*means, *beside))
    return [Cell(name if scored else f"{name}: not evaluated"), *cells, _lengths([run]), _truncated([run])]


def forest(scores: Scores) -> Figure | None:
    """Return each method's difference from the base with its interval, a row each; dots: its seeds."""
    base = scores.base
    shown = [
        (m, gap) for m in scores.ranked if base and m is not base and (gap := scores.difference(m, base)) is not None
    ]
    if base is None or not shown:
        return None
    series = []
    for row, (method, gap) in enumerate(shown):
        low, high = gap.interval or (gap.mean, gap.mean)
        series.append(Series(method.name, method.slot, [(100 * gap.mean, float(row))], [100 * low], [100 * high]))
        if len(method.runs) > 1:
            gaps = [scores.difference(method, base, [run]) for run in method.runs]
            dots = [(100 * own.mean, float(row)) for own in gaps if own]
            series.append(Series(f"{method.name}, seeds", method.slot, dots, faint=True))
    many = (
        f"the mean of {len(scores.benchmarks)} benchmarks" if len(scores.benchmarks) > 1 else scores.benchmarks[0].name
    )
    caption = f"On {many}" + ("; bars: 95 %, paired on the same problems" if any(g.interval for _, g in shown) else "")
    caption += "; small dots: seeds." if any(one.faint for one in series) else "."
    names = [method.name for method, _ in shown]
    return Figure(
        "forest", f"Difference from {_called(base)}", "forest", "percentage points", "", series, caption, names
    )


def _note(scores: Scores) -> str:
    seeds = any(len(method.runs) >= SEEDS for method in scores.methods)
    by_seeds = f"of methods with {SEEDS} runs or more over seeds (Student's t)"
    if not any(benchmark.asked for benchmark in scores.benchmarks):  # means, without their problems
        note = (f"In brackets: 95 % intervals {by_seeds}. " if seeds else "") + "Differences are those of the means. "
    else:
        note = f"In brackets: 95 % intervals; {f'{by_seeds}, of others over problems' if seeds else 'over problems'}. "
        note += "Differences are paired on the same problems, each averaged over a method's runs first; their "
        note += "intervals are over problems. "
    return f"{note}{' '.join(scores.notes)}".strip()


def _shown(score: Score, *, sign: bool = False, unit: str = "") -> str:
    if score.interval is None:
        return fixed(per_cent(score.mean), 1, sign=sign) + unit
    return with_interval(map(per_cent, (score.mean, *score.interval)), sign=sign).replace(" [", f"{unit} [")


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


def without_empty(table: Table) -> Table:
    """Return the table without the columns in which no row has a value, and without truncation where there is none."""
    kept = [
        n
        for n, name in enumerate(table.header)
        if any(row[n].text not in ("", "–") and (name != "truncated" or row[n].value) for row in table.rows)
    ]
    pick = lambda row: [row[n] for n in kept]  # noqa: E731
    return replace(
        table,
        header=pick(table.header),
        rows=[pick(row) for row in table.rows],
        details=[[pick(row) for row in own] for own in table.details],
    )
