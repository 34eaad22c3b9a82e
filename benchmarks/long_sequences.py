"""Memory and time of an update on one long rollout, with and without activations in the host's memory.

    python benchmarks/long_sequences.py --model 1.7b --lengths 8192,16384,32768,65536 --json results/long.json
    python benchmarks/long_sequences.py --planned --lengths 8192,16384,32768,65536,131072
    python benchmarks/long_sequences.py --compare results/long.json

Random weights in Qwen3's shapes, LoRA r = 64, bfloat16, gradient checkpointing, the trainer's own step: teacher,
student, both losses, backward, AdamW. One rollout of the given length in a step, after a prompt of 256 tokens; the
teacher also reads a solution of 1,024. Each case is run once to warm up, if its time allows, and once to measure.
--planned and --compare need no GPU: they print what `opasd plan` computes for such updates, of all models or of those
that were measured.
"""

import argparse
import gc
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from measure import gpu_heading, save
from update_step import Setup, change, make_rollouts, make_trainer, step

from opasd.config import RunConfig
from opasd.device import short_of_memory
from opasd.model.unwrap import unwrap
from opasd.plan.memory import GIB, Lengths, Memory, memory
from opasd.plan.shapes import KNOWN, Shape
from opasd.plan.speed import GPUS, Gpu
from opasd.plan.table import MODELS
from opasd.trainer.trainer import OPASDTrainer


def measure(trainer: OPASDTrainer, length: int, *, offload: bool, vocabulary: int, warm: bool) -> dict[str, Any]:
    """Return the peak and the seconds of one step on one rollout."""
    row: dict[str, Any] = {"length": length, "offload": offload}
    change(trainer, {"offload_activations": offload})
    rollouts = make_rollouts(1, length, vocabulary, 0, spread=0)
    cuda = torch.cuda.is_available()
    try:
        for _ in range(1 + warm):
            gc.collect()
            if cuda:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
                row["before"] = torch.cuda.memory_allocated()
            start = time.perf_counter()
            step(trainer, rollouts)
            if cuda:
                torch.cuda.synchronize()
            row["seconds"] = time.perf_counter() - start
    except RuntimeError as error:
        if not short_of_memory(error):
            raise
        trainer.zero_gradients()
        return row | {"out_of_memory": str(error).splitlines()[0][:160]}
    if cuda:
        row |= {"peak": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    return row


def planned(lengths: list[int], gpu: Gpu) -> None:
    """Print the memory that a GPU needs for an update on one rollout, GiB, and in brackets what waits on the host."""
    columns = [f"{length:,}{', offloaded' if offload else ''}" for length in lengths for offload in (False, True)]
    print(f"| model | {' | '.join(columns)} |\n|{'---|' * (1 + len(columns))}")
    for model in MODELS:
        shape, cells = Shape.of(KNOWN[f"Qwen/Qwen3-{model}"]), []
        for length in lengths:
            for offload in (False, True):
                needs = plan_of(shape, length, gpu, offload=offload)
                host = f" ({sum(needs.host.values()) / GIB:.0f})" if offload else ""
                cells.append(f"{needs.needed / GIB:.0f}{host}" + ("" if needs.needed <= gpu.memory else ", too much"))
        print(f"| {model} | {' | '.join(cells)} |")


def plan_of(shape: Shape, length: int, gpu: Gpu, *, offload: bool) -> Memory:
    """Return the memory of an update on one rollout of this length."""
    settings = {"model": {"dtype": "bfloat16"}, "rollout": {"max_new_tokens": length}, "offload_activations": offload}
    config = RunConfig.model_validate(settings)
    return replace(memory(config, shape, Lengths(256, 1024, length), 1, gpu.memory), rollout={})


def compare(path: str, gpu: Gpu) -> None:
    """Print what was measured beside what is planned."""
    found = json.loads(Path(path).read_text())
    shape = Shape.of(KNOWN[f"Qwen/Qwen3-{found['model'].upper()}"])
    print("| tokens | offloaded | in use, GiB | planned, GiB | error | reserved, GiB |\n|---|---|---|---|---|---|")
    for row in (row for row in found["rows"] if "peak" in row):
        planned, offload = plan_of(shape, row["length"], gpu, offload=row["offload"]).peak, row["offload"]
        cells = [f"{row['length']:,}", "yes" if offload else "no", f"{row['peak'] / GIB:.1f}", f"{planned / GIB:.1f}"]
        cells += [f"{planned / row['peak'] - 1:+.1%}", f"{row['reserved'] / GIB:.1f}"]
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1.7b")
    parser.add_argument("--lengths", default="8192,16384,32768,65536")
    parser.add_argument("--seconds", type=float, default=80, help="Begin no case after so many.")
    parser.add_argument("--json")
    parser.add_argument("--planned", action="store_true", help="Print what is planned; measure nothing.")
    parser.add_argument("--compare", help="Print the table of a file of raw figures; measure nothing.")
    options = parser.parse_args()
    if options.compare:
        compare(options.compare, GPUS["h200"])
        return
    if options.planned:
        planned([int(length) for length in options.lengths.split(",")], GPUS["h200"])
        return
    found = gpu_heading("An update on one long rollout", 0)
    began, rows = time.perf_counter(), []
    lengths = [int(length) for length in options.lengths.split(",")]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as folder:
        setup = Setup(options.model, 10**9, "auto", checkpointing=True, liger=device == "cuda")
        trainer = make_trainer(setup, folder, device, positions=max(40_960, max(lengths) + 4096))
        vocabulary = unwrap(trainer.student).config.vocab_size
        trainer.check()
        measure(trainer, 1024, offload=True, vocabulary=vocabulary, warm=False)  # kernels compile
        print(f"{'tokens':>8s} {'offload':>8s} {'peak GiB':>9s} {'reserved':>9s} {'seconds':>8s}")
        for length in lengths:
            for offload in (False, True):
                if time.perf_counter() - began > options.seconds:
                    print(f"{length:8d}  no time left", flush=True)
                    continue
                warm = length <= 16_384
                row = measure(trainer, length, offload=offload, vocabulary=vocabulary, warm=warm)
                rows.append(row)
                memory = [f"{row.get(name, 0) / 2**30:9.1f}" for name in ("peak", "reserved")]
                shown = "out of memory" if "out_of_memory" in row else f"{row['seconds']:8.2f}"
                print(f"{length:8d} {offload!s:>8s} {' '.join(memory)} {shown}", flush=True)
                if options.json:
                    Path(options.json).parent.mkdir(parents=True, exist_ok=True)
                    save(options.json, found | {"model": options.model}, rows)


if __name__ == "__main__":
    main()
