"""This machine's GPUs and cores, and how the runs of a sweep share them."""

import os
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """How many runs there are at a time, each in a slot of its own."""

    jobs: int = 1
    gpus: tuple[str, ...] = ()
    gpus_per_run: int = 1

    def environment(self, slot: int) -> dict[str, str]:
        """Return the environment of the runs in a slot: its GPUs, or its share of the cores."""
        if self.gpus and self.gpus_per_run:
            chosen = [self.gpus[(slot * self.gpus_per_run + n) % len(self.gpus)] for n in range(self.gpus_per_run)]
            return {"CUDA_VISIBLE_DEVICES": ",".join(chosen)}
        environment = {} if self.gpus_per_run else {"CUDA_VISIBLE_DEVICES": ""}
        if self.jobs > 1 and "OMP_NUM_THREADS" not in os.environ:
            environment["OMP_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // self.jobs))
        return environment

    def shared(self, slot: int, other: int) -> bool:
        """Return whether runs in two slots use the same GPU; without known GPUs all share the device."""
        first, second = (self.environment(n).get("CUDA_VISIBLE_DEVICES", "") for n in (slot, other))
        return not first or not second or not set(first.split(",")).isdisjoint(second.split(","))


def visible_gpus() -> tuple[str, ...]:
    """Return the GPUs that this process may use, without importing torch."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return tuple(part.strip() for part in chosen.split(",") if part.strip() not in ("", "-1"))
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(n) for n in range(sum(line.startswith("GPU ") for line in listed.splitlines())))
