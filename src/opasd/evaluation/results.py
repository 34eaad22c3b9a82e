"""Samples ─► results: what every target reached on every benchmark, with intervals, and how the targets differ.

`build` makes the lists of `evaluation.json`, which docs/evaluation.md describes. `table` is for people.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from statistics import fmean, median
from typing import Any, NamedTuple

from opasd.evaluation.sampled import SampledScores
from opasd.evaluation.samples import GradedSample, SampleKey
from opasd.evaluation.scores import THRESHOLDS, g_pass_at_k, maj_at_k, mg_pass_at_k, pass_at_k, votes
from opasd.evaluation.statistics import (
    LEVEL,
    Estimate,
    estimate,
    estimates,
    gap_estimate,
    holm,
    macro_average,
    mean_of,
    p_value,
)
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
    measured = {Trial(*trial): Measured(samples) for trial, samples in trials.items()}
    results = [trial._asdict() | own.result() for trial, own in measured.items()]
    averages, differences = [], []
    for budget in budgets:
        by_target = {
            target: {name: measured[trial] for name in benchmarks if (trial := Trial(target, name, budget)) in measured}
            for target in targets
        }
        for target, own in by_target.items():
            if len(shared) > 1:
                average = _both(
                    macro_average([estimate(own[name].columns["avg"]) for name in shared]),
                    macro_average([own[name].of_these("avg") for name in shared]),
                )
                averages.append({"target": target, "budget": budget, "benchmarks": shared, "avg": average})
            if target != targets[0]:
                pair = {"target": target, "against": targets[0]}
                for benchmark, row in _differences(own, by_target[targets[0]], shared):
                    differences.append(pair | {"benchmark": benchmark, "budget": budget} | row)
    for row, corrected in zip(differences, holm([row["p"] for row in differences]), strict=True):
        row["p_holm"] = corrected
    return {"results": results, "averages": averages, "differences": differences}


class Measured:
    """One trial: scores that follow from the counts of right samples, by name, and measures with a number a problem."""

    def __init__(self, by_problem: ByProblem) -> None:
        self.by_problem = by_problem
        self.samples = n = len(next(iter(by_problem.values())))
        self.correct = [sum(sample.verdict == "correct" for sample in own) for own in by_problem.values()]
        self.scores = _score_tables(n)
        """By name, the score of a problem with c right samples, for c = 0, …, n."""
        self.columns: dict[str, list[float]] = {
            name: [scores[c] for c in self.correct] for name, scores in self.scores.items()
        }
        """By name, the score of each problem."""
        for own in by_problem.values():
            ballots = votes([sample.verdict for sample in own], [sample.answer for sample in own])
            row = {"truncated": fmean(sample.truncated for sample in own)}
            row |= {f"maj@{k}": maj_at_k(ballots, n, k) for k in range(1, n + 1)}
            for name, value in row.items():
                self.columns.setdefault(name, []).append(value)
        self.tokens = [fmean(sample.tokens for sample in own) for own in by_problem.values()]
        self.sampled = SampledScores(self.correct, n)

    def of_these(self, name: str) -> Estimate:
        """Return a score's mean with the interval for these very problems."""
        return self.sampled.estimate(self.scores[name])

    def result(self) -> dict[str, Any]:
        """Return what a result says of the trial."""
        likely = dict(zip(self.columns, estimates(list(self.columns.values())), strict=True))
        means = {
            name: _both(mean, self.of_these(name) if name in self.scores else None) for name, mean in likely.items()
        }
        every = list(chain.from_iterable(self.by_problem.values()))
        counts = Counter(sample.verdict for sample in every)
        ks = range(1, self.samples + 1)
        return {
            "problems": len(self.by_problem),
            "samples": self.samples,
            "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
            "avg": means["avg"],
            "pass": {str(k): means[f"pass@{k}"] for k in ks},
            "gpass": {
                str(k): {name: means[f"gpass@{k}_{name}"] for name in (*map(str, THRESHOLDS), "mean")}
                for k in _doubling(self.samples)
            },
            "maj": {str(k): means[f"maj@{k}"] for k in ks},
            "tokens": mean_of(self.tokens)._asdict() | {"median": float(median(sample.tokens for sample in every))},
            "truncated": means["truncated"],
            "per_problem": {
                problem: {"correct": correct, "tokens": tokens}
                for problem, correct, tokens in zip(self.by_problem, self.correct, self.tokens, strict=True)
            },
        }


@cache
def _score_tables(n: int) -> dict[str, list[float]]:
    counts = range(n + 1)
    tables = {"avg": [c / n for c in counts]}
    for k in range(1, n + 1):
        tables[f"pass@{k}"] = [pass_at_k(c, n, k) for c in counts]
    for k in _doubling(n):
        for threshold in THRESHOLDS:
            tables[f"gpass@{k}_{threshold}"] = [g_pass_at_k(c, n, k, threshold) for c in counts]
        tables[f"gpass@{k}_mean"] = [mg_pass_at_k(c, n, k) for c in counts]
    return tables


def _doubling(n: int) -> list[int]:
    """Return 2, 4, …, and n; for k = 1 all are Avg but mG-Pass, whose sum has no term."""
    return [*(1 << power for power in range(1, (n - 1).bit_length())), n] if n > 1 else []


def _both(likely: Estimate, these: Estimate | None) -> dict[str, Any]:
    """Return the interval for problems like these, and under `these` the one for these problems, if it is known."""
    return likely._asdict() | ({} if these is None else {"these": {"low": these.low, "high": these.high}})


def _differences(
    own: Mapping[str, Measured], first: Mapping[str, Measured], shared: Sequence[str]
) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """Yield the differences on each benchmark by its name, then under None their average over the shared ones.

    `p` is of the difference of avg.
    """
    gaps = {name: _gaps(own[name].columns["avg"], first[name].columns["avg"]) for name in own if name in first}
    these = {name: own[name].sampled.minus(first[name].sampled, own[name].scores["avg"]) for name in gaps}
    for name, gap in gaps.items():
        n = own[name].samples
        row: dict[str, Any] = {"avg": _both(gap_estimate(gap), these[name])}
        for short, measure in (("pass", f"pass@{n}"), ("maj", f"maj@{n}")):
            row[short] = gap_estimate(_gaps(own[name].columns[measure], first[name].columns[measure]))._asdict()
        row["tokens"] = mean_of(_gaps(own[name].tokens, first[name].tokens))._asdict()
        yield name, row | {"p": p_value(partial(gap_estimate, gap))}
    if len(shared) > 1:

        def average(level: float) -> Estimate:
            return macro_average([gap_estimate(gaps[name], level) for name in shared])

        both = _both(average(LEVEL), macro_average([these[name] for name in shared]))
        yield None, {"avg": both, "p": p_value(average)}


def _gaps(own: Sequence[float], first: Sequence[float]) -> list[float]:
    return [value - other for value, other in zip(own, first, strict=True)]


def table(evaluation: Mapping[str, Any], *, these: bool = False) -> str:
    """Return the results as a Markdown table, in per cent with 95 % intervals.

    `these`: intervals are for these problems where they are known, else for problems like these.
    """
    results = evaluation["results"]
    if not results:
        return ""
    several_budgets = len({result["budget"] for result in results}) > 1
    gaps = {(d["target"], d["benchmark"], d["budget"]): d for d in evaluation["differences"]}
    samples, first = results[0]["samples"], results[0]["target"]

    def beginning(result: Mapping[str, Any], benchmark: str | None) -> dict[str, str]:
        row = {"benchmark": benchmark or "average"}
        row |= {"budget": f"{result['budget']:,}"} if several_budgets else {}
        row |= {"target": result["target"], f"Avg@{samples}": _points(result["avg"], these=these)}
        if gaps:
            gap = gaps.get((result["target"], benchmark, result["budget"]))
            row[f"against {first}"] = _points(gap["avg"], these=these, sign=True) if gap else ""
            row["p"] = _p(gap.get("p_holm")) if gap else ""
        return row

    rows = []
    for result in results:
        row = beginning(result, result["benchmark"])
        if samples > 1:
            row |= {f"Pass@{samples}": _points(result["pass"][str(samples)], these=these)}
            row |= {f"Maj@{samples}": _points(result["maj"][str(samples)], these=these)}
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
    return markdown(header, [[row.get(name, "") for name in header] for row in rows])


def notes(evaluation: Mapping[str, Any], *, these: bool = False) -> list[str]:
    """Say what the table's intervals answer, and what several comparisons at once do to its p."""
    results = evaluation["results"]
    if not results:
        return []
    like = "for problems like these: what other problems of the same kind would give"
    sentences = [f"In brackets: 95 % intervals {like}."]
    if these:
        majority = f" Maj@{results[0]['samples']}: {like}." if results[0]["samples"] > 1 else ""
        sentences = [
            "In brackets: 95 % intervals for these problems alone: what other samples of them would give." + majority
        ]
        if results[0]["samples"] == 1:
            sentences.append("With one sample a problem they are upper bounds; 2 or more measure the sampling noise.")
    if comparisons := len(evaluation["differences"]):
        several = (
            f"Holm's correction for the {comparisons} comparisons of this table" if comparisons > 1 else "one test"
        )
        sentences.append(f"p: of no difference, problems like these, with {several}.")
    return sentences


def _points(value: Mapping[str, Any], *, these: bool, sign: bool = False) -> str:
    """Return percentage points: mean [low, high]."""
    bounds = value.get("these", value) if these else value
    return with_interval(map(per_cent, (value["mean"], bounds["low"], bounds["high"])), sign=sign)


def _p(value: float | None) -> str:
    return "" if value is None else "< 0.001" if value < 0.001 else fixed(value, 3)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, in columns of one width."""
    rows = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    lines = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in (header, *rows)]
    lines.insert(1, ["-" * width for width in widths])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
