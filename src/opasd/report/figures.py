"""The figures that runs support, in groups; a figure is left out if no run has data for it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opasd.analysis.curves import SMOOTHING, cumulative, ema
from opasd.analysis.markers import MARKERS, MarkerCounts, change_from, density, density_by_marker
from opasd.analysis.spending import PARTS, pareto_front
from opasd.report.accuracy import evaluation, validation
from opasd.report.figure import Figure, Series
from opasd.report.run import ROLLOUT, Run


@dataclass(frozen=True)
class FigureGroup:
    """The figures of one section of a report."""

    heading: str
    about: str
    figures: list[Figure]


def all_figures(runs: Sequence[Run]) -> list[FigureGroup]:
    """Return every group of figures; a group without data has no figures."""
    return [
        FigureGroup(
            "Training dynamics",
            "What the student's own rollouts looked like, step by step.",
            training_curves(runs, _DYNAMICS),
        ),
        FigureGroup(
            "Validation",
            "Held-out problems answered during training; the same problems and seeds each time.",
            validation(runs),
        ),
        FigureGroup(
            "Evaluation",
            "Benchmarks answered after training, several samples a problem; bands are 95 % intervals over problems.",
            evaluation(runs),
        ),
        FigureGroup(
            "Attention",
            "How far the student's attention is from the teacher's, projected onto what the student sees.",
            training_curves(runs, _ATTENTION),
        ),
        FigureGroup("Cost", "What training took, and what it bought.", cost(runs)),
        FigureGroup(
            "Epistemic markers",
            f"Ten words of uncertainty and re-examination ({', '.join(MARKERS)}), whole words, per 1,000 response "
            "tokens: how a model talks, not what it knows.",
            [*training_curves(runs, _MARKERS), *markers(runs)],
        ),
    ]


@dataclass(frozen=True)
class _TrainingCurve:
    """A figure of one metric of training by step."""

    id: str
    title: str
    metric: str
    y_label: str
    caption: str
    smooth: bool = True
    """Whether to draw a moving average over the raw values."""
    from_zero: bool = False
    percent: bool = False
    unless_zero: bool = False
    """Whether to leave the figure out if all values are 0."""


_BOLD = f"bold: moving average ({SMOOTHING:g})."
_DYNAMICS = (
    _TrainingCurve(
        "rollout-accuracy", "Rollout accuracy", "rollout/accuracy", "accuracy",
        f"Share of a step's graded rollouts that are right; {_BOLD}", percent=True,
    ),
    _TrainingCurve(
        "response-length", "Response length", "rollout/length_mean", "tokens", f"Mean tokens of a rollout; {_BOLD}",
        from_zero=True,
    ),
    _TrainingCurve(
        "truncated", "Truncated rollouts", "rollout/truncated", "share", "Rollouts that reached the token limit.",
        smooth=False, percent=True, from_zero=True, unless_zero=True,
    ),
    _TrainingCurve(
        "leaks", "Rollouts that speak of the teacher's context", "rollout/leaks", "share",
        "With a phrase that only the teacher's wording has.",
        smooth=False, percent=True, from_zero=True, unless_zero=True,
    ),
    _TrainingCurve(
        "token-divergence", "Token divergence", "token/divergence", "nats",
        "Between the teacher's and the student's next-token distributions, before clipping.", from_zero=True,
    ),
    _TrainingCurve("gradient-norm", "Gradient norm", "grad_norm", "norm", "Before clipping.", from_zero=True),
)  # fmt: skip
_ATTENTION = (
    _TrainingCurve(
        "attention-alignment", "Attention alignment", "attention/divergence", "divergence",
        f"Between the projected attention of the teacher and the student's, on fresh rollouts each step; {_BOLD}",
        from_zero=True,
    ),
    _TrainingCurve(
        "solution-mass", "Teacher's attention on the solution (ρ)", "attention/solution_mass", "ρ",
        "Share of its attention that the teacher pays to what only it can see.",
    ),
    _TrainingCurve(
        "student-entropy", "Entropy of the student's attention", "attention/student_entropy", "nats",
        f"Over the shared positions; {_BOLD}",
    ),
    _TrainingCurve(
        "teacher-entropy", "Entropy of the teacher's attention", "attention/teacher_entropy", "nats",
        f"Projected onto the shared positions; {_BOLD}",
    ),
)  # fmt: skip
_MARKERS = (
    _TrainingCurve(
        "markers", "Markers over training", "rollout/markers_per_1000", "per 1,000 tokens",
        f"In training rollouts; {_BOLD}", from_zero=True,
    ),
)  # fmt: skip


def training_curves(runs: Sequence[Run], curves: Sequence[_TrainingCurve]) -> list[Figure]:
    """Return the figures: one curve for each run that has the metric, and its raw values behind a smoothed one."""
    figures = []
    for curve in curves:
        by_run = {number: points for number, run in enumerate(runs) if (points := run.curve(curve.metric))}
        series = []
        for number, points in by_run.items():
            name = runs[number].name
            if curve.smooth and len(points) > 2:
                series.append(Series(name, number, points, faint=True))
            series.append(Series(name, number, ema(points) if curve.smooth else points, marks=len(points) < 3))
        all_zero = not any(y for points in by_run.values() for _, y in points)
        if series and not (curve.unless_zero and all_zero):
            figures.append(
                Figure(
                    curve.id, curve.title, "line", "step", curve.y_label, series, curve.caption,
                    from_zero=curve.from_zero, percent=curve.percent,
                )
            )  # fmt: skip
    return figures


def cost(runs: Sequence[Run]) -> list[Figure]:
    """Return cumulative tokens, operations and minutes by part, and accuracy against wall clock."""
    tokens = [
        Series(run.name, number, cumulative(points))
        for number, run in enumerate(runs)
        if (points := run.curve("tokens/generated"))
    ]
    operations = {
        number: {part: spent.get(part, 0.0) for part in PARTS}
        for number, run in enumerate(runs)
        if (spent := run.spending.eflops_by_part)
    }
    minutes = {
        number: {part: spent.get(part, 0.0) / 60 for part in PARTS}
        for number, run in enumerate(runs)
        if (spent := run.spending.seconds_by_part)
    }
    figures = [
        *pareto(runs),
        Figure(
            "generated-tokens", "Response tokens generated", "line", "step", "tokens so far", tokens, from_zero=True
        ),
        Figure(
            "operations", "Estimated operations by part", "bar", "part", "EFLOPs", _bars(runs, operations, PARTS),
            "2 operations a parameter and token, plus attention; a backward through frozen weights is one forward's "
            "worth, through trained ones two.", PARTS, from_zero=True,
        ),
        Figure(
            "seconds", "Wall clock by part", "bar", "part", "minutes", _bars(runs, minutes, PARTS), categories=PARTS,
            from_zero=True,
        ),
    ]  # fmt: skip
    return [figure for figure in figures if figure.series]


def pareto(runs: Sequence[Run]) -> list[Figure]:
    """Return the figure of final validation accuracy against wall clock, if there are several such runs."""
    chosen = {
        number: (run.spending.hours * 60, accuracy, run.spending.tokens_generated or 0.0)
        for number, run in enumerate(runs)
        if run.spending.hours and (accuracy := _final_accuracy(run)) is not None
    }
    if len(chosen) < 2:
        return []
    front = pareto_front({str(n): (accuracy, -time, -tokens) for n, (time, accuracy, tokens) in chosen.items()})
    named = ", ".join(runs[int(n)].name for n in front)
    series = [Series(runs[n].name, n, [(x, y)], sizes=[size]) for n, (x, y, size) in chosen.items()]
    caption = (
        "A bubble's area is the number of response tokens generated. Not beaten in accuracy, time and tokens at once: "
        f"{named}."
    )
    return [
        Figure(
            "pareto", "Accuracy and cost", "scatter", "wall clock of training, minutes", "final validation accuracy",
            series, caption, percent=True,
        )
    ]  # fmt: skip


def _final_accuracy(run: Run) -> float | None:
    """Return the last Avg@k, averaged over validation sets."""
    last = [
        points[-1][1]
        for measures in run.validation.values()
        for measure, points in measures.items()
        if measure.startswith("avg@")
    ]
    return math.fsum(last) / len(last) if last else None


def markers(runs: Sequence[Run]) -> list[Figure]:
    """Return the markers by correctness, by word, and the change of the mean count from the first run."""
    dataset, by_run = _marked_dataset(runs)
    if not by_run:
        return []
    where = "training rollouts" if dataset == ROLLOUT else f"answers to {dataset}"
    by_verdict = {
        number: {
            name: share
            for name, correct in (("right", True), ("wrong", False))
            if (share := density(counts for counts in own if counts.correct is correct)) is not None
        }
        for number, own in by_run.items()
        if density(own) is not None
    }
    by_word = {number: density_by_marker(own) for number, own in by_run.items()}
    words = [word for word in MARKERS if any(densities.get(word) for densities in by_word.values())]
    by_word = {number: {word: own.get(word, 0.0) for word in words} for number, own in by_word.items()}
    first, *others = by_run
    changes = [
        Series(runs[n].name, n, [(0.0, change)])
        for n in others
        if dataset != ROLLOUT and (change := change_from(by_run[first], by_run[n])) is not None
    ]
    figures = [
        Figure(
            "markers-by-correctness", "Markers by correctness", "bar", "answer", "per 1,000 tokens",
            _bars(runs, by_verdict, ("right", "wrong")), f"Pooled over {where}.", ("right", "wrong"), from_zero=True,
        ),
        Figure(
            "markers-by-word", "Markers by word", "bar", "marker", "per 1,000 tokens", _bars(runs, by_word, words),
            f"Pooled over {where}; words that nobody used are left out.", words, from_zero=True,
        ),
        Figure(
            "markers-change", f"Change of the mean count from {runs[first].name}", "bar", "", "change", changes,
            f"Markers in a response, on average, in {where}.", ("all ten",), from_zero=True, percent=True,
        ),
    ]  # fmt: skip
    return [figure for figure in figures if any(series.points for series in figure.series)]


def _marked_dataset(runs: Sequence[Run]) -> tuple[str, dict[int, list[MarkerCounts]]]:
    """Return the data set that most runs have samples of, evaluations first, and each run's marker counts on it."""
    datasets = dict.fromkeys(name for run in runs for name in run.markers)
    if not datasets:
        return "", {}
    best = max(datasets, key=lambda name: (sum(name in run.markers for run in runs), name != ROLLOUT))
    return best, {number: run.markers[best] for number, run in enumerate(runs) if run.markers.get(best)}


def _bars(runs: Sequence[Run], values: Mapping[int, Mapping[str, float]], categories: Sequence[str]) -> list[Series]:
    """Return each run's bars, one for each category that it has a value of."""
    return [
        Series(runs[number].name, number, [(float(x), own[name]) for x, name in enumerate(categories) if name in own])
        for number, own in values.items()
    ]
