"""The tables of docs/experiments.md, experiments 3 to 7 of the embedded model, from the records beside this file.

    python results/lab/tables.py

Intervals are 95 %, by bootstrap over problems (10,000 draws, seed 0); differences are paired on the same problems.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from opasd.analysis.markers import count_markers

HERE = Path(__file__).parent
SEEDS = (1, 42, 123)
TRENDS = ("attention/divergence", "attention/solution_mass", "token/divergence")
METHODS = {
    "opasd": "OPASD",
    "opsd-pointwise": "OPSD, pointwise",
    "opsd-per-token": "OPSD, per token",
    "attention": "attention only",
}


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def answers(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Whether each problem was answered right, and the tokens of each answer."""
    whole = json.loads(gzip.decompress((HERE / f"{name}.evaluation" / "evaluation.json.gz").read_bytes()))
    record = whole["results"][0]["per_problem"]
    problems = sorted(record)
    return np.array([record[p]["correct"] for p in problems], float), np.array([record[p]["tokens"] for p in problems])


def markers(name: str) -> float:
    samples = rows_of(HERE / f"{name}.evaluation" / "samples.jsonl.gz")
    found = [row["markers"] if "markers" in row else count_markers(row["text"]) for row in samples]
    return 1000 * sum(sum(counts.values()) for counts in found) / sum(row["tokens"] for row in samples)


def trend(names: list[str], metric: str, form: str = "{:.3f}") -> str:
    """Its mean over runs in the first step and in the last five."""
    runs = [[row for row in rows_of(HERE / name / "metrics.jsonl.gz") if "grad_norm" in row] for name in names]
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


def over(values: list[float], form: str = "{:.1f}") -> str:
    return f"{form.format(np.mean(values))} ± {np.std(values, ddof=1):.1f}"


def main() -> None:
    base, tokens = answers("methods/base")
    print(f"base {interval(base)}, {tokens.mean():.1f} tokens, {markers('methods/base'):.2f} markers per 1,000\n")
    right = {(method, seed): answers(f"methods/{method}-seed-{seed}") for method in METHODS for seed in SEEDS}
    for (method, seed), (found, length) in right.items():
        cells = [METHODS[method], str(seed), interval(found), interval(found - base, signed=True)]
        cells += [f"{length.mean():.1f} / {length.max():.0f}", f"{markers(f'methods/{method}-seed-{seed}'):.2f}"]
        print("| " + " | ".join(cells) + " |")
    print()
    for method, label in METHODS.items():
        runs = [right[method, seed][0] for seed in SEEDS]
        names = [f"methods/{method}-seed-{seed}" for seed in SEEDS]
        cells = [label, over([100 * run.mean() for run in runs]), interval(np.mean(runs, 0) - base, signed=True)]
        cells += [trend(names, metric) for metric in TRENDS]
        print("| " + " | ".join(cells) + " |")
    print()
    for method in list(METHODS)[1:]:
        gaps = [right["opasd", seed][0] - right[method, seed][0] for seed in SEEDS]
        cells = [f"OPASD - {METHODS[method]}", *(interval(gap, signed=True) for gap in gaps)]
        print("| " + " | ".join([*cells, over([100 * gap.mean() for gap in gaps], "{:+.1f}")]) + " |")
    print()
    plain = right["opsd-per-token", 42][0]
    runs = {"0.02": "lambda/attention_weight-0.02", "0.1": "lambda/attention_weight-0.1"}
    runs |= {"0.25": "lambda/attention_weight-0.25", "0.5": "methods/opasd-seed-42"}
    print(f"| 0 | {interval(plain)} | | |")
    for weight, name in runs.items():
        found = answers(name)[0]
        cells = [weight, interval(found), interval(found - plain, signed=True), trend([name], "attention/divergence")]
        print("| " + " | ".join(cells) + " |")
    print()
    for folder in ("why", "support", "combined", "answer", "answer-weights", "moving"):
        for path in sorted((HERE / folder).glob("*.evaluation")):
            found, length = answers(f"{folder}/{path.stem}")
            name = f"{folder}/{path.stem}"
            seed = int(path.stem.rpartition("-seed-")[2]) if "-seed-" in path.stem else 42
            beside = [right[method, seed][0] for method in ("opasd", "opsd-per-token")]
            cells = [name, interval(found), *(interval(found - one, signed=True) for one in beside)]
            cells += [f"{length.mean():.1f}", f"{markers(name):.2f}", trend([name], "attention/divergence")]
            cells += [trend([name], metric) for metric in ("token/divergence", "rollout/length_mean")]
            print("| " + " | ".join(cells) + " |")
    for name, still in (("opsd", "opsd-per-token"), ("opasd", "opasd")):
        runs = [answers(f"moving/{name}-ema-0.9-seed-{seed}")[0] for seed in SEEDS]
        gap = np.mean([mine - right[still, seed][0] for mine, seed in zip(runs, SEEDS, strict=True)], 0)
        print(f"moving average 0.9, {name} {over([100 * run.mean() for run in runs])}, - frozen {interval(gap, True)}")
    print()
    beside = {"opasd": "opasd", "opsd": "opsd-per-token", "attention": "attention"}
    runs = {name: [answers(f"answer/{name}-seed-{seed}")[0] for seed in SEEDS] for name in beside}
    bare = [answers(f"answer-weights/support-problem-seed-{seed}")[0] for seed in SEEDS]
    for name, solved in beside.items():
        gap = np.mean([mine - right[solved, seed][0] for mine, seed in zip(runs[name], SEEDS, strict=True)], 0)
        gain = np.mean(runs[name], 0) - base
        print(
            f"answer alone, {name} {over([100 * run.mean() for run in runs[name]])}, against the same with the "
            f"solution {interval(gap, signed=True)}, against base {interval(gain, signed=True)}"
        )
    for name, found in (("opasd", runs["opasd"]), ("opasd without template tokens", bare)):
        gaps = [mine - theirs for mine, theirs in zip(found, runs["opsd"], strict=True)]
        gaps.append(np.mean(gaps, 0))
        print(f"answer alone, {name} - opsd, each seed and all", *(interval(gap, signed=True) for gap in gaps))
    print()
    early = {
        name: [answers(f"early/{name}-seed-{seed}")[0] for seed in SEEDS]
        for name in ("opsd", "opasd", "lambda-0.1", "opsd-answer", "answer")
    }
    for name, runs in early.items():
        cells = [f"15 steps, {name}", *(f"{100 * run.mean():.1f}" for run in runs)]
        cells += [over([100 * run.mean() for run in runs]), interval(np.mean(runs, 0) - base, signed=True)]
        beside = np.mean(early["opsd-answer" if name == "answer" else "opsd"], 0)
        cells += [interval(np.mean(runs, 0) - beside, signed=True)]
        cells += [trend([f"early/{name}-seed-{seed}" for seed in SEEDS], "grad_norm", "{:.4f}")]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
