"""The figures of docs/experiments.md on arithmetic and MATH, from the records beside this file.

    python results/tables.py

Intervals are 95 %, by the package's bootstrap over problems; differences are paired on the same problems and the same
numbers of answers to them. What is said of texts (markers, leaks, forms, equations) is of each problem's first answer,
whose text is kept, or its counts. Leaks are counted by the package's own wording, whatever the run's.
"""

import gzip
import json
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from reading import SIGNS, counted

from opasd.evaluation.statistics import estimate

HERE = Path(__file__).parent
SEEDS = (1, 42, 123)
KEYS = (
    "rollout/accuracy",
    "rollout/length_mean",
    "rollout/leaks",
    "rollout/truncated",
    "token/divergence",
    "attention/divergence",
    "attention/solution_mass",
    "grad_norm",
)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines()]


def shown(values: Any, sign: str = "", digits: int = 1) -> str:
    mean, low, high = (100 * part for part in estimate(np.asarray(values, float).tolist()))
    return f"{mean:{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def number(problem: str) -> int:
    """A problem's place in its benchmark, by which bootstraps draw the same whatever the order of the records."""
    return int(re.findall(r"\d+", problem)[-1])


@dataclass(frozen=True)
class Evaluated:
    """The answers of one model."""

    rows: list[dict[str, Any]]

    @cached_property
    def right(self) -> dict[str, list[bool]]:
        """The verdicts on each problem's answers, of problems that have all of them."""
        found: dict[str, list[bool]] = {}
        for row in sorted(self.rows, key=lambda row: (number(row["problem"]), row["sample"])):
            found.setdefault(row["problem"], []).append(row["verdict"] == "correct")
        most = max(map(len, found.values()))
        return {problem: verdicts for problem, verdicts in found.items() if len(verdicts) == most}

    @property
    def samples(self) -> int:
        return len(next(iter(self.right.values())))

    @cached_property
    def read(self) -> list[dict[str, Any]]:
        """The answers whose texts were read, each problem's first."""
        return [row for row in map(counted, self.rows) if "markers" in row]

    def shares(self, samples: int | None = None) -> dict[str, float]:
        """Of each problem's first answers, how many are right."""
        return {problem: float(np.mean(verdicts[:samples])) for problem, verdicts in self.right.items()}

    def gaps(self, other: "Evaluated", most: int | None = None) -> dict[str, float]:
        count = min(self.samples, other.samples, most or self.samples)
        mine, theirs = self.shares(count), other.shares(count)
        return {problem: mine[problem] - theirs[problem] for problem in mine if problem in theirs}

    def minus(self, other: "Evaluated") -> str:
        return shown(list(self.gaps(other).values()), "+")

    def __str__(self) -> str:
        cut, unboxed = (
            100 * np.mean([row[key] == value for row in self.rows])
            for key, value in (("finish_reason", "length"), ("verdict", "no_answer"))
        )
        cells = [
            f"{shown(list(self.shares().values()))} of {len(self.right)} problems x {self.samples}",
            f"first two {100 * np.mean(list(self.shares(2).values())):.1f}",
            f"one of several right {100 * np.mean([any(verdicts) for verdicts in self.right.values()]):.1f}",
            f"{np.mean([row['tokens'] for row in self.rows]):.0f} tokens",
            f"{cut:.1f} % cut off",
            f"{unboxed:.1f} % without an answer",
        ]
        if first := self.read:
            markers = sum(sum(row["markers"].values()) for row in first)
            tokens, leaks = (sum(row[key] for row in first) for key in ("tokens", "leak"))
            cells += [f"{1000 * markers / tokens:.2f} markers per 1,000", f"{100 * leaks / len(first):.1f} % leak"]
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
    for path in sorted((HERE / folder).glob("*/metrics.jsonl.gz")):
        if path.parent.name not in found:
            print(f"{path.parent.name}, not evaluated: {trained(folder, path.parent.name)}")
    return found


def over_seeds(found: dict[str, Evaluated], base: Evaluated, names: tuple[str, ...]) -> None:
    """What there is of each: the mean of its seeds, and the interval over problems for these runs."""
    for name in names:
        runs = [found[run] for seed in SEEDS if (run := f"{name}-seed-{seed}") in found]
        means = [100 * np.mean(list(run.shares().values())) for run in runs]
        gains = np.mean([list(run.gaps(base).values()) for run in runs], 0)
        print(
            f"{name}: {np.mean(means):.1f} ± {np.std(means, ddof=1):.1f} over {len(runs)} seeds, against base "
            f"{shown(gains, '+')}"
        )


def difference(found: dict[str, Evaluated], mine: str, theirs: str) -> None:
    """Seed by seed; of the mean the interval over problems for these runs, and Student's t over the seeds."""
    pairs = [(found[f"{mine}-seed-{seed}"], found[f"{theirs}-seed-{seed}"]) for seed in SEEDS]
    for seed, (one, other) in zip(SEEDS, pairs, strict=True):
        print(f"{mine} - {theirs}, seed {seed}: {one.minus(other)}")
    gaps = np.array([list(one.gaps(other).values()) for one, other in pairs])
    means = 100 * gaps.mean(1)
    half = 4.303 * means.std(ddof=1) / len(means) ** 0.5  # the 97.5 % quantile of Student's t with two degrees
    print(
        f"{mine} - {theirs}, mean of the seeds {means.mean():+.2f}: over problems {shown(gaps.mean(0), '+', 2)}, over "
        f"seeds [{means.mean() - half:+.2f}, {means.mean() + half:+.2f}]"
    )


def earlier() -> None:
    """The same sweep once before; evaluations of seeds 42 and 123 were cut short."""
    print("\narithmetic/earlier")
    found = {
        path.name.split(".")[0]: Evaluated(rows_of(path)) for path in sorted((HERE / "arithmetic/earlier").iterdir())
    }
    for name, model in found.items():
        print(f"{name}: {model}")
    for seed in SEEDS:
        print(f"opasd - opsd, seed {seed}: {found[f'opasd-seed-{seed}'].minus(found[f'opsd-seed-{seed}'])}")
    print(f"opasd-problem - opasd, seed 1: {found['opasd-problem-seed-1'].minus(found['opasd-seed-1'])}")


def texts(folder: str, base: Evaluated) -> None:
    """Forms, and what the base's accuracy in each would make of them; equations; what else the answers have."""
    print(f"\ntexts of {folder}")
    plain: dict[str, float] = {}
    models = {"base": base} | {name: evaluated(folder, name) for name in names_of(folder)}
    for name, model in models.items():
        rows = [row for row in model.read if "form" in row]
        if not rows:
            continue
        found: dict[str, list[bool]] = {}
        for row in rows:
            found.setdefault(row["form"], []).append(row["verdict"] == "correct")
        cells = {kind: (len(right) / len(rows), float(np.mean(right))) for kind, right in sorted(found.items())}
        plain = plain or {kind: right for kind, (_, right) in cells.items()}
        told = ", ".join(
            f"{kind} {100 * part:.1f} % ({100 * right:.0f} % right)" for kind, (part, right) in cells.items()
        )
        expected = 100 * sum(part * plain.get(kind, 0.0) for kind, (part, _) in cells.items())
        right = 100 * np.mean([row["verdict"] == "correct" for row in rows])
        true, written = np.sum([row["equations"] for row in rows], 0)
        leaks, clean = (
            100 * np.mean([row["verdict"] == "correct" for row in rows if row["leak"] is wanted] or [np.nan])
            for wanted in (True, False)
        )
        early = [row["leak_at"] < 200 for row in rows if row["leak"]]
        cut = ["endless" in row["signs"] for row in rows if row["finish_reason"] == "length"]
        shares = {sign: np.mean([sign in row["signs"] for row in rows]) for sign in SIGNS if sign != "endless"}
        shares["wrong with a false equation, of those not right"] = np.mean(
            [row["equations"][0] < row["equations"][1] for row in rows if row["verdict"] != "correct"]
        )
        parts = [
            told,
            f"right {right:.1f}, with the base's accuracy in each form {expected:.1f}",
            f"equations true {100 * true / written:.1f} %",
            *(f"{what} {100 * share:.1f} %" for what, share in shares.items()),
            f"right where it leaks {leaks:.0f}, elsewhere {clean:.0f} %",
            f"of the leaks in the first 200 characters {100 * np.mean(early or [np.nan]):.0f} %",
            f"endless among {len(cut)} cut off {100 * np.mean(cut or [0]):.0f} %",
        ]
        print(f"{name}: {'; '.join(parts)}")


def read_gsm8k() -> None:
    """How teachers read right and wrong answers on GSM8K, in pairs as `opasd probe` counts them."""
    print("\nGSM8K, pairs")
    ways = {
        "all": lambda row: sum(row["log_ratio"]) / row["tokens"],
        "before the end": lambda row: sum(row["log_ratio"][:9]) / row["tokens"],
        "attention": lambda row: -sum(row["attention_divergence"]) / row["tokens"],
    }
    for size in ("0.5b", "1.5b"):
        rows: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {}
        for row in rows_of(HERE / f"gsm8k/wordings/{size}.jsonl.gz"):
            rows.setdefault(row["wording"], {}).setdefault(row["problem"], ([], []))[not row["right"]].append(row)
        found = {
            (wording, way): {
                problem: np.mean([(value(a) > value(b)) + (value(a) == value(b)) / 2 for a in right for b in wrong])
                for problem, (right, wrong) in sorted(problems.items())
                if right and wrong
            }
            for wording, problems in rows.items()
            for way, value in ways.items()
        }
        for (wording, way), shares in found.items():
            line = f"{size}, {wording}, {way}: {shown(list(shares.values()))}"
            other = found.get((f"{wording}, another problem's reference", way), {})
            if both := sorted(shares.keys() & other.keys()):
                line += f", own adds {shown([shares[problem] - other[problem] for problem in both], '+')}"
            print(line)


def collapse() -> None:
    """What the rollouts of moving teachers look like, step by step."""
    print("\nmoving teachers, rollouts by step: right, cut off, leaks in per cent, tokens")
    moving = ("opsd-ema", "opsd-live", "ema-bare", "live-bare")
    for name in ("ablations/ema", "ablations/live", *(f"moving/{run}" for run in moving)):
        rows = [row for row in rows_of(HERE / f"arithmetic/{name}/metrics.jsonl.gz") if "grad_norm" in row]
        for row in rows:
            shares = [100 * row.get(f"rollout/{key}", np.nan) for key in ("accuracy", "truncated", "leaks")]
            cells = [*(f"{share:.0f}" for share in shares), f"{row['rollout/length_mean']:.0f}"]
            print(f"{name}, step {row['step']}: {', '.join(cells)}")


def layers() -> None:
    """How often a layer's attention divergence is lower for the right one of two answers to a problem."""
    record = json.loads(gzip.decompress((HERE / "arithmetic/layers.json.gz").read_bytes()))
    problems: dict[str, tuple[list[int], list[int]]] = {}
    for place, answer in enumerate(record["answers"]):
        problems.setdefault(answer["problem"], ([], []))[not answer["right"]].append(place)
    print(f"\nlayers, {len(problems)} problems, {len(record['answers'])} answers")
    for what, values in record["divergence"].items():
        for layer, divergence in enumerate(values):
            lower = [
                np.mean([divergence[a] < divergence[b] for a in right for b in wrong])
                for right, wrong in problems.values()
            ]
            mass = record["solution_mass"][what][layer]
            print(f"{what}, layer {layer}: {shown(lower)}, mean {np.mean(divergence):.4f}, ρ {mass:.3f}")


def main() -> None:
    base = evaluated("arithmetic/objectives", "base")
    print(f"arithmetic, 0.5B, base: {base}")
    found = table("arithmetic/objectives", {"base": base})
    over_seeds(found, base, ("opasd", "opsd", "attention", "opsd-pointwise"))
    difference(found, "opasd", "opsd")
    one = {"opasd": found["opasd-seed-1"], "opsd": found["opsd-seed-1"]}
    for other, model in one.items():
        print(f"opasd-problem-seed-1 - {other}: {found['opasd-problem-seed-1'].minus(model)}")
    earlier()
    table("arithmetic/ablations", {"base": base, **one})
    moving = table("arithmetic/moving", {"base": base, **one})
    print(f"opasd - opsd, moving average of 0.99: {moving['ema-0.99'].minus(moving['opsd-ema-0.99'])}")
    collapse()
    table("arithmetic/rates", {})
    chosen = found | table("arithmetic/chosen", {"base": base})
    over_seeds(chosen, base, ("opasd-2e-4", "opsd-1e-4", "opsd-pointwise-1e-6", "opsd-per-token-5e-5"))
    difference(chosen, "opasd-2e-4", "opsd-1e-4")
    for mine, theirs in (("opasd-2e-4", "opasd"), ("opsd-1e-4", "opsd"), ("opsd-per-token-5e-5", "opsd")):
        difference(chosen, mine, theirs)
    seen = table("arithmetic/references", {"base": base, **one})
    for kind in ("answer", "others", "silent", "bare"):
        print(f"opasd - opsd, {kind}: {seen[f'opasd-{kind}'].minus(seen[f'opsd-{kind}'])}")
    print(f"attention - opsd, answer: {seen['attention-answer'].minus(seen['opsd-answer'])}")
    for name in ("ema-bare", "live-bare"):
        print(f"{name} - opasd-bare: {moving[name].minus(seen['opasd-bare'])}")
    for name in ("opsd", "opasd"):
        gained, other = (model.gaps(base, 2) for model in (one[name], seen[f"{name}-others"]))
        pairs = np.array([[other[problem], gained[problem]] for problem in gained])
        drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(4000, len(pairs)))].mean(1)
        part = pairs.mean(0)[0] / pairs.mean(0)[1]
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
        interval = f"{100 * part:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
        print(f"{name}: with another problem's solution {interval} of the gain")
    more = table("arithmetic/answer-seeds", {"base": base})
    print(f"attention - opsd, answer, seed 42: {more['attention-answer-seed-42'].minus(more['opsd-answer-seed-42'])}")
    long = table("arithmetic/long", {"base": base})
    for clip, mine, theirs in (
        ("per-token", "opasd-paper", "opsd-paper-per-token"),
        ("pointwise", "opasd-paper-pointwise", "opsd-paper"),
        ("no", "opasd", "opsd"),
    ):
        print(f"opasd - opsd, {clip} clip: {long[mine].minus(long[theirs])}")
    seeds = table("arithmetic/long-seeds", {"base": base}) | {f"{name}-seed-1": long[name] for name in one}
    over_seeds(seeds, base, ("opasd", "opsd"))
    difference(seeds, "opasd", "opsd")
    for name in one:
        difference(seeds | {f"40 steps of {run}": model for run, model in found.items()}, name, f"40 steps of {name}")
    for folder in ("objectives", "references", "answer-seeds", "ablations", "moving", "chosen", "long", "long-seeds"):
        texts(f"arithmetic/{folder}", base)
    larger = evaluated("arithmetic/1.5b", "base")
    print(f"\narithmetic, 1.5B, base: {larger}")
    both = table("arithmetic/1.5b", {"base": larger})
    print(f"opasd - opsd: {both['opasd'].minus(both['opsd'])}")
    texts("arithmetic/1.5b", larger)
    base = evaluated("math/objectives", "base")
    print(f"\nMATH-500, 0.5B, base: {base}")
    both = table("math/objectives", {"base": base})
    over_seeds(both, base, ("opasd", "opsd", "attention", "opsd-pointwise", "opsd-per-token"))
    difference(both, "opasd", "opsd")
    both |= table("math/chosen", {"base": base})
    over_seeds(both, base, ("opsd-1e-4", "opsd-pointwise-1e-6", "opsd-per-token-1e-4"))
    difference(both, "opasd", "opsd-1e-4")
    base = evaluated("gsm8k/1.5b", "base")
    print(f"\nGSM8K, 1.5B, base: {base}")
    table("gsm8k/1.5b-controls", {"base": base})
    read_gsm8k()
    layers()


if __name__ == "__main__":
    main()
