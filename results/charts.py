"""Draw the figures of the experiments from their records.

    python results/charts.py                              writes docs/figures/*.svg
    python results/charts.py keep FILE NAME "TITLE"       adds a look (`opasd probe --look --json FILE`) to looks.json

    opasd-opsd.svg      OPASD − OPSD on the same problems, one row an experiment
    clip.svg            accuracy after 120 steps by clip, with and without the attention loss; the gradients reversed
    clip-steps.svg      right rollouts over 120 steps, by clip
    stubborn-steps.svg  the stubborn student's right rollouts over 40 steps, by objective
    embedded.svg        the embedded model's rollouts over 40 steps, by objective
    solution-mass.svg   ρ over the steps, by task and reference
    attention-by-weight.svg   the attention divergence over the steps, by λ
    probe-gain.svg      what a probe says beforehand, against what training gained
    look-NAME.svg       attention on what a step needs, by layer, of every look in looks.json

A row or a figure whose records are not there is left out. Intervals are 95 % over problems, by the package's formulas.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from records import evaluated_models, read_document, read_rows
from signs import attention_by_weight, solution_mass
from summaries import SEEDS, Evaluation, load_evaluation, training_steps
from tables_gsm8k import preference
from tables_lookup import gains, over_seeds, validated
from tables_tested import both_of

from opasd.evaluation.statistics import Estimate, estimate, gap_estimate
from opasd.report.charts import svg
from opasd.report.figure import Figure, Series
from opasd.report.looking import mass_by_layer

HERE = Path(__file__).parent
TARGET = HERE.parent / "docs" / "figures"
LOOKS = HERE / "looks.json"
COMPARED = {
    "arithmetic 0.5B": ("arithmetic/objectives", "opasd-seed-{}", "opsd-seed-{}"),
    "… 120 steps": ("arithmetic/long-seeds", "opasd-seed-{}", "opsd-seed-{}"),
    "… forward KL, per token": ("arithmetic/seeds", "opasd-per-token-seed-{}", "opsd-per-token-seed-{}"),
    "… 120 steps, per token": ("arithmetic/long", "opasd-paper", "opsd-paper-per-token"),
    "… 120 steps, pointwise": ("arithmetic/long", "opasd-paper-pointwise", "opsd-paper"),
    "arithmetic 1.5B": ("arithmetic/1.5b", "opasd", "opsd"),
    "… 2,048 tokens": ("arithmetic/thousands", "opasd-seed-{}", "opsd-seed-{}"),
    "GSM8K 0.5B": ("gsm8k/objectives", "opasd-seed-{}", "opsd-seed-{}"),
    "GSM8K 1.5B": ("gsm8k/1.5b", "opasd-answer-seed-1", "opsd-answer-seed-1"),
    "MATH 0.5B": ("math/objectives", "opasd-seed-{}", "opsd-seed-{}"),
    "embedded": ("lab/methods", "opasd-seed-{}", "opsd-per-token-seed-{}"),
    "… answer in view": ("lab/answer", "opasd-seed-{}", "opsd-seed-{}"),
    "lookup": ("lookup/objectives", "opasd-last-seed-{}", "opsd-seed-{}"),
    "lookup, looking": ("lookup/objectives", "opasd-look-seed-{}", "opsd-seed-{}"),
    "lookup, thinking": ("lookup/thinking", "opasd-last-seed-{}", "opsd-seed-{}"),
    "ledger 0.5B": ("ledger/objectives", "opasd-last-seed-{}", "opsd-seed-{}"),
    "ledger, looking": ("ledger/objectives", "opasd-look-seed-{}", "opsd-seed-{}"),
}
"""A forest's rows: a sweep and the names of two runs, with the seed in place of {}."""
VALIDATED = {
    "lookup, pointers": ("last-0.3-1e-3", "opsd-2e-3"),
    "… same rate": ("last-0.3-1e-3", "opsd-1e-3"),
}
"""Rows of the second round of lookup, on its validation problems; their intervals are over seeds."""
CLIPS = {
    "pointwise": ("opsd-paper", "opasd-paper-pointwise"),
    "per token": ("opsd-paper-per-token", "opasd-paper"),
}
CLIP_RUNS = {"pointwise": "pointwise", "masked": "masked", "per-token": "per token", "none": "none"}
STUBBORN = {
    "opsd-2e-3": "OPSD",
    "opsd-4e-3": "OPSD, 4e-3",
    "last-0.1-2e-3": "OPASD, ratio 0.1",
    "last-1-2e-3": "OPASD, ratio 1",
}
OBJECTIVES = {"opsd-per-token": "OPSD", "opasd": "OPASD", "attention": "attention alone"}
ALL_SEEDS = (*SEEDS, 2, 3, 4, 5, 6, 7, 8)


def pairs_of(sweep: str, first: str, second: str) -> list[tuple[Evaluation, Evaluation]]:
    """Return the evaluations of both runs, for each seed that has both."""
    there = set(evaluated_models(sweep)) if sweep.partition("/")[0] in TASKS else set()
    names = dict.fromkeys((first.format(seed), second.format(seed)) for seed in ALL_SEEDS)
    return [(load_evaluation(sweep, a), load_evaluation(sweep, b)) for a, b in names if {a, b} <= there]


TASKS = [path.name for path in HERE.iterdir() if path.is_dir() and any(path.glob("*.tar.xz"))]


def difference(pairs: Sequence[tuple[Evaluation, Evaluation]]) -> Estimate:
    """Return first − second in points: each problem's mean over the seeds, then over problems."""
    gains = [first.gains(second) for first, second in pairs]
    problems = [problem for problem in gains[0] if all(problem in own for own in gains)]
    means = [float(np.mean([own[problem] for own in gains])) for problem in problems]
    return Estimate(*(100 * value for value in gap_estimate(means)))


def forest() -> Figure:
    """OPASD − OPSD, one row an experiment."""
    rows = {label: pairs for label, where in COMPARED.items() if (pairs := pairs_of(*where))}
    rows["arithmetic 0.5B"] += pairs_of("arithmetic/seeds", "opasd-seed-{}", "opsd-seed-{}")
    rows["… 120 steps"] += pairs_of("arithmetic/long", "opasd", "opsd")
    for head in ("4.1", "5.2"):
        rows[f"lookup, head {head}"] = both_of("lookup/head-cpu", f"head-{head}", "lookup/objectives-cpu/opsd")
    found = [difference(pairs) for pairs in rows.values()]
    names = [f"{label} ({len(pairs)})" for label, pairs in rows.items()]
    for label, runs in VALIDATED.items():
        seeds = gains(*(validated(run, "lookup/again") for run in runs))
        found.append(Estimate(*over_seeds(seeds)))
        names.append(f"{label} ({len(seeds)})")
    series = Series(
        "OPASD − OPSD", 0, [(own.mean, float(n)) for n, own in enumerate(found)],
        [own.low for own in found], [own.high for own in found],
    )  # fmt: skip
    return Figure(
        "opasd-opsd",
        "OPASD − OPSD on the same problems (number of seeds)",
        "forest",
        "points of accuracy",
        "",
        [series],
        categories=names,
    )


def clips() -> Figure:
    """Accuracy after 120 steps, forward KL, by clip and objective, and the share of gradients that the clip reverses.

    That share is of OPSD's runs of `arithmetic/clips`, over the first three steps and over the last eight: the records
    of the others are older than the metric. The per-token clip leaves a gradient as it is or takes it away.
    """
    runs = [training_steps("arithmetic/clips", f"pointwise-seed-{seed}") for seed in SEEDS]
    reversed_ = np.array([[row["token/reversed"] for row in steps] for steps in runs])
    first, last = (100 * reversed_[:, part].mean() for part in (slice(3), slice(-8, None)))
    names = [f"pointwise: {first:.0f} → {last:.0f} % reversed", "per token: none reversed"]
    series = {"OPSD": [], "OPASD": []}
    for runs in CLIPS.values():
        for own, run in zip(series.values(), runs, strict=True):
            own.append(estimate(list(load_evaluation("arithmetic/long", run).shares().values())))
    return Figure(
        "clip", "Arithmetic 0.5B, forward KL, 120 steps: the clip decides", "bar",
        "clip, and the share of tokens whose gradient it turns round, at the start → at the end", "accuracy, %",
        [
            Series(
                name, slot, [(float(n), 100 * one.mean) for n, one in enumerate(own)],
                [100 * one.low for one in own], [100 * one.high for one in own],
            )
            for slot, (name, own) in enumerate(series.items())
        ],
        categories=names, from_zero=True,
    )  # fmt: skip


def clip_steps() -> Figure:
    """Right rollouts over 120 steps by clip."""
    return Figure(
        "clip-steps", "OPSD with forward KL: right rollouts by clip (band: three seeds)", "line", "step",
        "right, %", _right("arithmetic/clips", CLIP_RUNS, SEEDS, 10), percent=True, from_zero=True,
    )  # fmt: skip


def stubborn_steps() -> Figure:
    """Right rollouts of the stubborn student by objective."""
    return Figure(
        "stubborn-steps", "Stubborn student: right rollouts (band: four seeds)", "line", "step",
        "right, %", _right("lookup/stubborn", STUBBORN, (1, 2, 3, 4), 2), percent=True, from_zero=True,
    )  # fmt: skip


def _right(sweep: str, runs: dict[str, str], seeds: Sequence[int], block: int) -> list[Series]:
    """Return a line and a band for each run: the mean of its seeds, some steps at a time, and their range."""
    series = []
    for slot, (run, label) in enumerate(runs.items()):
        curves = [[row["rollout/accuracy"] for row in training_steps(sweep, f"{run}-seed-{seed}")] for seed in seeds]
        blocks = np.array(curves).reshape(len(seeds), -1, block).mean(2)
        steps = [float(block * n + block // 2 + block % 2) for n in range(blocks.shape[1])]
        mean = blocks.mean(0).tolist()
        low, high = blocks.min(0).tolist(), blocks.max(0).tolist()
        series.append(Series(label, slot, list(zip(steps, mean, strict=True)), low, high, marks=True))
    return series


def embedded() -> Figure:
    """The embedded model's rollouts: the mean of three seeds, five steps at a time."""
    series = _right("lab/methods", OBJECTIVES, SEEDS, 5)
    return Figure(
        "embedded", "Embedded task: right rollouts in training (band: three seeds)", "line", "step", "right, %", series,
        percent=True, from_zero=True,
    )  # fmt: skip


def own_adds(task: str, model: str = "") -> float:
    """Return what the own reference adds to a probe's preference, in points of pairs."""
    if not model:
        return 100 * read_document(f"{task}/probe/probe.json")["summary"]["own_adds"]["mean"]
    shares: dict[str, dict[int, float]] = {}
    for wording in ("package", "package, another problem's reference"):
        sides: dict[int, tuple[list[Any], list[Any]]] = {}
        for row in read_rows(f"{task}/wordings/{model}.jsonl"):
            if row["wording"] == wording:
                sides.setdefault(row["problem"], ([], []))[not row["right"]].append(row)
        both = {problem: side for problem, side in sides.items() if all(side)}
        shares[wording] = {
            problem: preference(*side, lambda row: sum(row["log_ratio"]) / row["tokens"])
            for problem, side in both.items()
        }
    own, other = shares.values()
    return 100 * float(np.mean([own[problem] - other[problem] for problem in own.keys() & other.keys()]))


def probe_against_gain() -> Figure:
    """What the own solution adds to the teacher's preference, and what OPSD gained."""
    points = {
        "arithmetic 0.5B": (own_adds("arithmetic"), ("arithmetic/objectives", "opsd-seed-{}", "base")),
        "GSM8K 0.5B": (own_adds("gsm8k", "0.5b"), ("gsm8k/objectives", "opsd-seed-{}", "base")),
        "GSM8K 1.5B": (own_adds("gsm8k", "1.5b"), ("gsm8k/1.5b", "opsd-answer-seed-1", "base")),
        "MATH 0.5B": (own_adds("math"), ("math/objectives", "opsd-seed-{}", "base")),
        "embedded": (own_adds("lab"), ("lab/methods", "opsd-per-token-seed-{}", "base")),
    }
    series = [
        Series(label, slot, [(adds, difference(pairs_of(*where)).mean)])
        for slot, (label, (adds, where)) in enumerate(points.items())
    ]
    return Figure(
        "probe-gain", "What a probe says beforehand, and what OPSD gained", "scatter",
        "own solution adds to the preference, points of pairs", "gain over the base, points", series,
    )  # fmt: skip


def looks() -> dict[str, Figure]:
    """Return a figure for each look that was kept."""
    kept = json.loads(LOOKS.read_text()) if LOOKS.exists() else {}
    return {f"look-{name}": mass_by_layer(record["look"], record["title"]) for name, record in kept.items()}


def compact(found: dict[str, Any], title: str) -> dict[str, Any]:
    """Return what the figures need of a probe's file: the look, without heads, to four digits."""
    look = dict(found["look"])
    heads = ("student_heads", "projected_heads")
    look["references"] = {
        name: {key: value for key, value in own.items() if key not in heads} for name, own in look["references"].items()
    }
    settings, versions = found["settings"], found["environment"]["versions"]
    about = {"source": settings["source"], "prompts": settings["config"]["prompts"], "versions": versions}
    return {"title": title, "about": about, "look": _short(look)}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}")
    if isinstance(value, list):
        return [_short(one) for one in value]
    return {key: _short(one) for key, one in value.items()} if isinstance(value, dict) else value


def keep(source: str, name: str, title: str) -> None:
    """Add a look to the file of looks, one a line, or replace the one of that name."""
    kept = json.loads(LOOKS.read_text()) if LOOKS.exists() else {}
    kept[name] = compact(json.loads(Path(source).read_text()), title)
    lines = (f"{json.dumps(key)}: {json.dumps(kept[key], ensure_ascii=False)}" for key in sorted(kept))
    LOOKS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def figures() -> dict[str, str]:
    """Return the pictures by the names of their files."""
    drawn = {"opasd-opsd": forest(), "clip": clips(), "embedded": embedded(), "probe-gain": probe_against_gain()}
    drawn |= {
        "clip-steps": clip_steps(),
        "stubborn-steps": stubborn_steps(),
        "solution-mass": solution_mass(),
        "attention-by-weight": attention_by_weight(),
    }
    return {f"{name}.svg": svg(figure, standalone=True) + "\n" for name, figure in (drawn | looks()).items()}


def main() -> None:
    """Keep a look if asked to, and write the pictures."""
    if sys.argv[1:2] == ["keep"]:
        keep(*sys.argv[2:])
    TARGET.mkdir(parents=True, exist_ok=True)
    for name, picture in figures().items():
        (TARGET / name).write_text(picture)
        sys.stdout.write(f"docs/figures/{name}\n")


if __name__ == "__main__":
    main()
