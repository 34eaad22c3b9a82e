"""What a run's process said last, and whether it was short of the device's memory."""

import os
import re
from pathlib import Path

_SHORT_OF_MEMORY = re.compile(
    r"(?:\[rank\d+\]: *)?"  # PyTorch's, where there are several processes
    r"(?:torch\.(?:cuda\.)?OutOfMemoryError: "
    r"|(?: *what\(\)|error|[\w.]+(?:Error|Exception)): .*"  # what a log only mentions does not count
    r"(?:\b(?:CUDA|HIP) out of memory"
    r"|\b(?:CUDA|HIP) error: out of memory"
    r"|\bTriton Error \[(?:CUDA|HIP)\]: out of memory"
    r"|\b(?:CU|HIP)BLAS_STATUS_ALLOC_FAILED\b"
    r"|\bmha_graph\.execute\("  # cuDNN's attention
    r"|\bFree memory on device .* is less than desired GPU memory utilization))"  # vLLM's
)
"""A line in which an exception says so; CUBLAS_STATUS_EXECUTION_FAILED and the like have other causes too."""


_STRANGERS = re.compile(r"\bProcess \d+ has [\d.]+ GiB memory in use\b")
"""How PyTorch tells of other processes on the device; those that hold little are no reason."""


def tail(path: Path, start: int = 0, size: int = 8192) -> bytes:
    """The end of a file, but nothing before `start`; nothing where it cannot be read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - size, start, 0))
            return file.read()
    except OSError:
        return b""


def last_words(log: Path, start: int) -> tuple[str, bool]:
    """What a process said went wrong, and whether that is too little memory on the device.

    It is the last error message, or exception that tells of memory: other processes and a launcher may speak after it.
    Without one it is the last line.
    """
    lines = tail(log, start, 32768).decode(errors="replace").replace("\r", "\n").splitlines()
    short = {place for place, line in enumerate(lines) if _SHORT_OF_MEMORY.match(line)}
    told = max(short | {place for place, line in enumerate(lines) if line.startswith("error: ")}, default=None)
    chosen = [line for line in lines if line.strip()][-1:] if told is None else lines[told:]
    return " ".join(" ".join(chosen).removeprefix("error: ").split())[:500], told in short


def beside_strangers(message: str) -> bool:
    """Whether a message about memory tells of other processes that hold it."""
    return _STRANGERS.search(message) is not None
