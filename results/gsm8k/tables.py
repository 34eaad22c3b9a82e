"""The figures of docs/experiments.md, "Pretrained models on GSM8K", from the records beside this file.

    python results/gsm8k/tables.py

Intervals are 95 %, by the package's bootstrap over problems; differences are paired on the same problems.
"""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np

from opasd.analysis.markers import count_markers
from opasd.evaluation.statistics import estimate

HERE = Path(__file__).parent
SEEDS = (1, 42, 123)
KINDS = ("right", "wrong")
NAMES = (
    *("opasd", "opsd", "opsd-pointwise", "opsd-per-token", "attention"),
    *("opsd-1e-4", "opsd-pointwise-1e-6", "opsd-per-token-1e-4"),
)
SWEEPS = ("objectives", "controls", "rates", "chosen", "long", "1.5b")


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def shown(values: Any, scale: float = 100, digits: int = 1, sign: str = "") -> str:
    mean, low, high = (scale * part for part in estimate(np.asarray(values, float).tolist()))
    return f"{mean:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def answers(name: str, sweep: str = "objectives") -> tuple[np.ndarray, str]:
    """Each problem's share of right answers, and the rest of a row of the table."""
    folder = HERE / sweep / f"{name}.evaluation"
    result = json.loads(gzip.decompress((folder / "evaluation.json.gz").read_bytes()))["results"][0]
    right = np.array([one["correct"] / result["samples"] for one in result["per_problem"].values()])
    verdicts = result["verdicts"]
    boxed = verdicts["correct"] + verdicts["wrong"]
    rest = (
        f"Pass@4 {100 * result['pass']['4']['mean']:.1f}, {result['tokens']['mean']:.0f} tokens, "
        f"{100 * result['truncated']['mean']:.1f} % cut off, {verdicts['no_answer']} without a box, right among those "
        f"with one {100 * verdicts['correct'] / boxed:.1f} %, {markers(folder):.2f} markers per 1,000"
    )
    return right, rest


def markers(folder: Path) -> float:
    """Epistemic markers per 1,000 tokens of each problem's first answer, whose text is kept, or its counts."""
    rows = [row for row in rows_of(folder / "samples.jsonl.gz") if "text" in row or "markers" in row]
    found = [row["markers"] if "markers" in row else count_markers(row["text"]) for row in rows]
    return 1000 * sum(sum(counts.values()) for counts in found) / sum(row["tokens"] for row in rows)


def objectives() -> None:
    base, rest = answers("base")
    print(f"base {shown(base)}; {rest}")
    found = {name: seeds_of(name, base) for name in NAMES}
    for theirs in ("opsd", "opsd-1e-4"):
        gaps = found["opasd"] - found[theirs]
        means = 100 * gaps.mean(1)
        half = 4.303 * means.std(ddof=1) / len(means) ** 0.5  # the 97.5 % quantile of Student's t with two degrees
        print(
            f"opasd - {theirs} {shown(gaps.mean(0), digits=2, sign='+')}, over seeds "
            f"[{means.mean() - half:+.2f}, {means.mean() + half:+.2f}]"
        )
    print()


def seeds_of(name: str, base: np.ndarray) -> np.ndarray:
    """Each seed's shares of right answers, told on the way."""
    found = []
    for seed in SEEDS:
        run = f"{name}-seed-{seed}"
        right, rest = answers(run, sweep_of(run))
        print(f"{name} {seed} {shown(right)}, against base {shown(right - base, sign='+')}; {rest}")
        found.append(right)
    shares = [100 * right.mean() for right in found]
    gain = shown(np.mean(found, 0) - base, sign="+")
    print(f"{name} {np.mean(shares):.1f} ± {np.std(shares, ddof=1):.1f} over seeds, against base {gain}")
    return np.array(found)


def sweep_of(run: str) -> str:
    """The sweep in which a run was evaluated."""
    sweeps = ("objectives", "controls", "chosen")
    return next(sweep for sweep in sweeps if (HERE / sweep / f"{run}.evaluation").is_dir())


def training() -> None:
    """Means over the first three steps and the last eight."""
    paths = [path for sweep in SWEEPS for path in (HERE / sweep).glob("*/metrics*")]
    for path in sorted(paths):
        rows = [row for row in rows_of(path) if "grad_norm" in row]
        cells = []
        for name in ("rollout/accuracy", "rollout/length_mean", "token/divergence", "attention/divergence"):
            if name in rows[0]:
                first, last = (np.mean([row[name] for row in part]) for part in (rows[:3], rows[-8:]))
                cells.append(f"{name} {first:.4g} → {last:.4g}")
        print(f"{path.parent.parent.name}, {path.parent.name}, {len(rows)} steps: {', '.join(cells)}")
    print()


def search() -> None:
    """What validation said of settings and of learning rates."""
    for path in sorted([*(HERE / "search").glob("*/metrics.jsonl.gz"), *(HERE / "rates").glob("*/metrics.jsonl.gz")]):
        for row in rows_of(path):
            for average in ("avg@3", "avg@4"):
                if f"validation/gsm8k/{average}" in row:
                    measures = (average, "length_mean", "truncated")
                    accuracy, length, cut = (row[f"validation/gsm8k/{name}"] for name in measures)
                    told = f"{100 * accuracy:.1f}, {length:.0f}, {100 * cut:.0f} %"
                    print(f"{path.parent.parent.name}, {path.parent.name}, step {row['step']}: {told}")
    print()


OTHERS = {
    "package": "package, another problem's reference",
    "write it down again, last": "write it down again, last, another problem's reference",
}
"""Wordings that were also read with another problem's reference."""


def sum_of_first(count: int) -> Any:
    return lambda row: sum(row["log_ratio"][:count])


def both_kinds(rows: list[dict[str, Any]], measure: Any) -> list[np.ndarray]:
    """Of right and of wrong answers: the mean over each problem's, of the problems that have both."""
    values: list[dict[int, list[Any]]] = [{}, {}]
    for row in rows:
        values[not row["right"]].setdefault(row["problem"], []).append(measure(row))
    problems = sorted(values[0].keys() & values[1].keys())
    return [np.array([np.mean(kind[problem], 0) for problem in problems]) for kind in values]


def wordings() -> None:
    """How both roles read right and wrong answers: log p_teacher − log p_student, summed over tenths of an answer."""
    for model in ("0.5b", "1.5b"):
        rows = rows_of(HERE / "wordings" / f"{model}.jsonl.gz")
        for wording in dict.fromkeys(row["wording"] for row in rows):
            mine = [row for row in rows if row["wording"] == wording]
            right, wrong = both_kinds(mine, lambda row: sum(row["log_ratio"]) / row["tokens"])
            early = both_kinds(mine, lambda row: sum(row["log_ratio"][:9]) / row["tokens"])
            attention = both_kinds(mine, lambda row: sum(row["attention_divergence"]) / row["tokens"])
            digits = both_kinds(mine, lambda row: row["digits_log_ratio"] / max(1, row["digits"]))
            tenths = [part.mean(0) for part in both_kinds(mine, lambda row: row["log_ratio"])]
            gap = tenths[0] - tenths[1]
            print(
                f"{model}, {wording}, {len(right)} problems: right {shown(right, 1, 3)}, wrong {shown(wrong, 1, 3)}, "
                f"higher in {shown(right > wrong, digits=0)} %, without the last tenth in "
                f"{shown(early[0] > early[1], digits=0)} %; digits {digits[0].mean():.3f}, {digits[1].mean():.3f}; "
                f"attention divergence {attention[0].mean():.5f}, {attention[1].mean():.5f}, lower in "
                f"{shown(attention[0] < attention[1], digits=0)} %; {gap.sum():.1f} nats between right and wrong, "
                f"{100 * gap[-1] / gap.sum():.0f} % of that in the last tenth, {100 * gap[0] / gap.sum():.0f} % in the "
                "first"
            )
            for kind, part in zip(KINDS, tenths, strict=True):
                print(f"    tenths, {kind}", *(f"{value:.2f}" for value in part))
        for own, other in OTHERS.items():
            for count in (8, 9, 10):
                gaps = [
                    np.subtract(*both_kinds([row for row in rows if row["wording"] == name], sum_of_first(count)))
                    for name in (own, other)
                ]
                print(
                    f"{model}, {own}: nats between right and wrong in the first {count} tenths {gaps[0].mean():.2f}, "
                    f"with another problem's {gaps[1].mean():.2f}, difference {shown(gaps[0] - gaps[1], 1, 2, '+')}"
                )
    print()


def larger() -> None:
    """1.5B, on the problems that each evaluation got to, all four answers."""
    folder = HERE / "1.5b"

    def shares(name: str) -> dict[str, float]:
        rows = rows_of(folder / f"{name}.evaluation" / "samples.jsonl.gz")
        found: dict[str, list[bool]] = {}
        for row in rows:
            found.setdefault(row["problem"], []).append(row["verdict"] == "correct")
        cut = np.mean([row["finish_reason"] == "length" for row in rows])
        print(f"{name}: {np.mean([row['tokens'] for row in rows]):.0f} tokens, {100 * cut:.1f} % cut off")
        return {problem: float(np.mean(right)) for problem, right in found.items() if len(right) == 4}

    base = shares("base")
    print(f"1.5B base {shown(list(base.values()))}")
    runs = {name: shares(f"{name}-seed-1") for name in ("opasd-hint", "opsd-hint", "opasd-answer", "opsd-answer")}
    for name, found in runs.items():
        gain = [found[problem] - base[problem] for problem in found]
        print(f"{name}, {len(found)} problems: {shown(list(found.values()))}, against base {shown(gain, sign='+')}")
    for kind in ("hint", "answer"):
        mine, theirs = runs[f"opasd-{kind}"], runs[f"opsd-{kind}"]
        both = [problem for problem in mine if problem in theirs]
        gain = [mine[problem] - theirs[problem] for problem in both]
        means = [f"{100 * np.mean([one[problem] for problem in both]):.1f}" for one in (base, theirs, mine)]
        print(f"{kind}: opasd - opsd on {len(gain)} problems {shown(gain, digits=2, sign='+')}")
        print(f"    there, base, opsd and opasd: {', '.join(means)}")
    print()


if __name__ == "__main__":
    objectives()
    training()
    search()
    wordings()
    larger()
