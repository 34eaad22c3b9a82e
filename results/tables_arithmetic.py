"""The figures on arithmetic and MATH; `python results/tables.py arithmetic math` prints them."""

import gzip
import json

import numpy as np
from records import HERE, read_rows
from summaries import (
    SEEDS,
    Evaluation,
    load_evaluation,
    print_difference,
    print_over_seeds,
    print_sweep,
    print_texts,
    training_steps,
    with_interval,
)

EARLIER = (
    *("attention-seed-1", "attention-seed-123", "attention-seed-42", "base", "opasd-problem-seed-1", "opasd-seed-1"),
    *("opasd-seed-123", "opasd-seed-42", "opsd-pointwise-seed-1", "opsd-seed-1", "opsd-seed-123", "opsd-seed-42"),
)


def print_arithmetic() -> None:
    base = load_evaluation("arithmetic/objectives", "base")
    print(f"arithmetic, 0.5B, base: {base}")
    objectives = print_sweep("arithmetic/objectives", {"base": base})
    print_over_seeds(objectives, base, ("opasd", "opsd", "attention", "opsd-pointwise"))
    print_difference(objectives, "opasd", "opsd")
    seed_1 = {"opasd": objectives["opasd-seed-1"], "opsd": objectives["opsd-seed-1"]}
    for name, model in seed_1.items():
        print(f"opasd-problem-seed-1 - {name}: {objectives['opasd-problem-seed-1'].minus(model)}")
    print_earlier()
    print_sweep("arithmetic/ablations", {"base": base, **seed_1})
    moving = print_sweep("arithmetic/moving", {"base": base, **seed_1})
    print(f"opasd - opsd, moving average of 0.99: {moving['ema-0.99'].minus(moving['opsd-ema-0.99'])}")
    print_collapse()
    print_rates(objectives, base)
    print_references(moving, base, seed_1)
    print_long(objectives, base)
    for sweep in ("objectives", "references", "answer-seeds", "ablations", "moving", "chosen", "long", "long-seeds"):
        print_texts(f"arithmetic/{sweep}", base)
    base = load_evaluation("arithmetic/1.5b", "base")
    print(f"\narithmetic, 1.5B, base: {base}")
    larger = print_sweep("arithmetic/1.5b", {"base": base})
    print(f"opasd - opsd: {larger['opasd'].minus(larger['opsd'])}")
    print_texts("arithmetic/1.5b", base)
    print_layers()


def print_earlier() -> None:
    """Print the same sweep as it was run once before; the evaluations of seeds 42 and 123 were cut short."""
    print("\narithmetic/earlier")
    earlier = {name: Evaluation(read_rows(f"arithmetic/earlier/{name}.jsonl")) for name in EARLIER}
    for name, model in earlier.items():
        print(f"{name}: {model}")
    for seed in SEEDS:
        print(f"opasd - opsd, seed {seed}: {earlier[f'opasd-seed-{seed}'].minus(earlier[f'opsd-seed-{seed}'])}")
    print(f"opasd-problem - opasd, seed 1: {earlier['opasd-problem-seed-1'].minus(earlier['opasd-seed-1'])}")


def print_collapse() -> None:
    """Print what the rollouts look like at each step if the teacher moves."""
    print("\nmoving teachers, rollouts by step: right, cut off, leaks in per cent, tokens")
    for sweep, name in (
        *(("ablations", name) for name in ("ema", "live")),
        *(("moving", name) for name in ("opsd-ema", "opsd-live", "ema-bare", "live-bare")),
    ):
        for row in training_steps(f"arithmetic/{sweep}", name):
            shares = [100 * row.get(f"rollout/{key}", np.nan) for key in ("accuracy", "truncated", "leaks")]
            cells = [*(f"{share:.0f}" for share in shares), f"{row['rollout/length_mean']:.0f}"]
            print(f"{sweep}/{name}, step {row['step']}: {', '.join(cells)}")


def print_rates(objectives: dict[str, Evaluation], base: Evaluation) -> None:
    """Print the learning rates, and the seeds at the chosen ones."""
    print_sweep("arithmetic/rates", {})
    chosen = objectives | print_sweep("arithmetic/chosen", {"base": base})
    print_over_seeds(chosen, base, ("opasd-2e-4", "opsd-1e-4", "opsd-pointwise-1e-6", "opsd-per-token-5e-5"))
    for name, other in (
        ("opasd-2e-4", "opsd-1e-4"),
        ("opasd-2e-4", "opasd"),
        ("opsd-1e-4", "opsd"),
        ("opsd-per-token-5e-5", "opsd"),
    ):
        print_difference(chosen, name, other)


def print_references(moving: dict[str, Evaluation], base: Evaluation, seed_1: dict[str, Evaluation]) -> None:
    """Print what the teacher's reference changes."""
    references = print_sweep("arithmetic/references", {"base": base, **seed_1})
    for kind in ("answer", "others", "silent", "bare"):
        print(f"opasd - opsd, {kind}: {references[f'opasd-{kind}'].minus(references[f'opsd-{kind}'])}")
    print(f"attention - opsd, answer: {references['attention-answer'].minus(references['opsd-answer'])}")
    for name in ("ema-bare", "live-bare"):
        print(f"{name} - opasd-bare: {moving[name].minus(references['opasd-bare'])}")
    for name in ("opsd", "opasd"):
        own, other = (model.gains(base, 2) for model in (seed_1[name], references[f"{name}-others"]))
        pairs = np.array([[other[problem], own[problem]] for problem in own])
        drawn = pairs[np.random.default_rng(0).integers(len(pairs), size=(4000, len(pairs)))].mean(1)
        share = pairs.mean(0)[0] / pairs.mean(0)[1]
        low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
        interval = f"{100 * share:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
        print(f"{name}: with another problem's solution {interval} of the gain")
    seed_42 = print_sweep("arithmetic/answer-seeds", {"base": base})
    gain = seed_42["attention-answer-seed-42"].minus(seed_42["opsd-answer-seed-42"])
    print(f"attention - opsd, answer, seed 42: {gain}")


def print_long(objectives: dict[str, Evaluation], base: Evaluation) -> None:
    """Print the runs of 120 steps."""
    long = print_sweep("arithmetic/long", {"base": base})
    for clip, name, other in (
        ("per-token", "opasd-paper", "opsd-paper-per-token"),
        ("pointwise", "opasd-paper-pointwise", "opsd-paper"),
        ("no", "opasd", "opsd"),
    ):
        print(f"opasd - opsd, {clip} clip: {long[name].minus(long[other])}")
    seeds = print_sweep("arithmetic/long-seeds", {"base": base})
    seeds |= {f"{name}-seed-1": long[name] for name in ("opasd", "opsd")}
    print_over_seeds(seeds, base, ("opasd", "opsd"))
    print_difference(seeds, "opasd", "opsd")
    for name in ("opasd", "opsd"):
        short = {f"40 steps of {run}": model for run, model in objectives.items()}
        print_difference(seeds | short, name, f"40 steps of {name}")


def print_layers() -> None:
    """Print how often each layer's attention divergence is lower for the right one of two answers to a problem."""
    record = json.loads(gzip.decompress((HERE / "arithmetic/layers.json.gz").read_bytes()))
    problems: dict[str, tuple[list[int], list[int]]] = {}
    for index, answer in enumerate(record["answers"]):
        problems.setdefault(answer["problem"], ([], []))[not answer["right"]].append(index)
    print(f"\nlayers, {len(problems)} problems, {len(record['answers'])} answers")
    for setting, layers in record["divergence"].items():
        for layer, divergence in enumerate(layers):
            lower = [
                np.mean([divergence[a] < divergence[b] for a in right for b in wrong])
                for right, wrong in problems.values()
            ]
            mass = record["solution_mass"][setting][layer]
            print(f"{setting}, layer {layer}: {with_interval(lower)}, mean {np.mean(divergence):.4f}, ρ {mass:.3f}")


def print_math() -> None:
    base = load_evaluation("math/objectives", "base")
    print(f"MATH-500, 0.5B, base: {base}")
    evaluations = print_sweep("math/objectives", {"base": base})
    print_over_seeds(evaluations, base, ("opasd", "opsd", "attention", "opsd-pointwise", "opsd-per-token"))
    print_difference(evaluations, "opasd", "opsd")
    evaluations |= print_sweep("math/chosen", {"base": base})
    print_over_seeds(evaluations, base, ("opsd-1e-4", "opsd-pointwise-1e-6", "opsd-per-token-1e-4"))
    print_difference(evaluations, "opasd", "opsd-1e-4")
