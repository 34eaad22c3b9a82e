"""Memory and time of a step on a GPU, by part, beside what `opasd plan` says.

    python benchmarks/plan.py --models 1.7b,4b,8b --lengths 1024,4096 --json benchmarks/results/plan-h200.json
    python benchmarks/plan.py --compare benchmarks/results/plan-h200.json        no GPU: the table of docs/planning.md
    python benchmarks/plan.py --uneven benchmarks/results/update_step-*.json     no GPU: steps with uneven lengths

Random weights in Qwen3's shapes, LoRA r = 64, the trainer's own rollouts and update. A random model hardly ever ends a
text, so every rollout has the given length. Prompts have 256 tokens and solutions 1,024.
"""

import argparse
import gc
import itertools
import json
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measure import gpu_heading, save
from update_step import SHAPES, Setup, make_rollouts, make_trainer, step

from opasd.config import RolloutConfig, RunConfig
from opasd.model.unwrap import unwrap
from opasd.plan.memory import GIB, Lengths, memory
from opasd.plan.shapes import Shape
from opasd.trainer.trainer import OPASDTrainer

Row = dict[str, Any]
PROMPT, SOLUTION = 256, 1024
"""Tokens of every problem."""


def peaks_by_part(trainer: OPASDTrainer) -> dict[str, int]:
    """Note the peak of the allocated memory in each part of a step that the trainer times."""
    peaks: dict[str, int] = {}
    timed = trainer.step_metrics.timed

    @contextmanager
    def noted(part: str) -> Any:
        if part == "update":  # holds the others
            yield
            return
        torch.cuda.synchronize()
        peaks["backward"] = max(peaks.get("backward", 0), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
        with timed(part):
            yield
        torch.cuda.synchronize()
        peaks[part] = max(peaks.get(part, 0), torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()

    trainer.step_metrics.timed = noted  # pyright: ignore[reportAttributeAccessIssue]
    return peaks


def measure_rollout(trainer: OPASDTrainer, length: int, rows: int, vocabulary: int) -> Row:
    sampling = RolloutConfig(max_new_tokens=length, max_batch=rows)
    prompts = [rollout.pair.student_ids for rollout in make_rollouts(rows, 16, vocabulary, 0)]
    trainer.engine.generate(prompts, sampling.model_copy(update={"max_new_tokens": 32}), range(rows))  # warm
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, start = torch.cuda.memory_allocated(), time.perf_counter()
    completions = trainer.engine.generate(prompts, sampling, range(rows))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return {
        "part": "rollout", "length": length, "rows": rows, "seconds": seconds, "before": before,
        "peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
        "tokens": sum(len(completion.ids) for completion in completions),
    }  # fmt: skip


def measure_update(trainer: OPASDTrainer, length: int, count: int, vocabulary: int) -> Row:
    rollouts = make_rollouts(count, length, vocabulary, 0, spread=0)
    step(trainer, rollouts[:2])
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    step(trainer, rollouts)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    timed, peaks = trainer.step_metrics.timed, peaks_by_part(trainer)
    step(trainer, rollouts)
    torch.cuda.synchronize()
    peaks["backward"] = max(peaks["backward"], torch.cuda.max_memory_allocated())
    trainer.step_metrics.timed = timed  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "part": "update", "length": length, "rollouts": count, "seconds": seconds, "before": before, "peak": peak,
        "reserved": reserved, "peaks": peaks, "student_tokens": sum(len(r.student_ids) for r in rollouts),
        "teacher_tokens": sum(len(r.teacher_ids) for r in rollouts),
    }  # fmt: skip


def run(model: str, lengths: list[int], options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for checkpointing, budget in ((True, options.budget), (False, options.plain_budget)):
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(Setup(model, budget, "auto", checkpointing, liger=True), folder, device)
            vocabulary = unwrap(trainer.student).config.vocab_size
            trainer.check()
            for length, attention in itertools.product(lengths, (True, False)):
                if not (checkpointing or attention):
                    continue
                weight = 0.5 if attention else 0.0
                objective = trainer.config.objective.model_copy(update={"attention_weight": weight})
                trainer.config = trainer.config.model_copy(update={"objective": objective})
                trainer._scoring = None
                trainer.check()
                row = {"model": model, "checkpointing": checkpointing, "budget": budget, "attention": attention}
                try:
                    row |= measure_update(trainer, length, options.rollouts, vocabulary)
                except torch.cuda.OutOfMemoryError as error:
                    row |= {"part": "update", "length": length, "out_of_memory": str(error)[:120]}
                rows.append(row)
                print(row, flush=True)
                if checkpointing and attention:
                    rows.append({"model": model} | measure_rollout(trainer, length, options.rows, vocabulary))
                    print(rows[-1], flush=True)
            del trainer
        gc.collect()
        torch.cuda.empty_cache()
    return rows


def compare(path: str) -> str:
    """Return a Markdown table of measured and planned memory."""
    lines = [
        "| model | phase | length | checkpointing | attention | in use, GiB | planned, GiB | error | reserved, GiB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in json.loads(Path(path).read_text())["rows"]:
        config, update = settings(row), row["part"] == "update"
        lengths = Lengths(PROMPT, SOLUTION, row["length"])
        plan = memory(config, Shape.of(SHAPES[row["model"]] | {"vocab_size": 151_936}), lengths, rollouts(row), 141e9)
        planned = sum(plan.held.values()) + sum((plan.update if update else plan.rollout).values())
        cells = [
            row["model"].upper(), row["part"], f"{row['length']:,}", yes_or_no(row.get("checkpointing")),
            yes_or_no(row.get("attention")), f"{row['peak'] / GIB:.1f}", f"{planned / GIB:.1f}",
            f"{planned / row['peak'] - 1:+.1%}", f"{row['reserved'] / GIB:.1f}",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def uneven(paths: list[str]) -> str:
    """Return how far plans are from the steps of `update_step.py`, whose rollouts have uneven lengths."""
    lines, errors = [], []
    for row in (row for path in paths for row in json.loads(Path(path).read_text())["rows"] if "peak_bytes" in row):
        drawn = make_rollouts(row["rollouts"], row["length"], 2, 0)
        longest = max(rollout.num_tokens for rollout in drawn)
        config = settings(row)
        config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"max_new_tokens": longest})})
        shape = Shape.of(SHAPES[row["model"]] | {"vocab_size": 151_936})
        plan = memory(config, shape, Lengths(PROMPT, SOLUTION, row["length"]), row["rollouts"], 141e9)
        errors.append((sum(plan.held.values()) + sum(plan.update.values())) / row["peak_bytes"] - 1)
        lines.append(f"{row['model']:5s} {row['rollouts']:3d} x {row['length']:6d} {errors[-1]:+7.1%}")
    within = sum(abs(error) <= 0.15 for error in errors)
    return "\n".join([*lines, f"{within} of {len(errors)} within 15 %, {min(errors):+.1%} to {max(errors):+.1%}", ""])


def settings(row: Row) -> RunConfig:
    """Return the configuration under which a row was measured."""
    return RunConfig.model_validate(
        {
            "model": {"dtype": "bfloat16"},
            "train": {"gradient_checkpointing": row.get("checkpointing", True)},
            "tokens_per_microbatch": row.get("budget", 32_768),
            "objective": {"attention_weight": 0.5 if row.get("attention", True) else 0.0},
            "rollout": {"max_new_tokens": row["length"], "max_batch": row.get("rows", 32)},
        }
    )


def rollouts(row: Row) -> int:
    return row.get("rollouts") or row["rows"]


def yes_or_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="1.7b,4b,8b")
    parser.add_argument("--lengths", default="1024,4096")
    parser.add_argument("--rollouts", type=int, default=16, help="rollouts of the update")
    parser.add_argument("--rows", type=int, default=32, help="rollouts that are sampled at a time")
    parser.add_argument("--budget", type=int, default=32_768, help="tokens of a micro-batch")
    parser.add_argument("--plain-budget", type=int, default=8_192, help="the same without checkpointing")
    parser.add_argument("--json", help="file for the raw figures")
    parser.add_argument("--compare", help="print the table of a file of raw figures, and measure nothing")
    parser.add_argument("--uneven", nargs="+", help="compare with records of update_step.py, and measure nothing")
    options = parser.parse_args()
    if options.compare or options.uneven:
        print(compare(options.compare) if options.compare else uneven(options.uneven), end="")
        return
    conditions = gpu_heading("Memory and time of a step, by part", 0)
    rows: list[Row] = []
    for model in options.models.split(","):
        rows += run(model, [int(length) for length in options.lengths.split(",")], options)
        save(options.json, conditions, rows)


if __name__ == "__main__":
    main()
