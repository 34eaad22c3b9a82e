"""The figures that runs support: data in, data out; `charts` draws them.

Every function takes runs and gives the figures for which at least one of them has points.
"""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from opasd.analysis.curves import SMOOTHING, Point, against_total, cumulative, ema
from opasd.analysis.markers import MARKERS, Counted, change_from, density_by, density_by_marker
from opasd.analysis.spending import PARTS, pareto_front
from opasd.report.folders import ROLLOUT, Interval, Result, Run, same_folder
from opasd.report.text import no_formula
from opasd.rounding import fixed, per_cent

Kind = Literal["line", "bar", "scatter"]
STDERR = "stderr"
"""The standard error of a validation's Avg@k."""


@dataclass(frozen=True)
class Series:
    """Points of one colour. `low` and `high` are a band around a line or the whiskers of a bar."""

    name: str
    run: int
    """Decides the colour: one run has one colour everywhere."""
    points: Sequence[Point]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    faint: bool = False
    """Raw values behind a smoothed curve."""
    sizes: Sequence[float] = ()
    """Areas of a scatter's bubbles."""
    marks: bool = False
    """Points are few and each is shown."""


@dataclass(frozen=True)
class Figure:
    """One picture's data."""

    id: str
    title: str
    kind: Kind
    x_label: str
    y_label: str
    series: Sequence[Series]
    caption: str = ""
    categories: Sequence[str] = field(default_factory=tuple)
    """Names of a bar chart's groups: x is the number of the group."""
    from_zero: bool = False
    percent: bool = False
    """Values are shares and shown as per cent."""


Group = tuple[str, str, list[Figure]]
"""Heading, what it shows, figures."""


def to_csv(figure: Figure) -> str:
    """The figure's data, one row for each point."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    has_band = any(series.low for series in figure.series)
    has_size = any(series.sizes for series in figure.series)
    writer.writerow(
        [
            "series",
            no_formula(figure.x_label),
            no_formula(figure.y_label),
            *(["low", "high"] if has_band else []),
            *(["size"] if has_size else []),
        ]
    )
    for series in figure.series:
        for place, (x, y) in enumerate(series.points):
            name = no_formula(figure.categories[int(x)]) if figure.categories else _exact(x)
            band = [series.low[place], series.high[place]] if series.low else ["", ""]
            sizes = [series.sizes[place] if series.sizes else ""] if has_size else []
            writer.writerow(
                [
                    no_formula(series.name) + (" (raw)" if series.faint else ""),
                    name,
                    repr(y),
                    *(band if has_band else []),
                    *sizes,
                ]
            )
    return out.getvalue()


def _exact(x: float) -> str:
    return f"{x:.0f}" if float(x).is_integer() else repr(x)


def all_figures(runs: Sequence[Run]) -> list[Group]:
    """Every group of figures; one for which there is no data is empty."""
    return [
        ("Training dynamics", "What the student's own rollouts looked like, step by step.", dynamics(runs)),
        (
            "Validation",
            "Held-out problems answered during training; the same problems and seeds each time.",
            validation(runs),
        ),
        (
            "Evaluation",
            "Benchmarks answered after training, several samples a problem; bands are 95 % intervals over problems.",
            evaluation(runs),
        ),
        (
            "Attention",
            "How far the student's attention is from the teacher's, projected onto what the student sees.",
            attention(runs),
        ),
        ("Cost", "What training took, and what it bought.", cost(runs)),
        (
            "Epistemic markers",
            (
                f"Ten words of uncertainty and re-examination ({', '.join(MARKERS)}), whole words, per 1,000 response "
                "tokens: how a model talks, not what it knows."
            ),
            markers(runs),
        ),
    ]


def dynamics(runs: Sequence[Run]) -> list[Figure]:
    """Rollout accuracy, response length and what else is said of rollouts and losses."""
    return _present(
        _curves(
            runs, "rollout-accuracy", "Rollout accuracy", "rollout/accuracy", "accuracy", smooth=True, percent=True,
            caption=f"Share of a step's graded rollouts that are right; bold: moving average ({SMOOTHING:g}).",
        ),
        _curves(
            runs, "response-length", "Response length", "rollout/length_mean", "tokens", smooth=True, from_zero=True,
            caption=f"Mean tokens of a rollout; bold: moving average ({SMOOTHING:g}).",
        ),
        _curves(
            runs, "truncated", "Truncated rollouts", "rollout/truncated", "share", percent=True, from_zero=True,
            caption="Rollouts that reached the token limit.", unless_zero=True,
        ),
        _curves(
            runs, "leaks", "Rollouts that speak of the teacher's context", "rollout/leaks", "share", percent=True,
            from_zero=True, caption="With a phrase of the teacher's wording that the student is not told.",
            unless_zero=True,
        ),
        _curves(
            runs, "token-divergence", "Token divergence", "token/divergence", "nats", smooth=True, from_zero=True,
            caption="Between the teacher's and the student's next-token distributions, before clipping.",
        ),
        _curves(
            runs, "gradient-norm", "Gradient norm", "grad_norm", "norm", smooth=True, from_zero=True,
            caption="Before clipping.",
        ),
    )  # fmt: skip


def validation(runs: Sequence[Run]) -> list[Figure]:
    """Every measure of every validation set, and accuracy against the tokens it took."""
    figures = []
    sets = dict.fromkeys(name for run in runs for name in run.validation)
    for name in sets:
        for measure in telling_measures(runs, name):
            series = [
                Series(run.name, number, points, *_band(run.validation[name], measure), marks=True)
                for number, run in enumerate(runs)
                if (points := run.validation.get(name, {}).get(measure))
            ]
            title, label, share = _measure_words(measure)
            caption = "Bands: 1.96 standard errors over problems." if any(one.low for one in series) else ""
            if "@" not in measure and all(y == 0 for one in series for _, y in one.points):
                continue
            figures.append(
                Figure(
                    f"validation-{name}-{measure}", f"{title} on {name}", "line", "step", label, series,
                    caption, percent=share, from_zero=not share,
                )
            )  # fmt: skip
            if measure.startswith("avg@"):
                efficient = [
                    Series(run.name, number, against_total(run.curve("tokens/generated"), points), marks=True)
                    for number, run in enumerate(runs)
                    if (points := run.validation.get(name, {}).get(measure)) and run.curve("tokens/generated")
                ]
                if efficient:
                    figures.append(
                        Figure(
                            f"token-efficiency-{name}", f"Token-learning efficiency on {name}", "line",
                            "response tokens generated in training", label, efficient, percent=True,
                            caption=f"{title} against the tokens that rollouts had generated by then.",
                        )
                    )  # fmt: skip
        figures += _present(_last_by_k(runs, name))
    return figures


def _band(measures: Mapping[str, list[Point]], measure: str) -> tuple[list[float], list[float]]:
    """Around Avg@k, where each of its points has a standard error."""
    errors = dict(measures.get(STDERR, ()))
    points = measures[measure]
    if not measure.startswith("avg@") or not all(step in errors for step, _ in points):
        return [], []
    reach = [1.96 * errors[step] for step, _ in points]
    pairs = [(max(0.0, y - one), min(1.0, y + one)) for (_, y), one in zip(points, reach, strict=True)]
    return [low for low, _ in pairs], [high for _, high in pairs]


def telling_measures(runs: Sequence[Run], name: str) -> list[str]:
    """A validation set's measures in order; of Pass@k the first and each run's last, for those between say little."""
    found: dict[str, None] = {}
    for run in runs:
        measures = run.validation.get(name, {})
        most = max(_passes(measures), default=0)
        found |= dict.fromkeys(m for m in measures if m != STDERR and _k(m) in (None, 1, most))
    return sorted(found, key=_measure_order)


def _last_by_k(runs: Sequence[Run], name: str) -> Figure | None:
    """Pass@k by k at each run's last validation."""
    passes = {number: _passes(run.validation.get(name, {})) for number, run in enumerate(runs)}
    series = [
        Series(
            runs[number].name, number, [(float(k), points[-1][1]) for k, points in sorted(found.items())], marks=True
        )
        for number, found in passes.items()
        if len(found) > 2
    ]
    if not series:
        return None
    return Figure(
        f"validation-{name}-pass-by-k", f"Pass@k on {name} by k", "line", "k", "Pass@k", series,
        "At the last validation of each run.", percent=True,
    )  # fmt: skip


def _passes(measures: Mapping[str, list[Point]]) -> dict[int, list[Point]]:
    return {k: points for measure, points in measures.items() if (k := _k(measure)) is not None}


def _k(measure: str) -> int | None:
    """The k of a Pass@k; None for another measure."""
    name, _, count = measure.partition("@")
    return int(count) if name == "pass" and count.isascii() and count.isdigit() and len(count) < 9 else None


def evaluation(runs: Sequence[Run]) -> list[Figure]:
    """Pass@k by k, accuracy by budget, and Pass@1 and Pass@n of a run's checkpoints by step."""
    figures = []
    for name in dict.fromkeys(result.benchmark for run in runs for result in run.results):
        at_most = {number: found for number, run in enumerate(runs) if (found := _largest(run, name)) is not None}
        by_k = [
            _banded(runs[number].name, number, [(float(k), value) for k, value in sorted(found.passed.items())])
            for number, found in at_most.items()
            if len(found.passed) > 1
        ]
        if by_k:
            figures.append(
                Figure(
                    f"pass-at-k-{name}", f"Pass@k on {name}", "line", "k", "Pass@k", by_k, percent=True,
                    caption="The share of problems with a right answer among k samples, over all choices of k.",
                )
            )  # fmt: skip
        budgets = {
            number: sorted((result.budget, result.avg) for result in run.results if result.benchmark == name)
            for number, run in enumerate(runs)
        }
        by_budget = [
            _banded(runs[number].name, number, [(float(budget), value) for budget, value in found])
            for number, found in budgets.items()
            if len(found) > 1
        ]
        if by_budget:
            figures.append(
                Figure(
                    f"budget-{name}", f"Accuracy by generation budget on {name}", "line", "tokens at most", "Avg@n",
                    by_budget, percent=True,
                )
            )  # fmt: skip
        figures += _checkpoints(runs, name, at_most)
    return figures


def _checkpoints(runs: Sequence[Run], name: str, at_most: dict[int, Result]) -> list[Figure]:
    """Evaluated checkpoints of one run as a curve over its steps."""
    groups: dict[str, list[tuple[int, Result]]] = {}
    colours: dict[str, int] = {}
    for number, found in at_most.items():
        folder, _, checkpoint = runs[number].origin.rpartition("/")
        step = checkpoint.removeprefix("checkpoint-")
        if folder and checkpoint != step and step.isdigit():
            groups.setdefault(folder, []).append((int(step), found))
            shown = (place for place, run in enumerate(runs) if same_folder(folder, run.path))
            colours.setdefault(folder, next(shown, number))
    figures = []
    most = max((found.samples for several in groups.values() for _, found in several), default=0)
    for k in sorted({1, most} - {0}):
        series = [
            _banded(folder.rpartition("/")[2], colours[folder], [
                (float(step), found.passed[k]) for step, found in sorted(several, key=lambda one: one[0])
                if k in found.passed])
            for folder, several in groups.items()
            if len(several) > 1
        ]  # fmt: skip
        if any(one.points for one in series):
            figures.append(
                Figure(f"pass-{k}-dynamics-{name}", f"Pass@{k} on {name} over training", "line", "step", f"Pass@{k}",
                       series, percent=True)
            )  # fmt: skip
    return figures


def _largest(run: Run, name: str) -> Result | None:
    found = [result for result in run.results if result.benchmark == name]
    return max(found, key=lambda result: result.budget) if found else None


def _banded(name: str, run: int, points: Sequence[tuple[float, Interval]]) -> Series:
    return Series(
        name, run, [(x, mean) for x, (mean, _, _) in points], [low for _, (_, low, _) in points],
        [high for _, (_, _, high) in points], marks=True,
    )  # fmt: skip


def attention(runs: Sequence[Run]) -> list[Figure]:
    """The alignment curve, the solution's share of the teacher's attention and the two entropies."""
    return _present(
        _curves(
            runs, "attention-alignment", "Attention alignment", "attention/divergence", "divergence", smooth=True,
            from_zero=True, caption="Between the projected attention of the teacher and the student's, on fresh "
            f"rollouts each step; bold: moving average ({SMOOTHING:g}).",
        ),
        _curves(
            runs, "solution-mass", "Teacher's attention on the solution (ρ)", "attention/solution_mass", "ρ",
            smooth=True, caption="Share of its attention that the teacher pays to what only it can see.",
        ),
        _curves(
            runs, "student-entropy", "Entropy of the student's attention", "attention/student_entropy", "nats",
            smooth=True, caption=f"Over the shared positions; bold: moving average ({SMOOTHING:g}).",
        ),
        _curves(
            runs, "teacher-entropy", "Entropy of the teacher's attention", "attention/teacher_entropy", "nats",
            smooth=True, caption=f"Projected onto the shared positions; bold: moving average ({SMOOTHING:g}).",
        ),
    )  # fmt: skip


def cost(runs: Sequence[Run]) -> list[Figure]:
    """Cumulative tokens, operations and seconds by part, and accuracy against wall clock."""
    tokens = [
        Series(run.name, number, cumulative(points))
        for number, run in enumerate(runs)
        if (points := run.curve("tokens/generated"))
    ]
    trained = [(number, run) for number, run in enumerate(runs) if run.spending.eflops_by_part]
    operations = [
        Series(run.name, number, [(float(place), run.spending.eflops_by_part.get(part, 0.0)) for place, part in
                                  enumerate(PARTS)])
        for number, run in trained
    ]  # fmt: skip
    timed = [(number, run) for number, run in enumerate(runs) if run.spending.seconds_by_part]
    seconds = [
        Series(run.name, number, [(float(place), run.spending.seconds_by_part.get(part, 0.0) / 60) for place, part in
                                  enumerate(PARTS)])
        for number, run in timed
    ]  # fmt: skip
    return _present(
        pareto(runs),
        Figure(
            "generated-tokens", "Response tokens generated", "line", "step", "tokens so far", tokens, from_zero=True,
        ) if tokens else None,
        Figure(
            "operations", "Estimated operations by part", "bar", "part", "EFLOPs", operations, categories=PARTS,
            from_zero=True, caption="2 operations a parameter and token, plus attention; a backward through frozen "
            "weights is one forward's worth, through trained ones two.",
        ) if operations else None,
        Figure(
            "seconds", "Wall clock by part", "bar", "part", "minutes", seconds, categories=PARTS, from_zero=True,
        ) if seconds else None,
    )  # fmt: skip


def pareto(runs: Sequence[Run]) -> Figure | None:
    """Final validation accuracy against wall clock; a bubble's area is the number of tokens generated."""
    final = {number: last for number, run in enumerate(runs) if (last := final_accuracy(run)) is not None}
    chosen = {
        number: (run.spending.hours * 60, final[number], run.spending.tokens_generated or 0.0)
        for number, run in enumerate(runs)
        if number in final and run.spending.hours
    }
    if len(chosen) < 2:
        return None
    table = {str(n): {"accuracy": y, "time": x, "tokens": size} for n, (x, y, size) in chosen.items()}
    front = pareto_front(table, ["accuracy"], ["time", "tokens"])
    named = ", ".join(runs[int(n)].name for n in front)
    series = [Series(runs[n].name, n, [(x, y)], sizes=[size]) for n, (x, y, size) in chosen.items()]
    return Figure(
        "pareto", "Accuracy and cost", "scatter", "wall clock of training, minutes", "final validation accuracy",
        series,
        f"A bubble's area is the number of response tokens generated. Not beaten in accuracy, time and tokens at once: "
        f"{named}.", percent=True,
    )  # fmt: skip


def final_accuracy(run: Run) -> float | None:
    """The last Avg@k, averaged over validation sets; None where there is none."""
    last = [
        points[-1][1]
        for measures in run.validation.values()
        for measure, points in measures.items()
        if measure.startswith("avg@")
    ]
    return math.fsum(last) / len(last) if last else None


def markers(runs: Sequence[Run]) -> list[Figure]:
    """Over training, by correctness, by marker, and the change of the mean count from the base."""
    figures = _present(
        _curves(
            runs, "markers", "Markers over training", "rollout/markers_per_1000", "per 1,000 tokens", smooth=True,
            from_zero=True, caption=f"In training rollouts; bold: moving average ({SMOOTHING:g}).",
        ),
    )  # fmt: skip
    dataset, groups = _marker_groups(runs)
    if not groups:
        return figures
    where = "training rollouts" if dataset == ROLLOUT else f"answers to {dataset}"
    verdicts = (True, False)
    correct = [
        Series(runs[n].name, n, [(float(x), by[v]) for x, v in enumerate(verdicts) if v in by])
        for n, counted in groups.items()
        if (by := density_by(counted, lambda found: found.correct))
    ]
    if any(one.points for one in correct):
        figures.append(
            Figure(
                "markers-by-correctness", "Markers by correctness", "bar", "answer", "per 1,000 tokens", correct,
                f"Pooled over {where}.", categories=("right", "wrong"), from_zero=True,
            )
        )  # fmt: skip
    by_marker = {n: density_by_marker(counted) for n, counted in groups.items()}
    used = [name for name in MARKERS if any(found.get(name) for found in by_marker.values())]
    if used:
        series = [
            Series(runs[n].name, n, [(float(x), found.get(name, 0.0)) for x, name in enumerate(used)])
            for n, found in by_marker.items()
        ]
        figures.append(
            Figure(
                "markers-by-word", "Markers by word", "bar", "marker", "per 1,000 tokens", series,
                f"Pooled over {where}; words that nobody used are left out.", categories=used, from_zero=True,
            )
        )  # fmt: skip
    base, *others = groups
    changes = [
        Series(runs[n].name, n, [(0.0, change)])
        for n in others
        if dataset != ROLLOUT and (change := change_from(groups[base], groups[n])) is not None
    ]
    if changes:
        figures.append(
            Figure(
                "markers-change", f"Change of the mean count from {runs[base].name}", "bar", "", "change", changes,
                f"Markers in a response, on average, in {where}.", categories=("all ten",),
                from_zero=True, percent=True,
            )
        )  # fmt: skip
    return figures


def _marker_groups(runs: Sequence[Run]) -> tuple[str, dict[int, list[Counted]]]:
    """The set that most runs have samples of, evaluations first, and each run's samples of it."""
    sets = dict.fromkeys(name for run in runs for name in run.counted)
    if not sets:
        return "", {}
    best = max(sets, key=lambda name: (sum(name in run.counted for run in runs), name != ROLLOUT))
    return best, {number: run.counted[best] for number, run in enumerate(runs) if run.counted.get(best)}


def _curves(
    runs: Sequence[Run],
    name: str,
    title: str,
    measure: str,
    label: str,
    *,
    caption: str = "",
    smooth: bool = False,
    from_zero: bool = False,
    percent: bool = False,
    unless_zero: bool = False,
) -> Figure | None:
    """One curve for each run that has the measure, with the raw values behind it if it is smoothed."""
    found = {number: points for number, run in enumerate(runs) if (points := run.curve(measure))}
    if not found or (unless_zero and not any(y for points in found.values() for _, y in points)):
        return None
    series = []
    for number, points in found.items():
        run = runs[number].name
        if smooth and len(points) > 2:
            series.append(Series(run, number, points, faint=True))
        series.append(Series(run, number, ema(points) if smooth else points, marks=len(points) < 3))
    return Figure(name, title, "line", "step", label, series, caption, from_zero=from_zero, percent=percent)


def _present(*figures: Figure | None) -> list[Figure]:
    return [figure for figure in figures if figure is not None]


def _measure_order(measure: str) -> tuple[int, int, str]:
    order = ("avg@", "pass@", "maj@", "length", "truncated", "markers")
    place = next((place for place, start in enumerate(order) if measure.startswith(start)), len(order))
    return place, _k(measure) or 0, measure


def _measure_words(measure: str) -> tuple[str, str, bool]:
    """Title, axis label, whether it is a share."""
    name, at, count = measure.partition("@")
    if at:
        return f"{name.capitalize()}@{count}", f"{name.capitalize()}@{count}", True
    known: dict[str, tuple[str, str, bool]] = {
        "length_mean": ("Response length", "tokens", False),
        "truncated": ("Truncated answers", "share", True),
        "leaks": ("Answers that speak of the teacher's context", "share", True),
        "markers_per_1000": ("Markers", "per 1,000 tokens", False),
    }
    return known.get(measure, (measure.replace("_", " ").capitalize(), measure, False))


Formatter = Callable[[float], str]


def formatter(figure: Figure) -> Formatter:
    """How the figure's values are shown beside a point."""
    if figure.percent:
        return lambda value: f"{fixed(per_cent(value), 1)} %"
    return lambda value: f"{value:,.4g}"
