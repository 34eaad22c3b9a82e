"""Clips, baselines, seeds, greedy decoding and long rollouts on arithmetic: the planned experiments 3 to 5, so far.

`python results/tables.py planned` prints their tables. Intervals of accuracies and of differences between two runs are
95 % over problems, by the package's formulas; those of a mean over seeds are Student's t.
"""

from collections.abc import Sequence
from statistics import fmean, stdev

import numpy as np
from records import evaluated_models
from summaries import SEEDS, Evaluation, load_evaluation, training_steps
from tables_lookup import over_seeds

from opasd.evaluation.statistics import estimate, gap_estimate
from opasd.rounding import per_cent, with_interval

CLIPS = {
    "pointwise": "pointwise",
    "masked": "pointwise, reversed positions left out",
    "per-token": "per token",
    "none": "none",
}
BASELINES = {"sft": "SFT on the solutions", "rejection": "rejection sampling"}
PAIRS = {"reverse KL, no clip": "", "forward KL, per-token clip": "-per-token"}
LONG = "arithmetic/thousands"
WINDOWS = (slice(3), slice(-8, None))
"""The first steps and the last ones."""


def accuracy(model: Evaluation) -> str:
    return with_interval(map(per_cent, estimate(list(model.shares().values()))))


def clip_rows() -> list[str]:
    """Return the rows of 120 steps by clip: each seed's accuracy, and the mean of all else. Only with all seeds."""
    rows = []
    for run, label in CLIPS.items():
        names = [f"{run}-seed-{seed}" for seed in SEEDS]
        models = [load_evaluation("arithmetic/clips", name) for name in names]
        runs = [training_steps("arithmetic/clips", name) for name in names]
        means = [100 * fmean(model.shares().values()) for model in models]
        turned = trend(runs, "token/reversed", 100, "{:.0f} %") if "token/reversed" in runs[0][0] else "–"
        cells = [label, *(f"{own:.1f}" for own in means), f"{fmean(means):.1f} ± {stdev(means):.1f}"]
        cells += [f"{fmean(model.tokens for model in models):.0f}", f"{fmean(model.cut_off for model in models):.1f} %"]
        cells += [turned, trend(runs, "token/divergence", 1, "{:.3f}")]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def trend(runs: Sequence[Sequence[dict[str, float]]], metric: str, scale: float, form: str) -> str:
    """Return a metric's mean over the first steps and over the last ones, over all runs."""
    ends = (fmean(row[metric] for steps in runs for row in steps[part]) for part in WINDOWS)
    return " → ".join(form.format(scale * end) for end in ends)


def opsd() -> list[Evaluation]:
    return [load_evaluation("arithmetic/objectives", f"opsd-seed-{seed}") for seed in SEEDS]


def baseline_rows() -> list[str]:
    """Return the rows of the base, greedy decoding, OPSD and SFT, with the difference from OPSD."""
    base, greedy = load_evaluation("arithmetic/objectives", "base"), load_evaluation("arithmetic/greedy", "base-greedy")
    cells = [("base", cell([base]), ""), ("base, greedy", cell([greedy]), ""), ("OPSD", cell(opsd()), "")]
    there = evaluated_models("arithmetic/baselines")
    for run, label in BASELINES.items():
        names = [f"{run}-seed-{seed}" for seed in SEEDS]
        if set(names) <= set(there):
            taught = [load_evaluation("arithmetic/baselines", name) for name in names]
            cells.append((label, cell(taught), against(taught, opsd())))
    return [f"| {' | '.join(own)} |".replace("|  |", "| |") for own in cells]


def cell(models: Sequence[Evaluation]) -> str:
    """Return a run's accuracy with its interval, or the mean and standard deviation of several, of two answers each."""
    if len(models) == 1:
        return accuracy(models[0])
    means = [100 * fmean(model.shares(2).values()) for model in models]
    return f"{fmean(means):.1f} ± {stdev(means):.1f}"


def against(models: Sequence[Evaluation], others: Sequence[Evaluation]) -> str:
    """Return the mean difference, over problems: each problem's mean over the seeds first."""
    gains = [model.gains(other) for model, other in zip(models, others, strict=True)]
    means = [float(np.mean([own[problem] for own in gains])) for problem in gains[0]]
    return with_interval(map(per_cent, gap_estimate(means)), sign=True)


def pairs(suffix: str) -> dict[int, tuple[Evaluation, Evaluation]]:
    """Return OPASD and OPSD by seed, of the seeds that have both; reverse KL has the first experiment's seeds too."""
    found = {}
    for sweep in ("arithmetic/seeds", *(() if suffix else ("arithmetic/objectives",))):
        there = evaluated_models(sweep)
        for seed in (*SEEDS, 2, 3, 4, 5, 6):
            names = [f"{method}{suffix}-seed-{seed}" for method in ("opasd", "opsd")]
            if set(names) <= set(there):
                found[seed] = tuple(load_evaluation(sweep, name) for name in names)
    return found


def seed_rows() -> list[str]:
    """Return the rows of OPASD − OPSD over seeds, by token loss."""
    rows = []
    for label, suffix in PAIRS.items():
        found = pairs(suffix)
        means = [[100 * fmean(model.shares().values()) for model in pair] for pair in found.values()]
        differences = [100 * fmean(first.gains(second).values()) for first, second in found.values()]
        of_seeds = with_interval(over_seeds(differences), sign=True)
        methods = [f"{fmean(own):.1f}" for own in zip(*means, strict=True)]
        cells = [label, str(len(found)), *reversed(methods), of_seeds, against(*zip(*found.values(), strict=True))]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def long_rows() -> list[str]:
    """Return the rows of rollouts of up to 2,048 tokens on 1.5B: answers, then the rollouts of training."""
    rows, base = [], load_evaluation(LONG, "base")
    rows.append(["base", "", accuracy(base), "", "", *lengths(base), "", ""])
    for seed in SEEDS:
        opsd, opasd = (load_evaluation(LONG, f"{method}-seed-{seed}") for method in ("opsd", "opasd"))
        for label, model in {"OPSD": opsd, "OPASD": opasd}.items():
            steps = training_steps(LONG, f"{label.lower()}-seed-{seed}")
            over = against([opasd], [opsd]) if model is opasd else ""
            cells = [label, str(seed), accuracy(model), against([model], [base]), over]
            cells += [*lengths(model), trend([steps], "rollout/length_mean", 1, "{:.0f}")]
            rows.append([*cells, f"{max(row['rollout/length_max'] for row in steps):,.0f}"])
    return [f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") for cells in rows]


def lengths(model: Evaluation) -> list[str]:
    """Return the mean number of an answer's tokens, and that of the longest."""
    return [f"{model.tokens:.0f}", f"{max(row['tokens'] for row in model.rows):,}"]


def long_difference() -> str:
    """Return OPASD − OPSD of the long rollouts: over seeds, then over problems."""
    pairs = [[load_evaluation(LONG, f"{method}-seed-{seed}") for method in ("opasd", "opsd")] for seed in SEEDS]
    own = [100 * fmean(opasd.gains(opsd).values()) for opasd, opsd in pairs]
    return f"{with_interval(over_seeds(own), sign=True)} over seeds, {against(*zip(*pairs, strict=True))} over problems"


def print_planned() -> None:
    for table in (clip_rows(), baseline_rows(), seed_rows(), long_rows()):
        print("\n".join(table), end="\n\n")
    print(f"long rollouts, OPASD − OPSD: {long_difference()}")
