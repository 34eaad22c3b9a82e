"""The tables that compare runs: results with intervals, evaluations, and cost."""

import math
from collections.abc import Callable, Mapping, Sequence

from opasd.analysis.curves import Point, number
from opasd.analysis.markers import density
from opasd.analysis.seeds import summarise
from opasd.analysis.spending import EXA
from opasd.evaluation.comparability import Conditions
from opasd.evaluation.statistics import Estimate, estimate, paired_difference
from opasd.report.accuracy import capital
from opasd.report.numbers import duration, operations, percent, short, size
from opasd.report.run import BenchmarkResult, RecordedSample, Run
from opasd.report.summary import LAST, evaluated_sets, shown, tail, validated_measures
from opasd.report.tables import Cell, Table
from opasd.rounding import fixed, per_cent, with_interval

Column = tuple[str, list[Cell]]
"""A heading, and a cell for each run."""


def results(runs: Sequence[Run]) -> Table:
    """Return the table of what each run reached, with intervals."""
    seeds = [run.setting("train", "seed") for run in runs]
    columns: list[Column] = [
        ("method", [Cell(run.method) for run in runs]),
        ("seed", [Cell("" if seed is None else shown(seed), number(seed)) for seed in seeds]),
        ("steps", [Cell(f"{run.spending.steps:,}" if run.rows else "–", run.spending.steps) for run in runs]),
    ]
    note = (
        "In brackets: 95 % intervals. Of answers to a set: for problems like these, differences paired on the same "
        f"problems. Of rollouts: mean of the last {100 * LAST:.0f} % of the steps, Student's t over steps. Of "
        "validation during training only the mean is on record. Truncation and markers are those of the answers, or "
        "else of the training rollouts on record."
    )
    notes = [note]
    for name in evaluated_sets(runs):
        shares = {n: own for n, run in enumerate(runs) if (own := run.shares(name))}
        estimates = {n: estimate(list(own.values())) for n, own in shares.items()}
        columns.append((f"{name}, %", [_estimate(estimates.get(n)) for n in range(len(runs))]))
        if len(shares) > 1:
            columns.append((f"{name} against first", _differences(runs, shares, name, notes)))
    for name, measure in validated_measures(runs):
        curves = [run.validation.get(name, {}).get(measure) for run in runs]
        columns.append((f"{name} {capital(measure)}, first → last, %", [_first_to_last(points) for points in curves]))
    columns += [
        ("rollout accuracy at the end, %", [_at_the_end(run.curve("rollout/accuracy"), per_cent) for run in runs]),
        ("rollout length at the end", [_at_the_end(run.curve("rollout/length_mean")) for run in runs]),
        ("answer length", [_mean_length(run) for run in runs]),
        ("truncated", [_truncated(run) for run in runs]),
        ("markers / 1,000", [_markers(run) for run in runs]),
    ]
    return _by_run("results", "Results", runs, columns, " ".join(notes))


def _differences(
    runs: Sequence[Run], shares: Mapping[int, Mapping[str, float]], name: str, notes: list[str]
) -> list[Cell]:
    """Return each run's difference from the first that answered; note which runs cannot be compared with it."""
    first = next(iter(shares))
    cells = [Cell("")] * len(runs)
    not_compared: dict[str, list[str]] = {}
    for n, own in shares.items():
        reasons = ", ".join(runs[n].conditions.differences_from(runs[first].conditions, name))
        common = [problem for problem in shares[first] if problem in own]
        if reasons:
            not_compared.setdefault(reasons, []).append(runs[n].name)
        elif n != first and common:
            gain = paired_difference([own[problem] for problem in common], [shares[first][p] for p in common])
            cells[n] = _estimate(gain, sign=True)
    if not_compared:
        listed = "; ".join(f"{', '.join(names)} ({reasons})" for reasons, names in not_compared.items())
        notes.append(f"Not compared with the first on {name}, because it was asked differently: {listed}.")
    return cells


def evaluations(runs: Sequence[Run]) -> Table | None:
    """Return the table of every result: Avg@n, Pass@n, Maj@n, length and truncation, by benchmark and budget."""
    first: dict[tuple[str, int, int], Conditions] = {}
    groups: dict[tuple[str, int, int, str], list[tuple[int, BenchmarkResult]]] = {}
    for n, run in enumerate(runs):
        for result in run.results:
            key = (result.benchmark, result.budget, result.samples)
            conditions = first.setdefault(key, run.conditions)
            reasons = run.conditions.differences_from(conditions, result.benchmark, counts=False)
            groups.setdefault((*key, ", ".join(["", *reasons])), []).append((n, result))
    if not groups:
        return None
    rows: list[list[Cell]] = []
    owners: list[int | None] = []
    for (benchmark, budget, samples, reasons), members in sorted(groups.items(), key=lambda item: item[0][:3]):
        asked = f"{samples} samples a problem" if samples > 1 else "1 sample a problem"
        rows.append([Cell(f"{benchmark}, up to {budget:,} tokens, {asked}{reasons}")])
        rows += [_evaluation_row(runs[n].name, result) for n, result in members]
        owners += [None, *(runs[n].slot for n, _ in members)]
    note = "In per cent. In brackets: 95 % intervals for problems like these. n is the number of samples."
    header = ["model", "Avg@n", "Pass@n", "Maj@n", "tokens", "truncated"]
    if all(samples == 1 for _, _, samples, _ in groups):  # Pass@1 and Maj@1 are Avg@1
        header, rows = header[:2] + header[4:], [row[:2] + row[4:] for row in rows]
    return Table("evaluations", "Evaluations", header, rows, note, slots=owners)


def _evaluation_row(name: str, result: BenchmarkResult) -> list[Cell]:
    return [
        Cell(name),
        _estimate(result.avg),
        _estimate(result.passed.get(result.samples) if result.samples > 1 else None),
        _estimate(result.majority.get(result.samples) if result.samples > 1 else None),
        Cell(fixed(result.tokens.mean, 1), result.tokens.mean),
        Cell(percent(result.truncated.mean), result.truncated.mean),
    ]


def costs(runs: Sequence[Run]) -> Table | None:
    """Return the table of what each run took; None if no run was trained."""
    if not any(run.steps for run in runs):
        return None
    spendings = [run.spending for run in runs]
    flops = [None if cost.eflops is None else EXA * cost.eflops for cost in spendings]
    unit, scale = operations([own for own in flops if own is not None])
    speeds = [cost.ms_per_processed_token for cost in spendings]
    columns: list[Column] = [
        ("wall clock", [Cell(duration(cost.seconds), cost.seconds) for cost in spendings]),
        ("tokens generated", [Cell(short(cost.tokens_generated), cost.tokens_generated) for cost in spendings]),
        ("tokens processed", [Cell(short(cost.tokens_processed), cost.tokens_processed) for cost in spendings]),
        (unit, [Cell(short(None if own is None else own / scale), own) for own in flops]),
        ("peak memory", [Cell(size(cost.peak_bytes), cost.peak_bytes) for cost in spendings]),
        ("ms / processed token", [Cell(fixed(speed, 3), speed) for speed in speeds]),
    ]
    note = (
        "Wall clock: the sum of the steps, without validation and saving. "
        f"{unit} (10{_powers(scale)} operations): an estimate, 2 for each parameter and token of a forward plus "
        "attention; rollouts, teacher and student one forward each, the "
        "update a backward: one forward's worth through frozen weights, two through trained ones, one more where "
        "activations are recomputed. Peak memory: of the device, or of the process where there is none. Milliseconds: "
        "teacher, student and update, over the tokens both roles read."
    )
    return _by_run("cost", "Cost", runs, columns, note)


def _powers(scale: float) -> str:
    return str(round(math.log10(scale))).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _by_run(table_id: str, title: str, runs: Sequence[Run], columns: Sequence[Column], note: str) -> Table:
    """Return a table with a row for each run, without the columns in which no run has a value."""
    columns = [(name, cells) for name, cells in columns if any(cell.text not in ("", "–") for cell in cells)]
    rows = [[Cell(run.name), *(cells[n] for _, cells in columns)] for n, run in enumerate(runs)]
    return Table(table_id, title, ["run", *(name for name, _ in columns)], rows, note, slots=[run.slot for run in runs])


def _estimate(estimate: Estimate | None, *, sign: bool = False) -> Cell:
    if estimate is None:
        return Cell("–")
    return Cell(with_interval(map(per_cent, estimate), sign=sign), per_cent(estimate.mean))


def _first_to_last(points: Sequence[Point] | None) -> Cell:
    if not points:
        return Cell("–")
    last = per_cent(points[-1][1])
    if len(points) == 1:
        return Cell(fixed(last, 1), last)
    return Cell(f"{fixed(per_cent(points[0][1]), 1)} → {fixed(last, 1)}", last)


def _at_the_end(points: Sequence[Point], scale: Callable[[float], float] = float) -> Cell:
    values = [scale(value) for value in tail(points)]
    if not values:
        return Cell("–")
    summary = summarise(values)
    if summary.interval is None or len(values) < 3:
        return Cell(fixed(summary.mean, 1), summary.mean)
    return Cell(with_interval([summary.mean, *summary.interval]), summary.mean)


def _answers(run: Run) -> list[RecordedSample]:
    return [sample for samples in run.answers.values() for sample in samples]


def _mean_length(run: Run) -> Cell:
    samples = _answers(run)
    mean = math.fsum(sample.tokens for sample in samples) / len(samples) if samples else None
    return Cell(fixed(mean, 1), mean)


def _truncated(run: Run) -> Cell:
    samples = _answers(run) or run.samples
    share = sum(sample.truncated for sample in samples) / len(samples) if samples else None
    return Cell(percent(share), share)


def _markers(run: Run) -> Cell:
    datasets = list(run.answers) or list(run.markers)
    per_1000 = density(counts for name in datasets for counts in run.markers.get(name, []))
    return Cell(fixed(per_1000, 2), per_1000)
