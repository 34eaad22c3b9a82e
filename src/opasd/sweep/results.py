"""What a sweep reached: one row for each run, or for the runs that differ in their seed alone.

A single run's accuracy has a 95 % interval for problems like these. Several seeds have the mean ± sample standard
deviation and the mean's 95 % interval by Student's t. The gain over the base is paired on the same problems with the
untrained model, if its answers were sampled alike.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from opasd.analysis.curves import curve
from opasd.analysis.seeds import Summary, summarise
from opasd.evaluation.comparability import sampling_key
from opasd.evaluation.statistics import Estimate, estimate, gap_estimate, macro_average
from opasd.report.folders import read_result
from opasd.report.run import BenchmarkResult
from opasd.report.summary import tail
from opasd.rounding import per_cent
from opasd.run.records import Records
from opasd.sweep.job import Job
from opasd.sweep.names import folder_name
from opasd.sweep.spec import Sweep, SweepRun

AVERAGE = "average"


@dataclass
class RunResult:
    """The measurements of one run."""

    run: SweepRun
    done: bool
    failed: str = ""
    """The message with which it failed."""
    training: dict[str, float] = field(default_factory=dict)
    scores: dict[tuple[str, int], BenchmarkResult] = field(default_factory=dict)
    """By benchmark and budget."""


def read_run_result(job: Job, metrics: Sequence[str], failed: str = "") -> RunResult:
    """Return what the run's folder and its evaluation's folder have."""
    result = RunResult(job.run, job.next_stage() is None, failed)
    rows = list(Records(job.path / "metrics.jsonl"))
    steps = [row for row in rows if "grad_norm" in row]
    for name in metrics:
        if values := tail(curve(steps, name)):
            result.training[name] = math.fsum(values) / len(values)
    for name in dict.fromkeys(name for row in rows for name in row if name.startswith("validation/") and "@" in name):
        if points := curve(rows, name):
            result.training[name] = points[-1][1]
    try:
        scores = [read_result(row) for row in job.results().get("results", ())]
    except (ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError, OverflowError):
        scores = []
    result.scores = {(score.benchmark, score.budget): score for score in scores}
    return result


@dataclass
class Row:
    """Runs that differ in nothing but the seed, with one budget of tokens."""

    results: list[RunResult]
    budget: int | None
    base: "Row | None" = None
    """The same model untrained, with answers sampled alike."""

    @property
    def run(self) -> SweepRun:
        return self.results[0].run

    @property
    def name(self) -> str:
        return folder_name("+".join(dict.fromkeys(result.run.group for result in self.results)))

    @property
    def label(self) -> str:
        return ", ".join(dict.fromkeys(result.run.label for result in self.results))

    @property
    def seeds(self) -> list[int]:
        return [result.run.config.train.seed for result in self.results if not result.run.evaluate_only]

    def scores(self, benchmarks: Sequence[str]) -> list[list[BenchmarkResult]]:
        """Return, for each seed that has answered all of these benchmarks, its results on them."""
        scores = ([result.scores.get((name, self.budget or 0)) for name in benchmarks] for result in self.results)
        by_seed = [[score for score in own if score is not None] for own in scores]
        return [own for own in by_seed if own and len(own) == len(benchmarks)]

    def accuracy(self, benchmarks: Sequence[str]) -> tuple[Summary, tuple[float, float] | None] | None:
        """Return the average over benchmarks, summarised over seeds in per cent, and the interval for their number."""
        by_seed = self.scores(benchmarks)
        if not by_seed:
            return None
        summary = summarise([per_cent(math.fsum(score.avg.mean for score in own) / len(own)) for own in by_seed])
        if len(by_seed) > 1:
            return summary, summary.interval
        (own,) = by_seed
        interval = (
            own[0].avg if len(own) == 1 else macro_average([estimate(list(score.correct.values())) for score in own])
        )
        return summary, (per_cent(interval.low), per_cent(interval.high))

    def gain(self, benchmarks: Sequence[str]) -> Estimate | None:
        """Return the points gained over the base: the mean over benchmarks, of problems' means over seeds."""
        gaps = []
        for name in benchmarks:
            shares, before = self._shares(name), self.base._shares(name) if self.base else {}
            common = [problem for problem in shares if problem in before]
            if not common:
                return None
            gaps.append([shares[problem] - before[problem] for problem in common])
        return Estimate(*map(per_cent, macro_average(list(map(gap_estimate, gaps))))) if gaps else None

    def _shares(self, benchmark: str) -> dict[str, float]:
        """Return the share of right samples by problem, as the mean over seeds."""
        by_seed = [score.correct for (score,) in self.scores([benchmark])]
        problems = [problem for problem in by_seed[0] if all(problem in own for own in by_seed)] if by_seed else []
        return {problem: math.fsum(own[problem] for own in by_seed) / len(by_seed) for problem in problems}


def rows_of(results: Sequence[RunResult]) -> list[Row]:
    """Return the rows: runs grouped by all but the seed, then by budget."""
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(result.run.identity(with_seed=False), []).append(result)
    rows = []
    for group in groups.values():
        budgets = sorted({budget for result in group for _, budget in result.scores}) or [None]
        rows += [Row(group, budget) for budget in budgets]
    bases = {_comparable(row): row for row in rows if row.run.evaluate_only}
    for row in rows:
        if not row.run.evaluate_only:
            row.base = bases.get(_comparable(row))
    return rows


def _comparable(row: Row) -> str:
    """Return what a run and its base must have in common: the model, and how its answers were sampled."""
    sampled = sampling_key(row.run.profile(), row.run.config.prompts.template_options)
    return repr((row.run.model, row.budget, sampled))


def benchmarks_of(results: Sequence[RunResult]) -> list[str]:
    """Return the names of the benchmarks that some run has answered."""
    return list(dict.fromkeys(name for result in results for name, _ in result.scores))


def with_average(benchmarks: list[str]) -> dict[str, list[str]]:
    """Return each benchmark by its name, and all of them as their average if they are several."""
    alone = {name: [name] for name in benchmarks}
    return alone | {AVERAGE: benchmarks} if len(benchmarks) > 1 else alone


def as_json(sweep: Sweep, results: Sequence[RunResult]) -> dict[str, Any]:
    """Return every number behind the table."""
    benchmarks = benchmarks_of(results)
    return {
        "sweep": sweep.name,
        "description": sweep.description,
        "benchmarks": benchmarks,
        "rows": [_row_json(row, benchmarks) for row in rows_of(results)],
        "runs": [
            {
                "name": result.run.name,
                "recipe": result.run.recipe,
                "settings": dict(result.run.settings),
                "evaluate_only": result.run.evaluate_only,
                "done": result.done,
                "failed": result.failed or None,
                "training": result.training,
                "evaluation": [
                    {"benchmark": benchmark, "budget": budget, "samples": score.samples, "avg": score.avg._asdict()}
                    | {"pass": pass_rate(score), "tokens": score.tokens.mean, "truncated": score.truncated.mean}
                    for (benchmark, budget), score in result.scores.items()
                ],
            }
            for result in results
        ],
    }


def _row_json(row: Row, benchmarks: list[str]) -> dict[str, Any]:
    accuracy = {}
    for name, members in with_average(benchmarks).items():
        if measured := row.accuracy(members):
            summary, interval = measured
            accuracy[name] = {"runs": summary.count, "mean": summary.mean, "sd": summary.sd, "interval": interval}
    gain = row.gain(benchmarks)
    about = {"run": row.name, "label": row.label, "budget": row.budget, "seeds": row.seeds, "accuracy": accuracy}
    return about | {"against_base": None if gain is None else gain._asdict(), "expects": row.run.expects}


def pass_rate(score: BenchmarkResult) -> float:
    """Return Pass@n with all n samples."""
    return score.passed[score.samples].mean
