"""Peak memory and time of one computation, each in a process of its own so that nothing is left over from another."""

import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

Step = Callable[[], None]


def peak_bytes() -> int:
    """High-water mark of this process's resident memory (Linux), else what the system counted for it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def report(prepare: Callable[[], Step], repeats: int) -> None:
    """In the child: print the least seconds of a step and the memory it needed beyond its inputs."""
    step = prepare()
    before = peak_bytes()
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({"seconds": min(seconds[1:]), "bytes": peak_bytes() - before}))


def in_child(script: str, *arguments: str) -> dict[str, float]:
    """In the parent: run `script` twice, once for its time and once for its memory, and read what `report` printed."""
    timed, weighed = (_child(environment, script, *arguments) for environment in (quiet_threads(), exact_memory()))
    return {"seconds": timed["seconds"], "bytes": weighed["bytes"]}


def _child(environment: dict[str, str], script: str, *arguments: str) -> dict[str, float]:
    command = [sys.executable, script, *arguments]
    return json.loads(subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True).stdout)


def quiet_threads() -> dict[str, str]:
    """An environment in which threads that wait do not spin: beside other programs they would time one another."""
    return os.environ | {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}


def exact_memory() -> dict[str, str]:
    """An environment in which freed memory goes back at once: the peak is the computation's, not the allocator's."""
    return os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}


def heading(title: str) -> None:
    print(f"{title}\ntorch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}\n")


def table(rows: list[tuple[str, dict[str, float]]], baseline: dict[str, float]) -> None:
    """Time and memory of each row, and both as ratios to the baseline."""
    print(f"{'':28s}{'seconds':>10s}{'ratio':>8s}{'MiB':>10s}{'ratio':>8s}")
    for name, result in rows:
        print(
            f"{name:28s}{result['seconds']:10.2f}{result['seconds'] / baseline['seconds']:8.2f}"
            f"{result['bytes'] / 2**20:10.0f}{result['bytes'] / baseline['bytes']:8.3f}"
        )
