"""The figures of docs/experiments.md, "Chains of arithmetic", from the records beside this file.

    python results/arithmetic/tables.py

Intervals are 95 %, by the package's bootstrap over problems; differences are paired on the same problems. Evaluations
of the second and third seed were cut short: theirs are the problems with all four answers.
"""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from opasd.analysis.leaks import leak_pattern
from opasd.config import PromptConfig
from opasd.evaluation.statistics import estimate

HERE = Path(__file__).parent
SWEEP = HERE / "objectives"
SEEDS = (1, 42, 123)
KEYS = (
    "rollout/accuracy",
    "rollout/length_mean",
    "token/divergence",
    "attention/divergence",
    "attention/solution_mass",
)
LINE = re.compile(r"^\d+\. (?:Add|Subtract|Multiply by) \d+: \\\(\d+ \S+ \d+ = \d+\\\)\.$", re.MULTILINE)
"""A step of a solution."""
LEAK = leak_pattern(PromptConfig())
assert LEAK is not None


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def shown(values: Any, sign: str = "") -> str:
    mean, low, high = (100 * part for part in estimate(np.asarray(values, float).tolist()))
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def evaluated(name: str) -> tuple[dict[str, float], str]:
    """The share of right answers to each problem, and the rest of a row of the table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(SWEEP / f"{name}.evaluation" / "samples.jsonl.gz"):
        found.setdefault(row["problem"], []).append(row)
    whole = {problem: rows for problem, rows in found.items() if len(rows) == 4}
    rows = [row for part in whole.values() for row in part]
    shares = {problem: float(np.mean([r["verdict"] == "correct" for r in part])) for problem, part in whole.items()}
    cut = np.mean([row["finish_reason"] == "length" for row in rows])
    unboxed = np.mean([row["verdict"] == "no_answer" for row in rows])
    rest = (
        f"{len(whole)} problems, Pass@4 {100 * np.mean([share > 0 for share in shares.values()]):.1f}, "
        f"{np.mean([row['tokens'] for row in rows]):.0f} tokens, {100 * cut:.1f} % cut off, {100 * unboxed:.1f} % "
        "without an answer"
    )
    return shares, rest


def difference(mine: dict[str, float], theirs: dict[str, float]) -> str:
    return shown([mine[problem] - theirs[problem] for problem in mine if problem in theirs], "+")


def trained(name: str) -> str:
    """Validation, and means over the first three steps and the last eight."""
    rows = rows_of(SWEEP / name / "metrics.jsonl.gz")
    steps = [row for row in rows if "grad_norm" in row]
    cells = [
        f"validation at step {row['step']} {100 * value:.1f}"
        for row in rows
        for key, value in row.items()
        if re.fullmatch(r"validation/arithmetic/avg@\d+", key)
    ]
    for key in KEYS:
        if key in steps[0]:
            first, last = (np.mean([row[key] for row in part]) for part in (steps[:3], steps[-8:]))
            cells.append(f"{key} {first:.4g} → {last:.4g}")
    return ", ".join(cells)


def form(text: str) -> str:
    """How an answer is written: as the solutions are, with code, or otherwise."""
    return "solution's form" if len(LINE.findall(text)) >= 4 else "code" if "```" in text else "other"


def forms(name: str) -> dict[str, tuple[float, float]]:
    """Of the answers whose text was kept: each form's share and how many of its answers are right."""
    rows = [row for row in rows_of(SWEEP / f"{name}.evaluation" / "samples.jsonl.gz") if "text" in row]
    found: dict[str, list[bool]] = {}
    for row in rows:
        found.setdefault(form(row["text"]), []).append(row["verdict"] == "correct")
    told = np.mean([LEAK.search(row["text"]) is not None for row in rows])
    cells = {kind: (len(right) / len(rows), float(np.mean(right))) for kind, right in sorted(found.items())}
    shown_cells = ", ".join(
        f"{kind} {100 * share:.0f} % ({100 * right:.0f} % right)" for kind, (share, right) in cells.items()
    )
    print(f"{name}, {len(rows)} first answers: {shown_cells}; {100 * told:.0f} % speak of the reference solution")
    return cells


def main() -> None:
    base, rest = evaluated("base")
    print(f"base {shown(list(base.values()))}; {rest}")
    found = {}
    for path in sorted(SWEEP.glob("*-seed-*.evaluation")):
        name = path.name.removesuffix(".evaluation")
        found[name], rest = evaluated(name)
        print(
            f"{name} {shown(list(found[name].values()))}, against base {difference(found[name], base)}; {rest}; "
            f"{trained(name)}"
        )
    pairs = [(found[f"opasd-seed-{seed}"], found[f"opsd-seed-{seed}"]) for seed in SEEDS]
    for seed, (mine, theirs) in zip(SEEDS, pairs, strict=True):
        print(f"opasd - opsd, seed {seed}: {difference(mine, theirs)}")
    common = sorted(set.intersection(*(set(part) for pair in pairs for part in pair)))
    gaps = [np.mean([mine[problem] - theirs[problem] for mine, theirs in pairs]) for problem in common]
    print(f"opasd - opsd, mean of the seeds on {len(common)} problems: {shown(gaps, '+')}")
    for name in ("opasd", "opsd", "attention"):
        runs = [found[f"{name}-seed-{seed}"] for seed in SEEDS]
        common = sorted(set.intersection(*map(set, runs)))
        means = [100 * np.mean([run[problem] for problem in common]) for run in runs]
        gains = [np.mean([run[problem] for run in runs]) - base[problem] for problem in common]
        print(
            f"{name}: {np.mean(means):.1f} ± {np.std(means, ddof=1):.1f} over seeds on {len(common)} problems, against "
            f"base {shown(gains, '+')}"
        )
    plain = forms("base")
    for path in sorted(SWEEP.glob("*-seed-*.evaluation")):
        name = path.name.removesuffix(".evaluation")
        expected = sum(share * plain.get(kind, (0, 0))[1] for kind, (share, _) in forms(name).items())
        print(f"    in its forms, each with the base's accuracy: {100 * expected:.1f}")


if __name__ == "__main__":
    main()
