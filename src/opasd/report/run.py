"""A run or an evaluated model, as far as its folders record it. `folders` reads it, tables and figures show it."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from opasd.analysis.curves import Point, curve, number, validation_curves
from opasd.analysis.markers import MarkerCounts, count_markers
from opasd.analysis.spending import Spending, spending
from opasd.evaluation.comparability import Conditions
from opasd.evaluation.statistics import Estimate

State = Literal["finished", "running", "stopped", "evaluated"]
ROLLOUT = "training rollouts"
"""The data set that the samples of training belong to."""


@dataclass(frozen=True, slots=True)
class RecordedSample:
    """One completion, of training or of an evaluation."""

    dataset: str
    step: int | None
    problem: str
    """The problem's name: samples with the same dataset, step, problem and number answer the same question."""
    number: int
    question: str
    answer: str
    """The known answer, if it is on record."""
    text: str
    tokens: int
    correct: bool | None
    truncated: bool
    extracted: str = ""
    """The answer that the grader read off the text, if it is on record."""
    markers: Mapping[str, int] | None = None
    """The count of each marker, for a text that is not on record itself."""

    @property
    def key(self) -> tuple[str, int | None, str, int]:
        return self.dataset, self.step if self.dataset == ROLLOUT else None, self.problem, self.number


@dataclass(frozen=True)
class BenchmarkResult:
    """The scores of an evaluation on one benchmark with one budget of tokens."""

    benchmark: str
    budget: int
    samples: int
    avg: Estimate
    passed: dict[int, Estimate]
    """Pass@k by k."""
    majority: dict[int, Estimate]
    tokens: Estimate
    truncated: Estimate
    correct: dict[str, float]
    """The share of right samples, by problem."""


@dataclass
class Run:
    """One run or evaluated model: one row of a report."""

    name: str
    path: Path
    state: State = "stopped"
    config: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows of metrics.jsonl."""
    samples: list[RecordedSample] = field(default_factory=list)
    """Completions of training and of evaluations."""
    without_text: list[RecordedSample] = field(default_factory=list)
    """Answers with only verdict and length on record: they are counted and not shown."""
    results: list[BenchmarkResult] = field(default_factory=list)
    evaluation: Path | None = None
    """The evaluation's folder, or its copy without the ending; the first of several."""
    conditions: Conditions = field(default_factory=Conditions)
    """How it was evaluated, as far as that is on record."""
    others: list["Run"] = field(default_factory=list)
    """The run's own copies of evaluations that are not comparable with its results: they become rows of their own."""
    origin: str = ""
    """The folder of an evaluated run or adapter; empty for a base model."""
    beside: Path | None = None
    """The folder in which a sweep keeps the run that gives this evaluation's folder its name."""
    attention: list[dict[str, Any]] = field(default_factory=list)
    """Records of the attention viewer."""
    notes: list[str] = field(default_factory=list)
    """Remarks about missing and damaged files."""
    slot: int = 0
    """The number of its method's colour (`methods.find_methods`)."""

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The rows of training steps."""
        return [row for row in self.rows if "grad_norm" in row]

    @cached_property
    def spending(self) -> Spending:
        return spending(self.steps)

    @cached_property
    def validation(self) -> dict[str, dict[str, list[Point]]]:
        return validation_curves(self.rows)

    @cached_property
    def answers(self) -> dict[str, list[RecordedSample]]:
        """The samples of evaluations, by data set."""
        answers: defaultdict[str, list[RecordedSample]] = defaultdict(list)
        for sample in (*self.samples, *self.without_text):
            if sample.dataset != ROLLOUT:
                answers[sample.dataset].append(sample)
        return dict(answers)

    @cached_property
    def markers(self) -> dict[str, list[MarkerCounts]]:
        """The marker counts of the samples, by data set."""
        counts: defaultdict[str, list[MarkerCounts]] = defaultdict(list)
        for sample in self.samples:
            found = count_markers(sample.text)
            counts[sample.dataset].append(_counts(found, sample))
        for sample in self.without_text:
            if sample.markers is not None:
                counts[sample.dataset].append(_counts(sample.markers, sample))
        return dict(counts)

    def curve(self, name: str) -> list[Point]:
        return curve(self.steps, name)

    def result(self, benchmark: str) -> BenchmarkResult | None:
        """Return the result on the benchmark with the largest budget."""
        results = [result for result in self.results if result.benchmark == benchmark]
        return max(results, key=lambda result: result.budget, default=None)

    def budgets(self, dataset: str) -> list[int]:
        """Return the budgets of the results on a data set that have a verdict for each problem, in order."""
        return sorted(result.budget for result in self.results if result.benchmark == dataset and result.correct)

    def shares(self, dataset: str, budget: int | None = None) -> dict[str, float]:
        """Return the share of right samples by problem, of the result with this budget.

        Without a budget, of the result with most tokens; where there is no result, of the graded answers."""
        wanted = budget if budget is not None else max(self.budgets(dataset), default=None)
        for result in self.results:
            if (result.benchmark, result.budget) == (dataset, wanted) and result.correct:
                return result.correct
        if self.budgets(dataset):
            return {}
        verdicts: defaultdict[str, list[bool]] = defaultdict(list)
        for answer in self.answers.get(dataset, ()):
            if answer.correct is not None:
                verdicts[answer.problem].append(answer.correct)
        return {problem: sum(own) / len(own) for problem, own in verdicts.items()}

    def setting(self, *path: str) -> Any:
        """Return a value of the configuration; None if it is not known."""
        value: Any = self.config
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        return value

    @property
    def method(self) -> str:
        """The name of what was trained."""
        token = number(self.setting("objective", "token_weight"))
        weight = self.setting("objective", "attention_weight")
        attention = 1.0 if weight == "balanced" else number(weight)
        if token is None or attention is None:
            return ""
        if token == attention == 0:
            terms = self.setting("objective", "terms") or {}
            named = {"rejection": "rejection sampling", "likelihood": "SFT"}
            return next((label for term, label in named.items() if terms.get(term)), "")
        return "OPSD" if attention == 0 else "attention only" if token == 0 else "OPASD"


def _counts(markers: Mapping[str, int], sample: RecordedSample) -> MarkerCounts:
    return MarkerCounts(markers, sample.tokens, sample.correct, f"{sample.dataset} {sample.problem}")
