"""Summaries of evaluations and training runs, which the tables print.

Intervals are 95 %, by bootstrap over problems (10,000 draws, seed 0), as the package had them when the experiments were
made. Differences are paired: both models have the same problems and the same number of answers to each. Counts of texts
(markers, leaks, forms, equations) are over the answers with a text or its counts in the record, which are the first
ones to each problem.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from reading import SIGNS, count_text
from records import evaluated_models, read_rows, training_runs

SEEDS = (1, 42, 123)
METRICS = (
    "rollout/accuracy",
    "rollout/length_mean",
    "rollout/leaks",
    "rollout/truncated",
    "token/divergence",
    "attention/divergence",
    "attention/solution_mass",
    "grad_norm",
)


def with_interval(values: Any, scale: float = 100, digits: int = 1, sign: str = "") -> str:
    """Return the mean and its interval as a text."""
    values = np.asarray(values, float)
    mean, low, high = (scale * part for part in (values.mean(), *bootstrap(values)))
    return f"{mean:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def bootstrap(values: np.ndarray) -> np.ndarray:
    """Return the bounds of the mean, by a percentile bootstrap."""
    generator, count, means = np.random.default_rng(0), len(values), []
    for _ in range(20):  # 500 draws at a time: problems may be many
        chosen = generator.integers(0, count, (500, count)) + count * np.arange(500)[:, None]
        weights = np.bincount(chosen.ravel(), minlength=500 * count).reshape(500, count)
        means.append(weights @ values / count)
    return np.percentile(np.concatenate(means), [2.5, 97.5])


def interval_over_seeds(means: np.ndarray) -> str:
    """Return the interval of Student's t over the three seeds' means."""
    half = 4.303 * means.std(ddof=1) / len(means) ** 0.5  # the 97.5 % quantile of Student's t with two degrees
    return f"[{means.mean() - half:+.2f}, {means.mean() + half:+.2f}]"


def problem_number(problem: str) -> int:
    """Return a problem's number in its benchmark. Sorted by it, all records draw the same bootstrap samples."""
    return int(re.findall(r"\d+", problem)[-1])


@dataclass(frozen=True)
class Evaluation:
    """The answers of one model."""

    rows: list[dict[str, Any]]

    @cached_property
    def verdicts(self) -> dict[str, list[bool]]:
        """Whether each answer to a problem is right, for the problems that have all their answers."""
        verdicts: dict[str, list[bool]] = {}
        for row in sorted(self.rows, key=lambda row: (problem_number(row["problem"]), row["sample"])):
            verdicts.setdefault(row["problem"], []).append(row["verdict"] == "correct")
        most = max(map(len, verdicts.values()))
        return {problem: answers for problem, answers in verdicts.items() if len(answers) == most}

    @property
    def samples(self) -> int:
        return len(next(iter(self.verdicts.values())))

    @cached_property
    def read_answers(self) -> list[dict[str, Any]]:
        """The answers that have counts of their texts."""
        return [row for row in map(count_text, self.rows) if "markers" in row]

    @property
    def markers_per_1000(self) -> float:
        """Epistemic markers per 1,000 tokens."""
        markers = sum(sum(row["markers"].values()) for row in self.read_answers)
        return 1000 * markers / sum(row["tokens"] for row in self.read_answers)

    @property
    def cut_off(self) -> float:
        """The share of answers that were cut off, in per cent."""
        return 100 * float(np.mean([row["finish_reason"] == "length" for row in self.rows]))

    @property
    def tokens(self) -> float:
        return float(np.mean([row["tokens"] for row in self.rows]))

    def shares(self, samples: int | None = None) -> dict[str, float]:
        """Return which share of each problem's answers is right, of all answers or of the first ones."""
        return {problem: float(np.mean(answers[:samples])) for problem, answers in self.verdicts.items()}

    def gains(self, other: "Evaluation", samples: int | None = None) -> dict[str, float]:
        """Return each problem's share of right answers minus the other model's."""
        count = min(self.samples, other.samples, samples or self.samples)
        shares, other_shares = self.shares(count), other.shares(count)
        return {problem: shares[problem] - other_shares[problem] for problem in shares if problem in other_shares}

    def minus(self, other: "Evaluation", digits: int = 1) -> str:
        """Return the difference to another model as a text."""
        return with_interval(list(self.gains(other).values()), digits=digits, sign="+")

    def __str__(self) -> str:
        unboxed = 100 * np.mean([row["verdict"] == "no_answer" for row in self.rows])
        cells = [
            f"{with_interval(list(self.shares().values()))} of {len(self.verdicts)} problems x {self.samples}",
            f"first two {100 * np.mean(list(self.shares(2).values())):.1f}",
            f"one of several right {100 * np.mean([any(answers) for answers in self.verdicts.values()]):.1f}",
            f"{self.tokens:.0f} tokens",
            f"{self.cut_off:.1f} % cut off",
            f"{unboxed:.1f} % without an answer",
        ]
        if self.read_answers:
            leaks = 100 * sum(row["leak"] for row in self.read_answers) / len(self.read_answers)
            cells += [f"{self.markers_per_1000:.2f} markers per 1,000", f"{leaks:.1f} % leak"]
        return ", ".join(cells)


@cache
def load_evaluation(sweep: str, name: str) -> Evaluation:
    return Evaluation(read_rows(f"{sweep}/{name}.evaluation/samples.jsonl"))


def training_steps(sweep: str, name: str) -> list[dict[str, Any]]:
    """Return the metrics of a run's training steps."""
    return [row for row in read_rows(f"{sweep}/{name}/metrics.jsonl") if "grad_norm" in row]


def trends(steps: list[dict[str, Any]], metrics: Sequence[str] = METRICS) -> list[str]:
    """Return the mean of each metric over the first three steps and over the last eight."""
    cells = []
    for metric in metrics:
        if metric in steps[0]:
            first, last = (np.mean([row[metric] for row in part]) for part in (steps[:3], steps[-8:]))
            cells.append(f"{metric} {first:.4g} → {last:.4g}")
    return cells


def training_summary(sweep: str, name: str) -> str:
    """Return the number of steps, the validations and the trends of the metrics."""
    steps = training_steps(sweep, name)
    cells = [f"{len(steps)} steps"]
    for row in read_rows(f"{sweep}/{name}/metrics.jsonl"):
        for key, value in row.items():
            if match := re.fullmatch(r"(validation/\w+)/avg@\d+", key):
                length = row[f"{match[1]}/length_mean"]
                cells.append(f"validation at step {row['step']} {100 * value:.1f}, {length:.0f} tokens")
    return ", ".join(cells + trends(steps))


def print_sweep(sweep: str, references: dict[str, Evaluation]) -> dict[str, Evaluation]:
    """Print a line for each run of a sweep, with its differences to the references, and return the evaluations."""
    print(f"\n{sweep}")
    evaluations = {name: load_evaluation(sweep, name) for name in evaluated_models(sweep) if name != "base"}
    for name, model in evaluations.items():
        differences = "; ".join(f"- {other} {model.minus(reference)}" for other, reference in references.items())
        print(f"{name}: {model}; {differences}; {training_summary(sweep, name)}")
    for name in training_runs(sweep):
        if name not in evaluations:
            print(f"{name}, not evaluated: {training_summary(sweep, name)}")
    return evaluations


def print_over_seeds(evaluations: dict[str, Evaluation], base: Evaluation, names: Sequence[str]) -> None:
    """Print the mean over the seeds of each run, and its difference to the base."""
    for name in names:
        runs = [evaluations[run] for seed in SEEDS if (run := f"{name}-seed-{seed}") in evaluations]
        means = [100 * np.mean(list(run.shares().values())) for run in runs]
        gains = np.mean([list(run.gains(base).values()) for run in runs], 0)
        print(
            f"{name}: {np.mean(means):.1f} ± {np.std(means, ddof=1):.1f} over {len(runs)} seeds, against base "
            f"{with_interval(gains, sign='+')}"
        )


def print_difference(evaluations: dict[str, Evaluation], name: str, other: str) -> None:
    """Print the difference of two runs for each seed, and their mean with intervals over problems and over seeds."""
    pairs = [(evaluations[f"{name}-seed-{seed}"], evaluations[f"{other}-seed-{seed}"]) for seed in SEEDS]
    for seed, (model, other_model) in zip(SEEDS, pairs, strict=True):
        print(f"{name} - {other}, seed {seed}: {model.minus(other_model)}")
    gains = np.array([list(model.gains(other_model).values()) for model, other_model in pairs])
    means = 100 * gains.mean(1)
    print(
        f"{name} - {other}, mean of the seeds {means.mean():+.2f}: over problems "
        f"{with_interval(gains.mean(0), digits=2, sign='+')}, over seeds {interval_over_seeds(means)}"
    )


def print_texts(sweep: str, base: Evaluation) -> None:
    """Print the forms, the equations, the leaks and the signs of a sweep's answers.

    A line also has the accuracy that the base's accuracy in each form would give.
    """
    print(f"\ntexts of {sweep}")
    base_accuracy: dict[str, float] = {}
    models = {"base": base} | {name: load_evaluation(sweep, name) for name in evaluated_models(sweep) if name != "base"}
    for name, model in models.items():
        rows = [row for row in model.read_answers if "form" in row]
        if rows:
            shares = share_and_accuracy_by_form(rows)
            base_accuracy = base_accuracy or {form: accuracy for form, (_, accuracy) in shares.items()}
            expected = 100 * sum(share * base_accuracy.get(form, 0.0) for form, (share, _) in shares.items())
            print(f"{name}: {'; '.join(text_cells(rows, shares, expected))}")


def share_and_accuracy_by_form(rows: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Return, for each form of an answer, how many answers have it and how many of these are right."""
    verdicts: dict[str, list[bool]] = {}
    for row in rows:
        verdicts.setdefault(row["form"], []).append(row["verdict"] == "correct")
    return {form: (len(right) / len(rows), float(np.mean(right))) for form, right in sorted(verdicts.items())}


def text_cells(rows: list[dict[str, Any]], shares: dict[str, tuple[float, float]], expected: float) -> list[str]:
    """Return the cells of a line of `print_texts`."""
    right = 100 * np.mean([row["verdict"] == "correct" for row in rows])
    true, written = np.sum([row["equations"] for row in rows], 0)
    with_leak, without_leak = (
        100 * np.mean([row["verdict"] == "correct" for row in rows if row["leak"] is leak] or [np.nan])
        for leak in (True, False)
    )
    early_leaks = [row["leak_at"] < 200 for row in rows if row["leak"]]
    endless = ["endless" in row["signs"] for row in rows if row["finish_reason"] == "length"]
    signs = {sign: np.mean([sign in row["signs"] for row in rows]) for sign in SIGNS if sign != "endless"}
    signs["wrong with a false equation, of those not right"] = np.mean(
        [row["equations"][0] < row["equations"][1] for row in rows if row["verdict"] != "correct"]
    )
    return [
        ", ".join(
            f"{form} {100 * share:.1f} % ({100 * accuracy:.0f} % right)" for form, (share, accuracy) in shares.items()
        ),
        f"right {right:.1f}, with the base's accuracy in each form {expected:.1f}",
        f"equations true {100 * true / written:.1f} %",
        *(f"{sign} {100 * share:.1f} %" for sign, share in signs.items()),
        f"right where it leaks {with_leak:.0f}, elsewhere {without_leak:.0f} %",
        f"of the leaks in the first 200 characters {100 * np.mean(early_leaks or [np.nan]):.0f} %",
        f"endless among {len(endless)} cut off {100 * np.mean(endless or [0]):.0f} %",
    ]
