"""What methods reached: on each benchmark, on average over benchmarks, and against each other on the same problems.

A score's interval is over seeds (Student's t) from three runs on, over problems below that. A difference is paired on
the same problems, each problem's share averaged over a method's runs first.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from opasd.analysis.seeds import summarise
from opasd.evaluation.statistics import Estimate, estimate, gap_estimate, macro_average
from opasd.report.accuracy import capital
from opasd.report.methods import Method
from opasd.report.run import Run
from opasd.report.summary import LAST, evaluated_sets, tail, validated_measures

SEEDS = 3
"""From so many runs on, an interval is over seeds: with two, Student's t would span everything."""
Shares = Mapping[str, float]
"""The share of right answers by problem; a mean without its problems is one problem."""


@dataclass(frozen=True)
class Score:
    """A mean, and its interval if it has one."""

    mean: float
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True)
class Benchmark:
    """One column: what was measured, and each run's shares of it."""

    name: str
    label: str
    shares: Mapping[int, Shares]
    """By the `id` of a run."""
    asked: bool = False
    """Whether it is an evaluation, whose conditions decide what may be compared."""


@dataclass
class Scores:
    """The benchmarks of a page, and the scores of its methods on them."""

    methods: Sequence[Method]
    benchmarks: Sequence[Benchmark]
    notes: list[str]
    of_several: bool = False
    """Whether the page has benchmarks beside these."""

    def shares(self, method: Method, benchmark: Benchmark) -> list[Shares]:
        """Return the shares of each run that was asked as the method's first one was."""
        known = [run for run in method.runs if benchmark.shares.get(id(run))]
        same = [run for run in known if not _reasons(run, known[0], benchmark)]
        return [benchmark.shares[id(run)] for run in same]

    def score(self, method: Method, benchmark: Benchmark) -> Score | None:
        return _score([[own] for own in self.shares(method, benchmark)])

    def average(self, method: Method) -> Score | None:
        """Return the mean over all benchmarks; None if the method lacks one."""
        columns = [self.shares(method, benchmark) for benchmark in self.benchmarks]
        if not columns or not all(columns):
            return None
        if len({len(column) for column in columns}) > 1:  # some seeds lack some benchmarks
            whole = [run for run in method.runs if all(one.shares.get(id(run)) for one in self.benchmarks)]
            columns = [[benchmark.shares[id(run)] for run in whole] for benchmark in self.benchmarks]
        return _score([list(own) for own in zip(*columns, strict=True)])

    def difference(self, method: Method, other: Method, runs: Sequence[Run] | None = None) -> Score | None:
        """Return how much better the method (or some of its runs) is, on the problems that both answered."""
        gaps = []
        for benchmark in self.benchmarks:
            own = [benchmark.shares[id(run)] for run in runs if benchmark.shares.get(id(run))] if runs else None
            first, second = own if runs else self.shares(method, benchmark), self.shares(other, benchmark)
            if not first or not second or self.why_not(method, other, benchmark):
                return None
            mine, theirs = _pooled(first), _pooled(second)
            if not (common := [problem for problem in theirs if problem in mine]):
                return None
            gaps.append([mine[problem] - theirs[problem] for problem in common])
        return _over_problems(gaps, gap_estimate) if gaps else None

    def why_not(self, method: Method, other: Method, benchmark: Benchmark) -> str:
        """Say how the two were asked differently; empty if they are comparable."""
        first = next((run for run in method.runs if benchmark.shares.get(id(run))), None)
        second = next((run for run in other.runs if benchmark.shares.get(id(run))), None)
        return _reasons(first, second, benchmark) if first and second else ""

    @cached_property
    def base(self) -> Method | None:
        """The method that others are compared with: the base model, or else OPSD, or the first with every score."""
        known = [method for method in self.methods if self.average(method) is not None]
        first = self.best_of("OPSD") or next(iter(known), None)
        return next((method for method in known if method.kind == "base"), first)

    @cached_property
    def ranked(self) -> list[Method]:
        """The base first, then the others, the best first, then those that lack a score."""
        means = {method.slot: score.mean if (score := self.average(method)) else -1.0 for method in self.methods}
        others = [method for method in self.methods if method is not self.base]
        return [*([self.base] if self.base else []), *sorted(others, key=lambda method: -means[method.slot])]

    @property
    def best(self) -> Method | None:
        """The method with the highest average."""
        known = [(score.mean, m) for m in self.methods if (score := self.average(m))]
        return max(known, key=lambda pair: pair[0], default=(0, None))[1]

    def comparable(self) -> "Scores":
        """Return the scores on all benchmarks or, if less than half of the methods have all of them, on the one that
        most methods have, and on those others that the same methods have."""
        having = [{m.slot for m in self.methods if self.shares(m, one)} for one in self.benchmarks]
        if len(having) < 2 or 2 * len(set.intersection(*having)) >= len(set.union(*having)):
            return self
        most = max(having, key=len)
        chosen = [one for one, own in zip(self.benchmarks, having, strict=True) if own >= most]
        return Scores(self.methods, chosen, self.notes, of_several=True)

    def best_of(self, kind: str) -> Method | None:
        """Return the method of a kind: the one that is named like it, or else the best."""
        own = [(score.mean, m) for m in self.methods if m.kind == kind and (score := self.average(m))]
        named = next((method for _, method in own if method.name == kind), None)
        return named or max(own, key=lambda pair: pair[0], default=(0, None))[1]


def find_scores(methods: Sequence[Method]) -> Scores:
    """Return the scores on benchmarks; without an evaluation of the last validation, or of the last rollouts.

    Checkpoints are no methods beside the results of trainings: their figures are by step."""
    finished = [method for method in methods if not method.is_checkpoint]
    if any(run.results for method in finished if method.kind != "base" for run in method.runs):
        methods = finished
    runs = [run for method in methods for run in method.runs]
    notes: list[str] = []
    budgets: dict[str, list[str]] = {}
    benchmarks = [_evaluated(methods, name, budgets) for name in evaluated_sets(runs)]
    notes += [f"{', '.join(names)}: {words}" for words, names in budgets.items()]
    if not benchmarks:
        benchmarks = [
            Benchmark(
                f"{name} {capital(measure)}",
                f"{capital(measure)} on {name}, last validation",
                {id(run): {"": points[-1][1]} for run in runs if (points := run.validation.get(name, {}).get(measure))},
            )
            for name, measure in validated_measures(runs)
            if measure.startswith("avg@")
        ]
    if not benchmarks:
        means = {id(run): math.fsum(last) / len(last) for run in runs if (last := tail(run.curve("rollout/accuracy")))}
        label = f"accuracy of rollouts, last {100 * LAST:.0f} % of the steps"
        benchmarks = [Benchmark("rollouts", label, {key: {"": mean} for key, mean in means.items()})] if means else []
    scores = Scores(methods, benchmarks, notes)
    _note_what_is_left_out(scores)
    return scores


def _evaluated(methods: Sequence[Method], name: str, notes: dict[str, list[str]]) -> Benchmark:
    """Return one benchmark at one budget: the largest of those that most methods have. Note the others by what they
    are."""
    runs = [run for method in methods for run in method.runs]
    having: dict[int, set[int]] = {}
    for method in methods:
        for run in method.runs:
            for budget in run.budgets(name):
                having.setdefault(budget, set()).add(method.slot)
    budget = max(having, key=lambda one: (len(having[one]), one), default=None)
    others = sorted(set(having) - {budget})
    if others:
        listed = ", ".join(f"{other:,}" for other in others)
        notes.setdefault(f"up to {budget:,} tokens; other budgets ({listed}) are under Evaluation.", []).append(name)
    samples = {
        result.samples for run in runs for result in run.results if (result.benchmark, result.budget) == (name, budget)
    }
    measure = f"Avg@{next(iter(samples))}" if len(samples) == 1 else "accuracy"
    label = f"{measure} on {name}" + (f", up to {budget:,} tokens" if budget else "")
    return Benchmark(name, label, {id(run): own for run in runs if (own := run.shares(name, budget))}, asked=True)


def _note_what_is_left_out(scores: Scores) -> None:
    without = [m.name for m in scores.methods if not any(scores.shares(m, one) for one in scores.benchmarks)]
    if without and scores.benchmarks:
        scores.notes.append(f"Without a score: {', '.join(without)}.")
    not_evaluated: dict[str, list[str]] = {}
    for benchmark in scores.benchmarks:
        lacking = [
            run.name
            for method in scores.methods
            if any(benchmark.shares.get(id(run)) for run in method.runs)
            for run in method.runs
            if not benchmark.shares.get(id(run))
        ]
        if lacking:
            not_evaluated.setdefault(", ".join(lacking), []).append(benchmark.name)
        apart = {}
        for method in scores.methods:
            known = [run for run in method.runs if benchmark.shares.get(id(run))]
            for run in known:
                if reasons := _reasons(run, known[0], benchmark):
                    apart.setdefault(reasons, []).append(run.name)
        for reasons, names in apart.items():
            scores.notes.append(f"Left out of the mean on {benchmark.name}: {', '.join(names)} ({reasons}).")
        base, against = scores.base, {}
        for method in scores.methods if base else ():
            if base and (reasons := scores.why_not(method, base, benchmark)):
                against.setdefault(reasons, []).append(method.name)
        for reasons, names in against.items():
            scores.notes.append(
                f"Not compared with {base.name if base else ''} on {benchmark.name}, because it was asked differently: "
                f"{', '.join(names)} ({reasons})."
            )
    scores.notes += [
        f"Not evaluated on {', '.join(names)}: {lacking}; means are over the others."
        for lacking, names in not_evaluated.items()
    ]


def _reasons(run: Run, first: Run, benchmark: Benchmark) -> str:
    if not benchmark.asked or run is first:
        return ""
    # The budget of the column is the same for all of them, whatever the largest one is.
    words = run.conditions.differences_from(first.conditions, benchmark.name)
    same_budget = bool(run.budgets(benchmark.name) and first.budgets(benchmark.name))
    return ", ".join(word for word in words if not (same_budget and word.startswith("up to ")))


def _pooled(shares: Sequence[Shares]) -> dict[str, float]:
    """Return the mean over runs for each problem that all of them answered."""
    first, *others = shares
    common = [problem for problem in first if all(problem in own for own in others)]
    return {problem: math.fsum(own[problem] for own in shares) / len(shares) for problem in common}


def _score(runs: Sequence[Sequence[Shares]]) -> Score | None:
    """Return the mean over runs of their mean over benchmarks; `runs` has each run's shares of every benchmark."""
    if not runs:
        return None
    means = [math.fsum(_mean(own) for own in run) / len(run) for run in runs]
    if len(means) >= SEEDS:
        low, high = summarise(means).interval or (None, None)
        return Score(math.fsum(means) / len(means), low and max(low, 0.0), high and min(high, 1.0))
    pooled = [list(_pooled(column).values()) for column in zip(*runs, strict=True)]
    return _over_problems(pooled, estimate) if all(pooled) else Score(math.fsum(means) / len(means))


def _over_problems(columns: Sequence[Sequence[float]], interval: Callable[[Sequence[float]], Estimate]) -> Score:
    if any(len(column) < 2 for column in columns):
        return Score(math.fsum(math.fsum(own) / len(own) for own in columns) / len(columns))
    return Score(*macro_average([interval(column) for column in columns]))


def _mean(shares: Shares) -> float:
    return math.fsum(shares.values()) / len(shares)
