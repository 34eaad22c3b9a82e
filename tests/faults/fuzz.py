"""Hostile input for as long as one likes (`make fuzz`).

    python -m tests.faults.fuzz [--seconds 60] [--seed 0] [NAME ...]

Each target gets so many seconds. The line of a target says how many inputs were tried; a failure shows the smallest
input that hypothesis finds, and ends with exit code 1.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from tests.faults.targets import TARGETS, Draw

BATCH = 100
HANGS = 600
"""Seconds after which one input counts as hung."""


def fuzz(target: Callable[[Path, Draw], None], seconds: float, first_seed: int = 0) -> tuple[int, str]:
    """Try inputs for so many seconds; return how many, and the account of a failure or an empty text."""
    tried, end, batch = 0, time.monotonic() + seconds, first_seed

    def hung(_number: int, _frame: FrameType | None) -> None:
        raise AssertionError(f"an input did not end within {HANGS} s")

    with tempfile.TemporaryDirectory(prefix="opasd-fuzz-") as place:

        @settings(max_examples=BATCH, deadline=None, database=None, suppress_health_check=list(HealthCheck))
        @given(data=st.data())
        def one(data: st.DataObject) -> None:
            nonlocal tried
            tried += 1
            signal.alarm(HANGS)
            try:
                target(Path(place), data.draw)
            finally:
                signal.alarm(0)

        previous = signal.signal(signal.SIGALRM, hung)
        try:
            while time.monotonic() < end:
                seed(batch)(one)()
                batch += 1
        except BaseException:  # also several failures, as a group
            return tried, traceback.format_exc()
        finally:
            signal.signal(signal.SIGALRM, previous)
    return tried, ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    failures = 0
    for target in TARGETS:
        if options.names and target.__name__ not in options.names:
            continue
        tried, failure = fuzz(target, options.seconds, options.seed)
        failures += bool(failure)
        sys.stdout.write(f"{failure}{target.__name__}: {tried:,} inputs, {'failed' if failure else 'as promised'}\n")
        sys.stdout.flush()
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
