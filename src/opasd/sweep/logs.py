"""The last message of a run's process, and whether the device was out of memory."""

import os
import re
from pathlib import Path

_OUT_OF_MEMORY = re.compile(
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
"""A line with such an exception; CUBLAS_STATUS_EXECUTION_FAILED and the like have other causes too."""
OTHER_PROCESS = re.compile(r"\bProcess \d+ has [\d.]+ GiB memory in use\b")
"""PyTorch's words, in a message about memory, for another process that holds much of it."""


def tail(path: Path, start: int = 0, size: int = 8192) -> bytes:
    """Return the end of a file, but nothing before `start`; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(end - size, start, 0))
            return file.read()
    except OSError:
        return b""


def last_words(log: Path, start: int) -> tuple[str, bool]:
    """Return the message with which a process failed, and whether the device was out of memory.

    It begins with the last line that is an error message or an exception about memory, since other processes and a
    launcher may write after it. Without such a line it is the last one.
    """
    lines = tail(log, start, 32768).decode(errors="replace").replace("\r", "\n").splitlines()
    memory = {number for number, line in enumerate(lines) if _OUT_OF_MEMORY.match(line)}
    first = max(memory | {number for number, line in enumerate(lines) if line.startswith("error: ")}, default=None)
    message = [line for line in lines if line.strip()][-1:] if first is None else lines[first:]
    return " ".join(" ".join(message).removeprefix("error: ").split())[:500], first in memory
