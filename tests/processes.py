"""Other processes in tests: they run the same package, and a test waits for what they do, however slow the machine."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import opasd

ROOT = Path(__file__).parents[1]
PATIENCE = 1500.0
"""Seconds after which a process counts as hung. No test takes a tenth of it, so a slow machine is no failure."""


def environment(*first: Path, **values: str) -> dict[str, str]:
    """Return this process's environment, with the package under test, the tests and one thread for another process."""
    paths = [*first, Path(opasd.__file__).parents[1], ROOT]
    return os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"} | values


def run(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command to its end and return its exit code and its output."""
    given: dict[str, Any] = {"capture_output": True, "text": True, "timeout": PATIENCE, "env": environment()}
    return subprocess.run(command, check=False, **(given | options))


def wait_until(condition: Callable[[], object], process: Any = None) -> None:
    """Wait until the condition holds; fail at once when the process that should fulfil it has ended."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if process is not None and process.poll() is not None:
            assert condition(), f"the process ended with exit code {process.returncode} before that"
        assert time.monotonic() < deadline, "that never happened"
        time.sleep(0.01)
