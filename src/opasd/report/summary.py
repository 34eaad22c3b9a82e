"""The tables of a report: results with intervals, cost, seeds, settings that differ."""

import math
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from typing import Any

from opasd.analysis.curves import Point, ends, number
from opasd.analysis.markers import density
from opasd.analysis.seeds import Summary, summarise
from opasd.evaluation.statistics import Estimate, estimate, paired_difference
from opasd.report.figures import Figure, Series, telling_measures
from opasd.report.folders import Result, Run, Sample
from opasd.report.numbers import duration, percent, short, size
from opasd.report.tables import Cell, Table
from opasd.rounding import MINUS, fixed, per_cent

LAST = 0.2
"""The share of a run's steps that its final rollout figures are means over."""
_SAME_EXPERIMENT = {("name",), ("output_dir",), ("train", "seed")}
_FLAT = "."
_ABREAST = 6
"""More runs than these have a row each in the table of settings, not a column."""


def results(runs: Sequence[Run]) -> Table:
    """One row for each run: what it reached, with intervals."""
    evaluated = evaluated_sets(runs)
    scores = {name: _scores(runs, name) for name in evaluated}
    columns: list[tuple[str, list[Cell]]] = [
        ("method", [Cell(run.method) for run in runs]),
        ("seed", [_plain(run.setting("train", "seed")) for run in runs]),
        ("steps", [Cell(f"{run.spending.steps:,}" if run.rows else "–", run.spending.steps) for run in runs]),
    ]
    apart: list[str] = []
    for name in evaluated:
        found = [estimate(list(one.values())) if one else None for one in scores[name]]
        columns.append((f"{name}, %", list(map(_estimate, found))))
        if sum(one is not None for one in scores[name]) > 1:
            otherwise = _asked_differently(runs, scores[name], name)
            columns.append((f"{name} against first", _differences(scores[name], otherwise)))
            apart += _not_compared(runs, otherwise, name)
    for name, measure in _validated(runs):
        curves = [run.validation.get(name, {}).get(measure) for run in runs]
        columns.append((f"{name} {_capital(measure)}, first → last, %", [_first_to_last(points) for points in curves]))
    columns += [
        ("rollout accuracy at the end, %", [_at_the_end(run.curve("rollout/accuracy"), per_cent) for run in runs]),
        ("rollout length at the end", [_at_the_end(run.curve("rollout/length_mean")) for run in runs]),
        ("answer length", [_mean_length(run) for run in runs]),
        ("truncated", [_truncated(run) for run in runs]),
        ("markers / 1,000", [_markers(run) for run in runs]),
    ]
    note = (
        "In brackets: 95 % intervals. Of answers to a set: by bootstrap over problems, differences paired on the same "
        f"problems. Of rollouts: mean of the last {100 * LAST:.0f} % of the steps, Student's t over steps. Of "
        "validation during training only the mean is on record. Truncation and markers are those of the answers, or "
        "else of the training rollouts on record."
    )
    return _by_run("results", "Results", runs, columns, " ".join([note, *apart]))


def evaluations(runs: Sequence[Run]) -> Table | None:
    """Every result of an evaluation: Avg@n, Pass@n, Maj@n, length and truncation, by benchmark and budget."""
    by_heading: defaultdict[tuple[str, int, int, str], list[tuple[int, Result]]] = defaultdict(list)
    for place, run in enumerate(runs):
        for result in run.results:
            asked = (result.benchmark, result.budget, result.samples)
            before = [runs[many[0][0]] for key, many in by_heading.items() if key[:3] == asked]
            first = before[0] if before else run
            otherwise = run.conditions.differences_from(first.conditions, result.benchmark, counts=False)
            by_heading[*asked, ", ".join(["", *otherwise])].append((place, result))
    if not by_heading:
        return None
    rows: list[list[Cell]] = []
    owners: list[int | None] = []
    found = sorted(by_heading.items(), key=lambda one: one[0][:3])
    group = None
    for heading, place, result in ((heading, *one) for heading, several in found for one in several):
        if heading != group:
            text = f"{result.benchmark}, up to {result.budget:,} tokens, {result.samples} samples a problem{heading[3]}"
            rows.append([Cell(text)])
            owners.append(None)
            group = heading
        several = result.samples > 1
        rows.append(
            [
                Cell(runs[place].name),
                _interval(result.avg),
                _interval(result.passed.get(result.samples)) if several else Cell("–"),
                _interval(result.majority.get(result.samples)) if several else Cell("–"),
                Cell(fixed(result.tokens[0], 1), result.tokens[0]),
                Cell(percent(result.truncated[0]), result.truncated[0]),
            ]
        )
        owners.append(place)
    note = "In per cent. In brackets: 95 % intervals by bootstrap over problems. n is the number of samples."
    header = ["model", "Avg@n", "Pass@n", "Maj@n", "tokens", "truncated"]
    return Table("evaluations", "Evaluations", header, rows, note, runs=owners)


def _interval(found: tuple[float, float, float] | None) -> Cell:
    return _estimate(None if found is None else Estimate(*found))


def costs(runs: Sequence[Run]) -> Table | None:
    """What each run took."""
    chosen = [run for run in runs if run.steps]
    if not chosen:
        return None
    spent = [run.spending for run in runs]
    columns = [
        ("wall clock", [Cell(duration(one.seconds), one.seconds) for one in spent]),
        ("tokens generated", [Cell(short(one.tokens_generated), one.tokens_generated) for one in spent]),
        ("tokens processed", [Cell(short(one.tokens_processed), one.tokens_processed) for one in spent]),
        ("EFLOPs", [Cell("–" if one.eflops is None else f"{one.eflops:.3g}", one.eflops) for one in spent]),
        ("peak memory", [Cell(size(one.peak_bytes), one.peak_bytes) for one in spent]),
        (
            "ms / processed token",
            [Cell(fixed(one.ms_per_processed_token, 3), one.ms_per_processed_token) for one in spent],
        ),
    ]
    note = (
        "Wall clock: the sum of the steps, without validation and saving. EFLOPs (10¹⁸ operations): an estimate, 2 for "
        "each parameter and token of a forward plus attention; rollouts, teacher and student one forward each, the "
        "update a backward: one forward's worth through frozen weights, two through trained ones, one more where "
        "activations are recomputed. Peak memory: of the device, or of the process where there is none. Milliseconds: "
        "teacher, student and update, over the tokens both roles read."
    )
    return _by_run("cost", "Cost", runs, columns, note)


def seed_groups(runs: Sequence[Run]) -> list[list[int]]:
    """Runs of one configuration that differ in their seed alone."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for place, run in enumerate(runs):
        if run.config and run.steps:
            settings = {path: value for path, value in flat(run.config).items() if path not in _SAME_EXPERIMENT}
            groups[repr(sorted(settings.items(), key=repr))].append(place)
    for members in groups.values():
        members.sort(key=lambda member: number(runs[member].setting("train", "seed")) or 0.0)
    return [
        members for members in groups.values() if len({repr(runs[n].setting("train", "seed")) for n in members}) > 1
    ]


def seeds(runs: Sequence[Run], members: Sequence[int], place: int) -> Table:
    """The runs of one experiment, then mean, sample standard deviation and 95 % interval over them."""
    chosen = [runs[member] for member in members]
    measures: dict[str, list[float | None]] = {}
    for name in evaluated_sets(chosen):
        measures[f"{name}, %"] = [_mean(one) for one in _scores(chosen, name)]
    for name, measure in _validated(chosen):
        measures[f"{name} {_capital(measure)}, %"] = [
            _last(run.validation.get(name, {}).get(measure)) for run in chosen
        ]
    measures["rollout accuracy, %"] = [_tail_mean(run.curve("rollout/accuracy"), per_cent) for run in chosen]
    measures["rollout length"] = [_tail_mean(run.curve("rollout/length_mean")) for run in chosen]
    measures["attention divergence"] = [_tail_mean(run.curve("attention/divergence")) for run in chosen]
    measures = {name: values for name, values in measures.items() if all(value is not None for value in values)}
    names = [f"seed {run.setting('train', 'seed')}" for run in chosen]
    columns = {name: [value for value in values if value is not None] for name, values in measures.items()}
    title = f"Seeds of {_common_name([run.name for run in chosen])}"
    caption = f"Last values; rollout figures: mean of the last {100 * LAST:.0f} % of the steps."
    return summary_table(f"seeds-{place}", title, "seed", names, columns, caption, runs=members)


def summary_table(
    name: str,
    title: str,
    first: str,
    names: Sequence[str],
    columns: dict[str, list[float]],
    caption: str,
    *,
    digits: int | None = 2,
    runs: Sequence[int] = (),
) -> Table:
    """Rows of numbers, then their mean, sample standard deviation and the half width of the 95 % t-interval."""
    places = {
        name: _digits(values) if digits is None or name.endswith("divergence") else digits
        for name, values in columns.items()
    }
    rows = [
        [Cell(name), *(Cell(fixed(values[place], places[column]), values[place]) for column, values in columns.items())]
        for place, name in enumerate(names)
    ]
    found = {column: summarise(values) for column, values in columns.items()}
    rows.append([Cell("Mean"), *(Cell(fixed(one.mean, places[column]), one.mean) for column, one in found.items())])
    rows.append([Cell("Std"), *(Cell(fixed(one.sd, places[column]), one.sd) for column, one in found.items())])
    rows.append([Cell("95 % CI"), *(Cell(_half(one, places[column]), one.half_width) for column, one in found.items())])
    caption += " Std: sample standard deviation. CI: half width of the 95 % interval of the mean, Student's t."
    return Table(
        name, title, [first, *columns], rows, caption.strip(), len(names), (*runs, None, None, None) if runs else ()
    )


def seed_figures(runs: Sequence[Run], members: Sequence[int], place: int) -> list[Figure]:
    """The mean over seeds of each validation accuracy, with the range over the seeds as a band."""
    chosen = [runs[member] for member in members]
    figures = []
    for name, measure in _validated(chosen):
        curves = [dict(run.validation.get(name, {}).get(measure, [])) for run in chosen]
        steps = sorted(set.intersection(*map(set, curves)))
        if len(steps) < 2:
            continue
        values = [[curve[step] for curve in curves] for step in steps]
        common = _common_name([run.name for run in chosen])
        series = Series(
            common, members[0], [(step, math.fsum(one) / len(one)) for step, one in zip(steps, values, strict=True)],
            list(map(min, values)), list(map(max, values)), marks=True,
        )  # fmt: skip
        figures.append(
            Figure(
                f"seeds-{place}-{name}-{measure}", f"{_capital(measure)} on {name} over {len(chosen)} seeds", "line",
                "step", _capital(measure), [series], f"Mean and range over the seeds of {common}.", percent=True,
            )
        )  # fmt: skip
    return figures


def settings_that_differ(runs: Sequence[Run]) -> Table | None:
    """The configuration's fields in which the runs differ."""
    known = [(place, run) for place, run in enumerate(runs) if run.config]
    if len(known) < 2:
        return None
    flats = [flat(run.config) for _, run in known]
    paths = dict.fromkeys(path for one in flats for path in one if path not in (("name",), ("output_dir",)))
    differing = [path for path in paths if any(one.get(path) != flats[0].get(path) for one in flats)]
    if not differing:
        return None
    names, note = list(map(_FLAT.join, differing)), "Every other field is the same in all runs."
    columns = [[Cell(_shown(one.get(path)), wraps=True) for path in differing] for one in flats]
    if len(known) > _ABREAST:
        rows = [[Cell(run.name), *column] for (_, run), column in zip(known, columns, strict=True)]
        places = [place for place, _ in known]
        return Table("settings", "Settings that differ", ["run", *names], rows, note, runs=places)
    rows = [[Cell(name), *row] for name, *row in zip(names, *columns, strict=True)]
    return Table("settings", "Settings that differ", ["setting", *(run.name for _, run in known)], rows, note)


def flat(config: Any, path: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    """Leaf paths of nested mappings and their values."""
    if isinstance(config, dict) and config:
        return {inner: leaf for key, value in config.items() for inner, leaf in flat(value, (*path, str(key))).items()}
    return {path: config}


def _validated(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Validation sets and their accuracies; Pass@1 is Avg@k."""
    sets = dict.fromkeys(name for run in runs for name in run.validation)
    return [(name, m) for name in sets for m in telling_measures(runs, name) if "@" in m and m != "pass@1"]


def _scores(runs: Sequence[Run], dataset: str) -> list[dict[str, float] | None]:
    """Each run's mean verdict by problem; None where it has no graded answers."""
    return [_per_problem(run.answers.get(dataset, [])) or _recorded(run, dataset) for run in runs]


def evaluated_sets(runs: Sequence[Run]) -> list[str]:
    """The sets of which some run has answers or results."""
    names = (name for run in runs for name in (*run.answers, *(result.benchmark for result in run.results)))
    return list(dict.fromkeys(names))


def _recorded(run: Run, dataset: str) -> dict[str, float] | None:
    """The same from an evaluation's results, at its largest budget."""
    found = [result for result in run.results if result.benchmark == dataset and result.correct]
    return max(found, key=lambda result: result.budget).correct if found else None


def _per_problem(samples: Sequence[Sample]) -> dict[str, float]:
    verdicts: defaultdict[str, list[bool]] = defaultdict(list)
    for sample in samples:
        if sample.correct is not None:
            verdicts[sample.problem].append(sample.correct)
    return {problem: sum(found) / len(found) for problem, found in verdicts.items()}


def _asked_differently(runs: Sequence[Run], scores: Sequence[dict[str, float] | None], name: str) -> dict[int, str]:
    """The places of runs that cannot be compared with the first that answered, and what of the asking differs."""
    answered = [place for place, one in enumerate(scores) if one is not None]
    first = runs[answered[0]].conditions
    told = {place: ", ".join(runs[place].conditions.differences_from(first, name)) for place in answered}
    return {place: text for place, text in told.items() if text}


def _not_compared(runs: Sequence[Run], otherwise: dict[int, str], name: str) -> list[str]:
    rows = {why: [runs[place].name for place, other in otherwise.items() if other == why] for why in otherwise.values()}
    told = "; ".join(f"{', '.join(names)} ({why})" for why, names in rows.items())
    return [f"Asked {name} otherwise than the first, and not compared: {told}."] if told else []


def _differences(scores: Sequence[dict[str, float] | None], otherwise: Container[int] = ()) -> list[Cell]:
    first = next(place for place, one in enumerate(scores) if one is not None)
    base = scores[first] or {}
    found = []
    for place, one in enumerate(scores):
        common = [problem for problem in base if one and problem in one]
        if place == first or place in otherwise or one is None or not common:
            found.append(Cell(""))
        else:
            gain = paired_difference([one[problem] for problem in common], [base[problem] for problem in common])
            found.append(_estimate(gain, sign=True))
    return found


def _by_run(table: str, title: str, runs: Sequence[Run], columns: list[tuple[str, list[Cell]]], note: str) -> Table:
    """Columns in which no run has anything are left out."""
    kept = [(name, found) for name, found in columns if any(cell.text not in ("", "–") for cell in found)]
    rows = [[Cell(run.name), *(found[place] for _, found in kept)] for place, run in enumerate(runs)]
    return Table(table, title, ["run", *(name for name, _ in kept)], rows, note, runs=tuple(range(len(runs))))


def _estimate(found: Estimate | None, *, sign: bool = False) -> Cell:
    if found is None:
        return Cell("–")
    mean, low, high = map(per_cent, found)
    return Cell(f"{fixed(mean, 1, sign=sign)} [{fixed(low, 1, sign=sign)}, {fixed(high, 1, sign=sign)}]", mean)


def _first_to_last(points: Sequence[Point] | None) -> Cell:
    if not points:
        return Cell("–")
    last = per_cent(points[-1][1])
    if len(points) == 1:
        return Cell(fixed(last, 1), last)
    return Cell(f"{fixed(per_cent(points[0][1]), 1)} → {fixed(last, 1)}", last)


def _tail(points: Sequence[Point]) -> list[float]:
    return [y for _, y in points[-max(1, round(LAST * len(points))) :]] if points else []


def _at_the_end(points: Sequence[Point], scale: Callable[[float], float] = float, digits: int = 1) -> Cell:
    values = [scale(value) for value in _tail(points)]
    if not values:
        return Cell("–")
    found = summarise(values)
    if found.interval is None or len(values) < 3:
        return Cell(fixed(found.mean, digits), found.mean)
    low, high = found.interval
    return Cell(f"{fixed(found.mean, digits)} [{fixed(low, digits)}, {fixed(high, digits)}]", found.mean)


def _answers_or_rollouts(run: Run) -> list[Sample]:
    return [sample for found in run.answers.values() for sample in found] or run.samples


def _mean_length(run: Run) -> Cell:
    samples = [sample for found in run.answers.values() for sample in found]
    mean = math.fsum(sample.tokens for sample in samples) / len(samples) if samples else None
    return Cell(fixed(mean, 1), mean)


def _truncated(run: Run) -> Cell:
    samples = _answers_or_rollouts(run)
    share = sum(sample.truncated for sample in samples) / len(samples) if samples else None
    return Cell(percent(share), share)


def _markers(run: Run) -> Cell:
    chosen = list(run.answers) or list(run.counted)
    found = density([one for name in chosen for one in run.counted.get(name, [])])
    return Cell(fixed(found, 2), found)


def _plain(value: Any) -> Cell:
    return Cell("" if value is None else _shown(value), number(value))


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        ", ".join(map(str, value))
        if isinstance(value, list)
        else str(value).replace("-", MINUS, 1)
        if isinstance(value, int | float) and value < 0
        else str(value)
    )


def _capital(measure: str) -> str:
    return measure[:1].upper() + measure[1:]


def _mean(scores: dict[str, float] | None) -> float | None:
    """In per cent."""
    return per_cent(math.fsum(scores.values()) / len(scores)) if scores else None


def _last(points: Sequence[Point] | None) -> float | None:
    """In per cent."""
    return per_cent(points[-1][1]) if points else None


def _tail_mean(points: Sequence[Point], scale: Callable[[float], float] = float) -> float | None:
    values = _tail(points)
    return scale(math.fsum(values) / len(values)) if values else None


def _half(found: Summary, digits: int) -> str:
    return "–" if found.half_width is None else f"± {fixed(found.half_width, digits)}"


def _digits(values: Sequence[float]) -> int:
    """Enough decimals for three significant digits of the largest."""
    largest = max(map(abs, values), default=0.0)
    return 2 if largest == 0 else max(0, min(8, 2 - math.floor(math.log10(largest))))


def _common_name(names: Sequence[str]) -> str:
    """What the names begin with, without a dangling separator; the first one where they share nothing."""
    shared = names[0]
    for name in names[1:]:
        while not name.startswith(shared):
            shared = shared[:-1]
    return shared.rstrip("-_. /0123456789").removesuffix("-seed").removesuffix("_seed") or names[0]


def alignment_note(run: Run) -> str | None:
    """The alignment curve in one line, as the paper says it: the mean of the first and of the last steps."""
    points = run.curve("attention/divergence")
    window = min(20, max(1, len(points) // 4))
    found = ends(points, window)
    if found is None or len(points) < 2:
        return None
    first, last = ("first step", "last") if window == 1 else (f"first {window} steps", f"last {window}")
    return f"{run.name}: {found[0]:.4f} over the {first}, {found[1]:.4f} over the {last}"
