"""Which tiles the attention loss's kernels are fastest with, on a GPU.

    python benchmarks/attention_tiles.py [--shapes 32x4096 16x4096 32x1024] [--json FILE]

Every kernel's median time for each of its tiles (heads x response tokens; bfloat16, heads of 128, prompt 256, solution
1,024), its launch included. The tiles are compiled by processes side by side before anything is timed. What wins goes
into `opasd.losses.fused.attention.tiling`.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from attention_loss import gpu_inputs, gradients

from opasd.losses.attention import attention_losses
from opasd.losses.fused import attention
from opasd.losses.fused.attention import Tile, Tiling
from opasd.losses.fused.launch import launch

NORMALISERS = [(128, 64, 8, 3), (128, 128, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3), (64, 128, 4, 3), (128, 64, 8, 4)]
AVERAGES = [(64, 64, 4, 3, 1), (64, 64, 4, 2, 2), (64, 128, 8, 2, 4), (128, 128, 8, 2, 2), (64, 64, 4, 2, 4),
            (64, 128, 8, 2, 2)]  # fmt: skip
QUERIES = [(64, 64, 4, 3), (64, 64, 4, 2), (128, 64, 8, 3), (64, 32, 4, 3), (64, 128, 4, 2), (128, 32, 4, 3)]
KEYS = [
    (64, 64, 4, 2, 2),
    (64, 64, 4, 2, 1),
    (64, 128, 8, 2, 2),
    (32, 64, 4, 3, 1),
    (64, 64, 4, 3, 1),
    (32, 64, 4, 2, 2),
]
BLOCKS = [(1024, 4), (512, 4), (2048, 8), (2048, 4), (1024, 8), (512, 2)]
Events = list[tuple[str, torch.cuda.Event, torch.cuda.Event]]
KERNELS = ("normalisers", "averages", "comparison", "query_gradients", "key_gradients")


def tilings() -> list[Tiling]:
    columns = zip(NORMALISERS, AVERAGES, QUERIES, KEYS, BLOCKS, strict=True)
    return [
        Tiling(Tile(*a), Tile(*b), Tile(*c), Tile(*d), block=block, block_warps=warps)
        for a, b, c, d, (block, warps) in columns
    ]


def timed(events: Events) -> Callable[..., None]:
    """`launch` with events around it."""

    def launch_timed(kernel: Any, *args: Any, **kwargs: Any) -> None:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        launch(kernel, *args, **kwargs)
        stop.record()
        events.append((kernel.fn.__name__, start, stop))

    return launch_timed


def run(heads: int, tokens: int, tiles: Tiling, repeats: int) -> dict[str, float]:
    student, teacher, alignment = gpu_inputs(heads, tokens, torch.bfloat16)
    attention.tiling = lambda *_: tiles
    events: Events = []
    attention.launch = timed(events)
    times: dict[str, list[float]] = {name: [] for name in KERNELS}
    for _ in range(repeats + 2):
        events.clear()
        torch.cuda._sleep(2_000_000)  # the host is ahead when the kernels start
        gradients(attention_losses(student, teacher, [alignment], impl="fused").loss, student)
        torch.cuda.synchronize()
        for name in KERNELS:
            times[name].append(sum(a.elapsed_time(b) for kernel, a, b in events if kernel == name))
    return {name: statistics.median(column[2:]) for name, column in times.items()}


def compile_beside(jobs: list[tuple[int, int]]) -> None:
    def start(job: tuple[int, int]) -> None:
        subprocess.run([sys.executable, __file__, "--child", *map(str, job)], check=True)

    with ThreadPoolExecutor(14) as pool:
        list(pool.map(start, jobs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["32x4096", "16x4096", "32x1024"])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        heads, number = arguments.child
        run(heads, 256, tilings()[number], 0)
        return
    shapes = [(int(heads), int(tokens)) for heads, tokens in (shape.split("x") for shape in arguments.shapes)]
    compile_beside([(heads, i) for heads in {heads for heads, _ in shapes} for i in range(len(NORMALISERS))])
    results: dict[str, list[dict[str, float]]] = {}
    for heads, tokens in shapes:
        found = results[f"{heads}x{tokens}"] = [run(heads, tokens, tiles, 9) for tiles in tilings()]
        print(f"\n{heads} heads, {tokens} tokens: ms for each tile (steps, keys, warps, stages, heads; keys, warps)")
        for name, tiles in zip(KERNELS, (NORMALISERS, AVERAGES, BLOCKS, QUERIES, KEYS), strict=True):
            order = sorted(range(len(tiles)), key=lambda i, name=name: found[i][name])
            print(f"  {name:16s}" + "  ".join(f"{tiles[i]} {found[i][name]:.3f}" for i in order))
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"gpu": torch.cuda.get_device_name(), "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
