"""The figures on GSM8K; `python results/tables.py gsm8k` prints them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from records import evaluated_models, read_document, read_rows, training_runs
from summaries import (
    SEEDS,
    interval_over_seeds,
    load_evaluation,
    print_sweep,
    training_steps,
    trends,
    with_interval,
)

NAMES = (
    *("opasd", "opsd", "opsd-pointwise", "opsd-per-token", "attention"),
    *("opsd-1e-4", "opsd-pointwise-1e-6", "opsd-per-token-1e-4"),
)
TRENDS = ("rollout/accuracy", "rollout/length_mean", "token/divergence", "attention/divergence")
MODELS = ("0.5b", "1.5b")
OTHERS = {
    "package": "package, another problem's reference",
    "write it down again, last": "write it down again, last, another problem's reference",
}
"""Wordings that were also read with another problem's reference."""

Row = dict[str, Any]
Measure = Callable[[Row], Any]


def print_gsm8k() -> None:
    print_objectives()
    print_training()
    print_validation()
    print_wordings()
    print_larger()
    base = load_evaluation("gsm8k/1.5b", "base")
    print(f"GSM8K, 1.5B, base: {base}")
    print_sweep("gsm8k/1.5b-controls", {"base": base})
    print_pairs()


def print_objectives() -> None:
    base, rest = accuracy("base", "objectives")
    print(f"base {with_interval(base)}; {rest}")
    shares = {name: print_seeds(name, base) for name in NAMES}
    for other in ("opsd", "opsd-1e-4"):
        gains = shares["opasd"] - shares[other]
        print(
            f"opasd - {other} {with_interval(gains.mean(0), digits=2, sign='+')}, over seeds "
            f"{interval_over_seeds(100 * gains.mean(1))}"
        )
    print()


def accuracy(name: str, sweep: str) -> tuple[np.ndarray, str]:
    """Return each problem's share of right answers, and the rest of a row of the table."""
    result = read_document(f"gsm8k/{sweep}/{name}.evaluation/evaluation.json")["results"][0]
    shares = np.array([problem["correct"] / result["samples"] for problem in result["per_problem"].values()])
    verdicts = result["verdicts"]
    boxed = verdicts["correct"] + verdicts["wrong"]
    markers = load_evaluation(f"gsm8k/{sweep}", name).markers_per_1000
    rest = (
        f"Pass@4 {100 * result['pass']['4']['mean']:.1f}, {result['tokens']['mean']:.0f} tokens, "
        f"{100 * result['truncated']['mean']:.1f} % cut off, {verdicts['no_answer']} without a box, right among those "
        f"with one {100 * verdicts['correct'] / boxed:.1f} %, {markers:.2f} markers per 1,000"
    )
    return shares, rest


def print_seeds(name: str, base: np.ndarray) -> np.ndarray:
    """Print the seeds of an objective, and return each seed's shares of right answers."""
    shares = []
    for seed in SEEDS:
        run = f"{name}-seed-{seed}"
        sweeps = ("objectives", "controls", "chosen")
        sweep = next(sweep for sweep in sweeps if run in evaluated_models(f"gsm8k/{sweep}"))
        right, rest = accuracy(run, sweep)
        print(f"{name} {seed} {with_interval(right)}, against base {with_interval(right - base, sign='+')}; {rest}")
        shares.append(right)
    means = [100 * right.mean() for right in shares]
    gain = with_interval(np.mean(shares, 0) - base, sign="+")
    print(f"{name} {np.mean(means):.1f} ± {np.std(means, ddof=1):.1f} over seeds, against base {gain}")
    return np.array(shares)


def print_training() -> None:
    """Print the trends of all runs."""
    for sweep in ("1.5b", "chosen", "controls", "long", "objectives", "rates"):
        for name in training_runs(f"gsm8k/{sweep}"):
            steps = training_steps(f"gsm8k/{sweep}", name)
            print(f"{sweep}, {name}, {len(steps)} steps: {', '.join(trends(steps, TRENDS))}")
    print()


def print_validation() -> None:
    """Print the validation of settings and of learning rates."""
    for sweep in ("rates", "search"):
        for name in training_runs(f"gsm8k/{sweep}"):
            for row in read_rows(f"gsm8k/{sweep}/{name}/metrics.jsonl"):
                for average in ("avg@3", "avg@4"):
                    if f"validation/gsm8k/{average}" in row:
                        measures = (average, "length_mean", "truncated")
                        right, length, cut = (row[f"validation/gsm8k/{measure}"] for measure in measures)
                        cells = f"{100 * right:.1f}, {length:.0f}, {100 * cut:.0f} %"
                        print(f"{sweep}, {name}, step {row['step']}: {cells}")
    print()


def mean_by_problem(rows: list[Row], measure: Measure) -> list[np.ndarray]:
    """Return a measure's mean over each problem's right answers and over its wrong ones.

    Problems without answers of both kinds are left out.
    """
    values: list[dict[int, list[Any]]] = [{}, {}]
    for row in rows:
        values[not row["right"]].setdefault(row["problem"], []).append(measure(row))
    problems = sorted(values[0].keys() & values[1].keys())
    return [np.array([np.mean(kind[problem], 0) for problem in problems]) for kind in values]


def print_wordings() -> None:
    """Print how both roles read right and wrong answers: log p_teacher − log p_student, over tenths of an answer."""
    for model in MODELS:
        rows = read_rows(f"gsm8k/wordings/{model}.jsonl")
        by_wording: dict[str, list[Row]] = {}
        for row in rows:
            by_wording.setdefault(row["wording"], []).append(row)
        for wording, answers in by_wording.items():
            print_wording(f"{model}, {wording}", answers)
        for own, other in OTHERS.items():
            for count in (8, 9, 10):
                gaps = [
                    np.subtract(
                        *mean_by_problem(by_wording[name], lambda row, count=count: sum(row["log_ratio"][:count]))
                    )
                    for name in (own, other)
                ]
                print(
                    f"{model}, {own}: nats between right and wrong in the first {count} tenths {gaps[0].mean():.2f}, "
                    f"with another problem's {gaps[1].mean():.2f}, difference "
                    f"{with_interval(gaps[0] - gaps[1], 1, 2, '+')}"
                )
    print()


def print_wording(title: str, rows: list[Row]) -> None:
    right, wrong = mean_by_problem(rows, lambda row: sum(row["log_ratio"]) / row["tokens"])
    early = mean_by_problem(rows, lambda row: sum(row["log_ratio"][:9]) / row["tokens"])
    attention = mean_by_problem(rows, lambda row: sum(row["attention_divergence"]) / row["tokens"])
    digits = mean_by_problem(rows, lambda row: row["digits_log_ratio"] / max(1, row["digits"]))
    tenths = [values.mean(0) for values in mean_by_problem(rows, lambda row: row["log_ratio"])]
    gap = tenths[0] - tenths[1]
    print(
        f"{title}, {len(right)} problems: right {with_interval(right, 1, 3)}, wrong {with_interval(wrong, 1, 3)}, "
        f"higher in {with_interval(right > wrong, digits=0)} %, without the last tenth in "
        f"{with_interval(early[0] > early[1], digits=0)} %; digits {digits[0].mean():.3f}, {digits[1].mean():.3f}; "
        f"attention divergence {attention[0].mean():.5f}, {attention[1].mean():.5f}, lower in "
        f"{with_interval(attention[0] < attention[1], digits=0)} %; {gap.sum():.1f} nats between right and wrong, "
        f"{100 * gap[-1] / gap.sum():.0f} % of that in the last tenth, {100 * gap[0] / gap.sum():.0f} % in the "
        "first"
    )
    for kind, values in zip(("right", "wrong"), tenths, strict=True):
        print(f"    tenths, {kind}", *(f"{value:.2f}" for value in values))


def print_larger() -> None:
    """Print the 1.5B model on the problems that each evaluation reached, with all four answers."""
    names = ("base", *(f"{name}-seed-1" for name in ("opasd-hint", "opsd-hint", "opasd-answer", "opsd-answer")))
    models = {name.removesuffix("-seed-1"): load_evaluation("gsm8k/1.5b", name) for name in names}
    for name, model in zip(names, models.values(), strict=True):
        print(f"{name}: {model.tokens:.0f} tokens, {model.cut_off:.1f} % cut off")
    base = models.pop("base")
    print(f"1.5B base {with_interval(list(base.shares().values()))}")
    for name, model in models.items():
        shares = list(model.shares().values())
        print(f"{name}, {len(shares)} problems: {with_interval(shares)}, against base {model.minus(base)}")
    for kind in ("hint", "answer"):
        opasd, opsd = models[f"opasd-{kind}"], models[f"opsd-{kind}"]
        problems = opasd.gains(opsd)
        means = [
            f"{100 * np.mean([shares[problem] for problem in problems]):.1f}"
            for shares in (base.shares(), opsd.shares(), opasd.shares())
        ]
        print(f"{kind}: opasd - opsd on {len(problems)} problems {opasd.minus(opsd, digits=2)}")
        print(f"    there, base, opsd and opasd: {', '.join(means)}")
    print()


def print_pairs() -> None:
    """Print how teachers read right and wrong answers, in pairs as `opasd probe` counts them."""
    print("\nGSM8K, pairs")
    measures: dict[str, Measure] = {
        "all": lambda row: sum(row["log_ratio"]) / row["tokens"],
        "before the end": lambda row: sum(row["log_ratio"][:9]) / row["tokens"],
        "attention": lambda row: -sum(row["attention_divergence"]) / row["tokens"],
    }
    for model in MODELS:
        answers: dict[str, dict[int, tuple[list[Row], list[Row]]]] = {}
        for row in read_rows(f"gsm8k/wordings/{model}.jsonl"):
            answers.setdefault(row["wording"], {}).setdefault(row["problem"], ([], []))[not row["right"]].append(row)
        preferences = {
            (wording, name): {
                problem: preference(right, wrong, measure)
                for problem, (right, wrong) in sorted(problems.items())
                if right and wrong
            }
            for wording, problems in answers.items()
            for name, measure in measures.items()
        }
        for (wording, name), shares in preferences.items():
            line = f"{model}, {wording}, {name}: {with_interval(list(shares.values()))}"
            other = preferences.get((f"{wording}, another problem's reference", name), {})
            if common := sorted(shares.keys() & other.keys()):
                gain = with_interval([shares[problem] - other[problem] for problem in common], sign="+")
                line += f", own adds {gain}"
            print(line)


def preference(right: list[Row], wrong: list[Row], measure: Measure) -> float:
    """Return in how many pairs of a right and a wrong answer the measure is higher for the right one."""
    pairs = [(measure(a), measure(b)) for a in right for b in wrong]
    return float(np.mean([(a > b) + (a == b) / 2 for a, b in pairs]))
