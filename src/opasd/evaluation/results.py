"""Samples ─► results: what every target reached on every benchmark, with intervals, and how the targets differ.

`build` makes the lists of `evaluation.json`, which docs/evaluation.md describes. `table` is for people.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from statistics import fmean, median
from typing import Any, NamedTuple

from opasd.evaluation.samples import GradedSample, SampleKey
from opasd.evaluation.scores import maj_at_k, pass_at_k, votes
from opasd.evaluation.statistics import estimates, macro_average, paired_difference
from opasd.grading.verdict import VERDICTS
from opasd.rounding import fixed, per_cent, with_interval

SCHEMA = 1


class Trial(NamedTuple):
    """One target on one benchmark at one budget."""

    target: str
    benchmark: str
    budget: int


ByProblem = Mapping[str, Sequence[GradedSample]]
"""The samples of each problem, in the order of the benchmark."""
Columns = Mapping[str, list[float]]
"""Measures by name, each with one number for each problem."""


def gather(
    samples: Mapping[SampleKey, Mapping[int, GradedSample]],
    problems: Mapping[str, Sequence[str]],
    targets: Sequence[str],
    count: int,
) -> dict[Trial, dict[str, list[GradedSample]]]:
    """Group graded samples by trial; leave out a trial that lacks one of `count` samples of any problem."""
    trials: dict[Trial, dict[str, list[GradedSample]]] = {}
    budgets = next(iter(samples.values()), {})
    for benchmark, ids in problems.items():
        for trial in (Trial(target, benchmark, budget) for budget in budgets for target in targets):
            keys = {
                problem: [SampleKey(trial.target, benchmark, problem, number) for number in range(count)]
                for problem in ids
            }
            if all(key in samples for key in chain.from_iterable(keys.values())):
                trials[trial] = {problem: [samples[key][trial.budget] for key in own] for problem, own in keys.items()}
    return trials


def build(trials: Mapping[Trial, ByProblem]) -> dict[str, Any]:
    """Return the results of the trials, averages over benchmarks, and differences between targets.

    Averages are over the benchmarks that all targets have. Differences are between each target and the first one, on
    the same problems.
    """
    targets = list(dict.fromkeys(target for target, _, _ in trials))
    benchmarks = list(dict.fromkeys(benchmark for _, benchmark, _ in trials))
    budgets = list(dict.fromkeys(budget for _, _, budget in trials))
    shared = [name for name in benchmarks if all((t, name, b) in trials for t in targets for b in budgets)]
    columns = {trial: _columns(samples) for trial, samples in trials.items()}
    results = [Trial(*trial)._asdict() | _measures(samples, columns[trial]) for trial, samples in trials.items()]
    averages, differences = [], []
    for budget in budgets:
        by_target = {
            target: {name: columns[trial] for name in benchmarks if (trial := Trial(target, name, budget)) in columns}
            for target in targets
        }
        for target, own in by_target.items():
            if len(shared) > 1:
                average = macro_average([own[name]["avg"] for name in shared])._asdict()
                averages.append({"target": target, "budget": budget, "benchmarks": shared, "avg": average})
            if target != targets[0]:
                pair = {"target": target, "against": targets[0]}
                for benchmark, row in _differences(own, by_target[targets[0]], shared):
                    differences.append(pair | {"benchmark": benchmark, "budget": budget} | row)
    return {"results": results, "averages": averages, "differences": differences}


def _columns(by_problem: ByProblem) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for samples in by_problem.values():
        n, correct = len(samples), sum(sample.verdict == "correct" for sample in samples)
        ballots = votes([sample.verdict for sample in samples], [sample.answer for sample in samples])
        row = {
            "avg": correct / n,
            "tokens": fmean(sample.tokens for sample in samples),
            "truncated": fmean(sample.truncated for sample in samples),
        }
        row |= {f"pass@{k}": pass_at_k(correct, n, k) for k in range(1, n + 1)}
        row |= {f"maj@{k}": maj_at_k(ballots, n, k) for k in range(1, n + 1)}
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def _measures(by_problem: ByProblem, columns: Columns) -> dict[str, Any]:
    """Return what a result says of one trial; `columns` are those of `by_problem`."""
    means = {name: mean._asdict() for name, mean in zip(columns, estimates(list(columns.values())), strict=True)}
    every = list(chain.from_iterable(by_problem.values()))
    counts = Counter(sample.verdict for sample in every)
    samples = len(every) // len(by_problem)
    return {
        "problems": len(by_problem),
        "samples": samples,
        "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
        "avg": means["avg"],
        "pass": {str(k): means[f"pass@{k}"] for k in range(1, samples + 1)},
        "maj": {str(k): means[f"maj@{k}"] for k in range(1, samples + 1)},
        "tokens": means["tokens"] | {"median": float(median(sample.tokens for sample in every))},
        "truncated": means["truncated"],
        "per_problem": {
            problem: {
                "correct": sum(sample.verdict == "correct" for sample in own),
                "tokens": fmean(sample.tokens for sample in own),
            }
            for problem, own in by_problem.items()
        },
    }


def _differences(
    own: Mapping[str, Columns], first: Mapping[str, Columns], shared: Sequence[str]
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the differences on each benchmark by its name, then under None their average over the shared ones."""
    for name in [name for name in own if name in first]:
        samples = sum(measure.startswith("pass@") for measure in own[name])
        measures = {"avg": "avg", "pass": f"pass@{samples}", "maj": f"maj@{samples}", "tokens": "tokens"}
        yield (
            name,
            {
                short: paired_difference(own[name][measure], first[name][measure])._asdict()
                for short, measure in measures.items()
            },
        )
    if len(shared) > 1:
        pairs = [zip(own[name]["avg"], first[name]["avg"], strict=True) for name in shared]
        gaps = [[share - first_share for share, first_share in pair] for pair in pairs]
        yield None, {"avg": macro_average(gaps)._asdict()}


def table(evaluation: Mapping[str, Any]) -> str:
    """Return the results as a Markdown table, in per cent with 95 % intervals."""
    results = evaluation["results"]
    if not results:
        return ""
    several_budgets = len({result["budget"] for result in results}) > 1
    gaps = {(d["target"], d["benchmark"], d["budget"]): d["avg"] for d in evaluation["differences"]}
    samples, first = results[0]["samples"], results[0]["target"]

    def beginning(result: Mapping[str, Any], benchmark: str | None) -> dict[str, str]:
        row = {"benchmark": benchmark or "average"}
        row |= {"budget": f"{result['budget']:,}"} if several_budgets else {}
        row |= {"target": result["target"], f"Avg@{samples}": _points(result["avg"])}
        if gaps:
            gap = gaps.get((result["target"], benchmark, result["budget"]))
            row[f"against {first}"] = _points(gap, sign=True) if gap else ""
        return row

    rows = []
    for result in results:
        row = beginning(result, result["benchmark"])
        if samples > 1:
            row |= {f"Pass@{samples}": _points(result["pass"][str(samples)])}
            row |= {f"Maj@{samples}": _points(result["maj"][str(samples)])}
        unanswered = result["verdicts"]["no_answer"] / (result["problems"] * result["samples"])
        rows.append(
            row
            | {
                "tokens": fixed(result["tokens"]["mean"], 1),
                "median": fixed(result["tokens"]["median"], 0),
                "truncated": fixed(per_cent(result["truncated"]["mean"]), 1),
                "no answer": fixed(per_cent(unanswered), 1),
                "failed": str(result["verdicts"]["grader_failed"]),
            }
        )
    header = list(rows[0])
    rows += [beginning(average, None) for average in evaluation["averages"]]
    return _markdown(header, [[row.get(name, "") for name in header] for row in rows])


def _points(value: Mapping[str, float], *, sign: bool = False) -> str:
    """Return percentage points: mean [low, high]."""
    return with_interval((per_cent(value[part]) for part in ("mean", "low", "high")), sign=sign)


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
