"""The tables of experiments 3 to 7 of the embedded model; `python results/tables.py lab` prints them.

Intervals are 95 %, by bootstrap over problems (10,000 draws, seed 0). Differences are paired on the same problems.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from records import evaluated_models, read_document
from summaries import SEEDS, load_evaluation, training_steps

from opasd.data.made.counts import make_puzzles
from opasd.data.made.mistakes import MISTAKES, first_mistake

TRENDS = ("attention/divergence", "attention/solution_mass", "token/divergence")
METHODS = {
    "opasd": "OPASD",
    "opsd-pointwise": "OPSD, pointwise",
    "opsd-per-token": "OPSD, per token",
    "attention": "attention only",
}


MISTAKEN = {"base": "base", "OPSD": "opsd-per-token-seed-1", "OPASD": "opasd-seed-1", "attention": "attention-seed-1"}
"""The evaluations that have texts on record."""


BASELINES = {"sft": "SFT on the solutions", "rejection": "rejection sampling"}


def mistake_rows() -> list[str]:
    """Return how many answers are wrong by which first mistake, in per cent of all."""
    puzzles = {puzzle.id: puzzle for puzzle in make_puzzles("test", 1200, 0)}
    rows = []
    for name, run in MISTAKEN.items():
        answered = load_evaluation("lab/methods", run).rows
        wrong = [row for row in answered if row["verdict"] != "correct"]
        kinds = Counter(first_mistake(puzzles[row["problem"]], row["text"]) or "other" for row in wrong)
        shares = (f"{100 * kinds[kind] / len(answered):.1f}" for kind in MISTAKES)
        rows.append(f"| {name} | {100 - 100 * len(wrong) / len(answered):.1f} | {' | '.join(shares)} |")
    return rows


def baseline_rows() -> list[str]:
    """Return supervised training and rejection sampling beside OPSD, each with 40 steps and three seeds."""
    base, opsd = answers("methods", "base")[0], correct_by_seed("methods", "opsd-per-token")
    runs = {label: correct_by_seed("baselines", name) for name, label in BASELINES.items()} | {"OPSD, per token": opsd}
    rows = []
    for label, right in runs.items():
        cells = [label, mean_and_deviation(right), interval(np.mean(right, 0) - base, signed=True)]
        cells.append("" if right is opsd else interval(np.mean(right, 0) - np.mean(opsd, 0), signed=True))
        rows.append(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("-", "−"))
    return rows


def print_lab() -> None:
    print("\n".join(mistake_rows()), "\n")
    print("\n".join(baseline_rows()), "\n")
    base, tokens = answers("methods", "base")
    print(f"base {interval(base)}, {tokens.mean():.1f} tokens, {markers('methods', 'base'):.2f} markers per 1,000\n")
    methods = {(method, seed): answers("methods", f"{method}-seed-{seed}") for method in METHODS for seed in SEEDS}
    right = {run: correct for run, (correct, _) in methods.items()}
    for (method, seed), (correct, lengths) in methods.items():
        cells = [METHODS[method], str(seed), interval(correct), interval(correct - base, signed=True)]
        cells += [f"{lengths.mean():.1f} / {lengths.max():.0f}", f"{markers('methods', f'{method}-seed-{seed}'):.2f}"]
        print_row(cells)
    print()
    print_methods(right, base)
    print_lambda(right)
    print_changes(right)
    print_moving(right)
    print_answer(right, base)
    print_early(base)


def answers(sweep: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each problem was answered right, and the tokens of each answer."""
    results = read_document(f"lab/{sweep}/{name}.evaluation/evaluation.json")["results"]
    problems = [results[0]["per_problem"][problem] for problem in sorted(results[0]["per_problem"])]
    return (
        np.array([problem["correct"] for problem in problems], float),
        np.array([problem["tokens"] for problem in problems]),
    )


def correct_by_seed(sweep: str, name: str) -> list[np.ndarray]:
    return [answers(sweep, f"{name}-seed-{seed}")[0] for seed in SEEDS]


def markers(sweep: str, name: str) -> float:
    return load_evaluation(f"lab/{sweep}", name).markers_per_1000


def trend(sweep: str, names: Sequence[str], metric: str, form: str = "{:.3f}") -> str:
    """Return a metric's mean over runs in the first step and in the last five."""
    runs = [training_steps(f"lab/{sweep}", name) for name in names]
    if metric not in runs[0][0]:
        return ""
    first = np.mean([run[0][metric] for run in runs])
    last = np.mean([row[metric] for run in runs for row in run[-5:]])
    return f"{form.format(first)} → {form.format(last)}"


def interval(values: np.ndarray, signed: bool = False) -> str:
    draws = np.random.default_rng(0).integers(0, len(values), (10_000, len(values)))
    low, high = np.percentile(values[draws].mean(1), [2.5, 97.5])
    form = "{:+.1f}" if signed else "{:.1f}"
    return "{} [{}, {}]".format(*(form.format(100 * value) for value in (values.mean(), low, high)))


def mean_and_deviation(runs: Sequence[np.ndarray], form: str = "{:.1f}") -> str:
    """Return the mean of the runs' accuracies and their standard deviation."""
    values = [100 * run.mean() for run in runs]
    return f"{form.format(np.mean(values))} ± {np.std(values, ddof=1):.1f}"


def print_row(cells: Sequence[str]) -> None:
    print("| " + " | ".join(cells) + " |")


def print_methods(right: dict[tuple[str, int], np.ndarray], base: np.ndarray) -> None:
    """Print the objectives over seeds, and OPASD's differences to the others."""
    for method, label in METHODS.items():
        runs = [right[method, seed] for seed in SEEDS]
        names = [f"{method}-seed-{seed}" for seed in SEEDS]
        cells = [label, mean_and_deviation(runs), interval(np.mean(runs, 0) - base, signed=True)]
        print_row(cells + [trend("methods", names, metric) for metric in TRENDS])
    print()
    for method in list(METHODS)[1:]:
        gains = [right["opasd", seed] - right[method, seed] for seed in SEEDS]
        cells = [f"OPASD - {METHODS[method]}", *(interval(gain, signed=True) for gain in gains)]
        print_row([*cells, mean_and_deviation(gains, "{:+.1f}")])
    print()


def print_lambda(right: dict[tuple[str, int], np.ndarray]) -> None:
    """Print the weights of the attention loss."""
    without = right["opsd-per-token", 42]
    runs = {weight: ("lambda", f"attention_weight-{weight}") for weight in ("0.02", "0.1", "0.25")}
    runs["0.5"] = ("methods", "opasd-seed-42")
    print(f"| 0 | {interval(without)} | | |")
    for weight, (sweep, name) in runs.items():
        correct = answers(sweep, name)[0]
        cells = [weight, interval(correct), interval(correct - without, signed=True)]
        print_row([*cells, trend(sweep, [name], "attention/divergence")])
    print()


def print_changes(right: dict[tuple[str, int], np.ndarray]) -> None:
    """Print each changed run beside OPASD and OPSD of its seed."""
    for sweep in ("why", "support", "combined", "answer", "answer-weights", "moving"):
        for name in evaluated_models(f"lab/{sweep}"):
            correct, lengths = answers(sweep, name)
            seed = int(name.rpartition("-seed-")[2]) if "-seed-" in name else 42
            references = [right[method, seed] for method in ("opasd", "opsd-per-token")]
            cells = [f"{sweep}/{name}", interval(correct)]
            cells += [interval(correct - reference, signed=True) for reference in references]
            cells += [f"{lengths.mean():.1f}", f"{markers(sweep, name):.2f}"]
            metrics = ("attention/divergence", "token/divergence", "rollout/length_mean")
            print_row(cells + [trend(sweep, [name], metric) for metric in metrics])


def print_moving(right: dict[tuple[str, int], np.ndarray]) -> None:
    """Print moving teachers beside frozen ones."""
    for name, frozen in (("opsd", "opsd-per-token"), ("opasd", "opasd")):
        runs = correct_by_seed("moving", f"{name}-ema-0.9")
        gain = np.mean([run - right[frozen, seed] for run, seed in zip(runs, SEEDS, strict=True)], 0)
        print(f"moving average 0.9, {name} {mean_and_deviation(runs)}, - frozen {interval(gain, True)}")
    print()


def print_answer(right: dict[tuple[str, int], np.ndarray], base: np.ndarray) -> None:
    """Print the runs with the final answer alone beside those with the solution."""
    with_solution = {"opasd": "opasd", "opsd": "opsd-per-token", "attention": "attention"}
    runs = {name: correct_by_seed("answer", name) for name in with_solution}
    for name, method in with_solution.items():
        gap = np.mean([run - right[method, seed] for run, seed in zip(runs[name], SEEDS, strict=True)], 0)
        gain = np.mean(runs[name], 0) - base
        print(
            f"answer alone, {name} {mean_and_deviation(runs[name])}, against the same with the "
            f"solution {interval(gap, signed=True)}, against base {interval(gain, signed=True)}"
        )
    without_template = correct_by_seed("answer-weights", "support-problem")
    for name, seeds in (("opasd", runs["opasd"]), ("opasd without template tokens", without_template)):
        gaps = [run - opsd for run, opsd in zip(seeds, runs["opsd"], strict=True)]
        gaps.append(np.mean(gaps, 0))
        print(f"answer alone, {name} - opsd, each seed and all", *(interval(gap, signed=True) for gap in gaps))
    print()


def print_early(base: np.ndarray) -> None:
    """Print the runs of 15 steps."""
    names = ("opsd", "opasd", "lambda-0.1", "opsd-answer", "answer")
    early = {name: correct_by_seed("early", name) for name in names}
    for name, runs in early.items():
        cells = [f"15 steps, {name}", *(f"{100 * run.mean():.1f}" for run in runs)]
        cells += [mean_and_deviation(runs), interval(np.mean(runs, 0) - base, signed=True)]
        opsd = np.mean(early["opsd-answer" if name == "answer" else "opsd"], 0)
        cells += [interval(np.mean(runs, 0) - opsd, signed=True)]
        print_row([*cells, trend("early", [f"{name}-seed-{seed}" for seed in SEEDS], "grad_norm", "{:.4f}")])
