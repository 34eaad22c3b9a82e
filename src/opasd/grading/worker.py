"""Grading in a process that may be killed: `python -m opasd.grading.worker DESCRIPTOR [MODULE:FUNCTION]`.

It receives (gold, answer, tolerance) and seconds through the connection and replies with True, False, or None if the
comparison was killed or crashed; a grader from outside gets a problem and a completion instead. The process itself only
waits. A child that it forked compares; if the child dies or takes too much time or memory, it is killed and replaced in
milliseconds. Its time is processor time, so that a busy machine changes no verdict. The clock counts only while the
child sleeps, which a comparison never does.
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
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from opasd.data.problems import Problem

MEMORY = 2 << 30
"""Address space that a comparison may add, in bytes."""
_PR_SET_PDEATHSIG = 1


Comparison = Callable[[str, str, float], bool | None]


def grade_by(function: Callable[[Problem, str], Any]) -> Comparison:
    """Return a comparison that asks a grader from outside, given a problem as JSON and a completion."""

    def grade(problem: str, completion: str, _: float) -> bool | None:
        try:
            return bool(float(function(Problem(**json.loads(problem)), completion)) >= 0.5)
        except Exception:  # whatever the function raises
            return None

    return grade


class _Child:
    """A forked process that compares pair after pair until it is killed."""

    def __init__(self, comparison: Comparison) -> None:
        self._connection, child_end = Pipe()
        arguments = (child_end, self._connection, comparison)
        self._process = get_context("fork").Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        child_end.close()

    def ask(self, pair: tuple[str, str, float], seconds: float) -> bool | None:
        """Return the child's verdict; raise an error if it sleeps, or if it died, also of too much processor time."""
        self._connection.send((pair, seconds))
        used = self._processor_time()
        while not self._connection.poll(2 * seconds):
            before, used = used, self._processor_time()
            if used == before:  # it neither runs nor waits for a processor
                raise TimeoutError
        return self._connection.recv()

    def _processor_time(self) -> object:
        """Return a value that changes while the child runs or waits for a processor; the same one if it sleeps."""
        try:
            state, *fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # not Linux, or it has just ended
            return None
        return object() if state in "RD" else fields[10:12]

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(pairs: Connection, parent_end: Connection, comparison: Comparison) -> None:
    parent_end.close()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(EOFError):
        while True:
            pair, seconds = pairs.recv()
            signal.setitimer(signal.ITIMER_PROF, seconds)  # the system ends the process, even inside a C function
            pairs.send(comparison(*pair))


def main() -> None:
    """Compare the pairs that come through the file descriptor in the first argument, until its other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    if len(sys.argv) > 2:
        comparison = grade_by(resolve_name(sys.argv[2]))
    else:
        from opasd.grading.algebra import compare as comparison  # a grader from outside does without

        assert comparison("\\sqrt{12}", "2\\sqrt{3}", 0.0)  # children inherit the modules that this loads
    pairs, child = Connection(int(sys.argv[1])), _Child(comparison)
    with suppress(EOFError):
        while True:
            pair, seconds = pairs.recv()
            try:
                equal = child.ask(pair, seconds)
            except (TimeoutError, EOFError, OSError):
                child.kill()
                child, equal = _Child(comparison), None
            pairs.send(equal)
    child.kill()


if __name__ == "__main__":
    main()
