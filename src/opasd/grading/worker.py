"""Grading in a process that may be killed: `python -m opasd.grading.worker DESCRIPTOR [MODULE:FUNCTION]`.

It receives (gold, answer, seconds) through the connection and replies with True, False, or None if the comparison was
killed or crashed; a grader from outside gets a problem and a completion instead. The process itself only waits. A child
that it forked compares; if the child dies or takes too much time or memory, it is killed and replaced in milliseconds.
Its time is processor time, so that a busy machine changes no verdict; on the clock it has twice as much.
"""

import ctypes
import json
import logging
import resource
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pkgutil import resolve_name
from typing import Any

from opasd.data.problems import Problem

MEMORY = 2 << 30
"""Address space that a comparison may add, in bytes."""
_PR_SET_PDEATHSIG = 1


def grade_by(function: Callable[[Problem, str], Any]) -> Callable[[str, str], bool | None]:
    """Return a comparison that asks a grader from outside, given a problem as JSON and a completion."""

    def grade(problem: str, completion: str) -> bool | None:
        try:
            return bool(float(function(Problem(**json.loads(problem)), completion)) >= 0.5)
        except Exception:  # whatever the function raises
            return None

    return grade


class _Child:
    """A forked process that compares pair after pair until it is killed."""

    def __init__(self, comparison: Callable[[str, str], bool | None]) -> None:
        self._connection, child_end = Pipe()
        arguments = (child_end, self._connection, comparison)
        self._process = get_context("fork").Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        child_end.close()

    def ask(self, gold: str, answer: str, seconds: float) -> bool | None:
        """Return the child's verdict; raise an error if there is none in time, or if the child died."""
        self._connection.send((gold, answer, seconds))
        if self._connection.poll(2 * seconds):
            return self._connection.recv()
        raise TimeoutError

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(pairs: Connection, parent_end: Connection, comparison: Callable[[str, str], bool | None]) -> None:
    parent_end.close()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError):
        while True:
            gold, answer, seconds = pairs.recv()
            signal.setitimer(signal.ITIMER_PROF, seconds)  # the system ends the process, even inside a C function
            pairs.send(comparison(gold, answer))


def main() -> None:
    """Compare the pairs that come through the file descriptor in the first argument, until its other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if len(sys.argv) > 2:
        comparison = grade_by(resolve_name(sys.argv[2]))
    else:
        from opasd.grading.algebra import compare as comparison  # a grader from outside does without

        assert comparison("\\sqrt{12}", "2\\sqrt{3}")  # children inherit the modules that this loads
    pairs, child = Connection(int(sys.argv[1])), _Child(comparison)
    with suppress(EOFError):
        while True:
            pair = pairs.recv()
            try:
                equal = child.ask(*pair)
            except (TimeoutError, EOFError, OSError):
                child.kill()
                child, equal = _Child(comparison), None
            pairs.send(equal)
    child.kill()


if __name__ == "__main__":
    main()
