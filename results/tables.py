"""The figures of docs/experiments.md on arithmetic and MATH, from the records beside this file.

    python results/tables.py

Intervals are 95 %, by the package's bootstrap over problems; differences are paired on the same problems. What is said
of texts (markers, leaks, forms) is of each problem's first answer, whose text is kept.
"""

import gzip
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from opasd.analysis.leaks import leak_pattern
from opasd.analysis.markers import count_markers
from opasd.config import PromptConfig
from opasd.evaluation.statistics import estimate

HERE = Path(__file__).parent
SEEDS = (1, 42, 123)
KEYS = (
    "rollout/accuracy",
    "rollout/length_mean",
    "rollout/leaks",
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


@dataclass(frozen=True)
class Evaluated:
    """The answers of one model."""

    rows: list[dict[str, Any]]

    @cached_property
    def shares(self) -> dict[str, float]:
        """Of each problem with all its answers, how many are right."""
        found: dict[str, list[bool]] = {}
        for row in self.rows:
            found.setdefault(row["problem"], []).append(row["verdict"] == "correct")
        most = max(map(len, found.values()))
        return {problem: float(np.mean(right)) for problem, right in found.items() if len(right) == most}

    def minus(self, other: "Evaluated") -> str:
        mine, theirs = self.shares, other.shares
        return shown([mine[problem] - theirs[problem] for problem in mine if problem in theirs], "+")

    def __str__(self) -> str:
        cut, unboxed = (
            100 * np.mean([row[key] == value for row in self.rows])
            for key, value in (("finish_reason", "length"), ("verdict", "no_answer"))
        )
        cells = [
            f"{shown(list(self.shares.values()))} of {len(self.shares)} problems",
            f"one of several right {100 * np.mean([share > 0 for share in self.shares.values()]):.1f}",
            f"{np.mean([row['tokens'] for row in self.rows]):.0f} tokens",
            f"{cut:.1f} % cut off",
            f"{unboxed:.1f} % without an answer",
        ]
        if texts := [row for row in self.rows if "text" in row]:
            tokens = sum(row["tokens"] for row in texts)
            markers = sum(sum(count_markers(row["text"]).values()) for row in texts)
            told = np.mean([LEAK.search(row["text"]) is not None for row in texts])
            cells += [f"{1000 * markers / tokens:.2f} markers per 1,000", f"{100 * told:.1f} % leak"]
        return ", ".join(cells)


def evaluated(folder: str, name: str) -> Evaluated:
    return Evaluated(rows_of(HERE / folder / f"{name}.evaluation" / "samples.jsonl.gz"))


def names_of(folder: str) -> list[str]:
    found = sorted((HERE / folder).glob("*.evaluation"))
    return [path.name.removesuffix(".evaluation") for path in found if path.name != "base.evaluation"]


def trained(folder: str, name: str) -> str:
    """Validation, and means over the first three steps and the last eight."""
    rows = rows_of(HERE / folder / name / "metrics.jsonl.gz")
    steps = [row for row in rows if "grad_norm" in row]
    cells = [f"{len(steps)} steps"]
    for row in rows:
        for key, value in row.items():
            if match := re.fullmatch(r"(validation/\w+)/avg@\d+", key):
                length = row[f"{match[1]}/length_mean"]
                cells.append(f"validation at step {row['step']} {100 * value:.1f}, {length:.0f} tokens")
    for key in KEYS:
        if key in steps[0]:
            first, last = (np.mean([row[key] for row in part]) for part in (steps[:3], steps[-8:]))
            cells.append(f"{key} {first:.4g} → {last:.4g}")
    return ", ".join(cells)


def table(folder: str, against: dict[str, Evaluated]) -> dict[str, Evaluated]:
    """A line for each run, with its differences."""
    print(f"\n{folder}")
    found = {}
    for name in names_of(folder):
        found[name] = evaluated(folder, name)
        differences = "; ".join(f"- {other} {found[name].minus(model)}" for other, model in against.items())
        print(f"{name}: {found[name]}; {differences}; {trained(folder, name)}")
    return found


def over_seeds(found: dict[str, Evaluated], base: Evaluated) -> None:
    common = set(base.shares)
    for name in ("opasd", "opsd", "attention"):
        runs = [found[f"{name}-seed-{seed}"].shares for seed in SEEDS]
        means = [100 * np.mean([run[problem] for problem in common]) for run in runs]
        gains = [np.mean([run[problem] for run in runs]) - base.shares[problem] for problem in common]
        print(
            f"{name}: {np.mean(means):.1f} ± {np.std(means, ddof=1):.1f} over seeds, against base {shown(gains, '+')}"
        )
    pairs = [(found[f"opasd-seed-{seed}"], found[f"opsd-seed-{seed}"]) for seed in SEEDS]
    for seed, (mine, theirs) in zip(SEEDS, pairs, strict=True):
        print(f"opasd - opsd, seed {seed}: {mine.minus(theirs)}")
    gaps = [np.mean([mine.shares[problem] - theirs.shares[problem] for mine, theirs in pairs]) for problem in common]
    print(f"opasd - opsd, mean of the seeds: {shown(gaps, '+')}")


def earlier() -> None:
    """The same sweep once before; evaluations of seeds 42 and 123 were cut short."""
    print("\narithmetic/earlier")
    for seed in SEEDS:
        mine, theirs = (
            Evaluated(rows_of(HERE / f"arithmetic/earlier/{name}-seed-{seed}.jsonl.gz")) for name in ("opasd", "opsd")
        )
        print(f"opasd - opsd, seed {seed}: {mine.minus(theirs)}; opasd {mine}; opsd {theirs}")


def form(text: str) -> str:
    """How an answer is written: as the solutions are, with code, or otherwise."""
    return "solution's form" if len(LINE.findall(text)) >= 4 else "code" if "```" in text else "other"


def forms(folder: str) -> None:
    """Each form's share and how many of its answers are right; what the base's accuracy in each would make of it."""
    print(f"\nforms of {folder}")
    plain: dict[str, float] = {}
    for name in ("base", *names_of(folder)):
        rows = [row for row in evaluated(folder, name).rows if "text" in row]
        found: dict[str, list[bool]] = {}
        for row in rows:
            found.setdefault(form(row["text"]), []).append(row["verdict"] == "correct")
        cells = {kind: (len(right) / len(rows), float(np.mean(right))) for kind, right in sorted(found.items())}
        plain = plain or {kind: right for kind, (_, right) in cells.items()}
        told = ", ".join(
            f"{kind} {100 * share:.0f} % ({100 * right:.0f} % right)" for kind, (share, right) in cells.items()
        )
        expected = 100 * sum(share * plain.get(kind, 0.0) for kind, (share, _) in cells.items())
        print(f"{name}: {told}; with the base's accuracy in each form {expected:.1f}")


def main() -> None:
    base = evaluated("arithmetic/objectives", "base")
    print(f"arithmetic, 0.5B, base: {base}")
    found = table("arithmetic/objectives", {"base": base})
    over_seeds(found, base)
    earlier()
    beside = {"base": base, "opasd": found["opasd-seed-1"], "opsd": found["opsd-seed-1"]}
    table("arithmetic/ablations", beside)
    table("arithmetic/references", beside)
    table("arithmetic/long", {"base": base})
    forms("arithmetic/objectives")
    larger = evaluated("arithmetic/1.5b", "base")
    print(f"\narithmetic, 1.5B, base: {larger}")
    both = table("arithmetic/1.5b", {"base": larger})
    print(f"opasd - opsd: {both['opasd'].minus(both['opsd'])}")
    forms("arithmetic/1.5b")
    base = evaluated("math/objectives", "base")
    print(f"\nMATH-500, 0.5B, base: {base}")
    both = table("math/objectives", {"base": base})
    print(f"opasd - opsd: {both['opasd-seed-1'].minus(both['opsd-seed-1'])}")
    print(f"\nGSM8K, 1.5B, base: {evaluated('gsm8k/1.5b', 'base')}")
    table("gsm8k/1.5b-controls", {"base": evaluated("gsm8k/1.5b", "base")})


if __name__ == "__main__":
    main()
