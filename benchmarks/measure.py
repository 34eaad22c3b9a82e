"""Peak memory and time of one computation: on a CPU each in a process of its own, on a GPU by the device's clock."""

import importlib.metadata
import itertools
import json
import os
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def on_gpu(step: Callable[[], object], *, seconds: float = 0.5, least: int = 5, most: int = 50) -> dict[str, float]:
    """Median seconds of a call, and the most bytes one allocates beyond what was there.

    Calls are queued one behind the other, as in training, and the device says when each was done: the host's own time
    counts only where the device waits for it. Results are freed before the next call.
    """
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    start = time.perf_counter()
    step()
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    extra = torch.cuda.max_memory_allocated() - before
    repeats = max(least, min(most, int(seconds / once)))
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    milliseconds = [a.elapsed_time(b) for a, b in itertools.pairwise(events)]
    return {"seconds": statistics.median(milliseconds) / 1e3, "bytes": extra}


def conditions(seed: int) -> dict[str, Any]:
    """What a figure must come with: the command, the versions, the machine, the seed."""
    packages = ("torch", "triton", "transformers", "liger-kernel", "trl")
    return {
        "command": shlex.join([Path(sys.executable).name, *sys.orig_argv[1:]]),
        "seed": seed,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "versions": {name: version(name) for name in packages},
    }


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def gpu_heading(title: str, seed: int) -> dict[str, Any]:
    """Print the title and the conditions; give the conditions."""
    found = conditions(seed)
    versions = ", ".join(f"{name} {number}" for name, number in found["versions"].items())
    print(f"{title}\n{found['device']}, CUDA {found['cuda']}, Python {found['python']}; {versions}")
    print(f"{found['command']} (seed {seed})\n", flush=True)
    return found


def save(path: str | None, found: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """The raw figures and their conditions, where a path was given."""
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps(found | {"rows": rows}, indent=1) + "\n")
