r"""The algebra of grading, in a process that may be killed: `python -m opasd.evaluation.worker`.

Reads `{"gold": …, "found": …, "seconds": …}` a line and answers `{"equal": true | false | null}` a line, null where the
comparison was killed or crashed. The process itself only waits: each comparison runs in a child forked from it, which
is killed and replaced, in milliseconds, when it takes too much time or memory or dies. Time is the child's own on the
processor, so that a busy machine changes no verdict, until twice of it has passed on the clock.
"""

import ctypes
import json
import os
import re
import resource
import select
import signal
import sys
import warnings
from typing import Any, BinaryIO

from opasd.evaluation.comparing import equal

MEMORY = 2 << 30
"""Address space a comparison may add, in bytes."""
FLOAT_DIGITS = 12
"""Digits to which a decimal must agree with what is no decimal: an approximation is no answer."""
_RELATIVE = "1e-12"
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\}|°|\{°\})|°|\\degree)", re.ASCII)
_PR_SET_PDEATHSIG = 1


def algebra_says(gold: str, found: str) -> bool:
    """Whether two expressions are equal, by math-verify; what cannot be parsed equals nothing."""
    mine, theirs = _parse(gold), _parse(found)
    if mine is None or theirs is None:
        return False
    from math_verify import verify

    if verify([mine], [theirs], float_rounding=FLOAT_DIGITS, allow_set_relation_comp=True, timeout_seconds=None):
        return not _far_apart(mine, theirs)
    return _same_complex(mine, theirs)


def _parse(text: str) -> Any:
    from latex2sympy2_extended.math_normalization import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse

    # Its own units would take the variable m for metres; `comparing` has taken real ones off.
    normal = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    target = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)
    text = text.replace("$", "").replace("\\varnothing", "\\emptyset")
    if _ANGLE_FUNCTION.search(text):
        text = _DEGREES.sub(r"{\\frac{\1\\pi}{180}}", text)
    found = parse(f"$${text}$$", [target], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    return _as_set(found[0], text) if found else None


def _as_set(parsed: Any, text: str) -> Any:
    """Several inequalities as the set they leave together, or either of them with `or`; anything else as it is."""
    import sympy
    from math_verify.grader import is_relation

    if not isinstance(parsed, sympy.FiniteSet) or not all(map(is_relation, parsed.args)):
        return parsed
    sets = [relation.as_set() for relation in parsed.args]  # pyright: ignore[reportAttributeAccessIssue]
    return sympy.Union(*sets) if re.search(r"\bor\b|或", text) else sympy.Intersection(*sets)


def _far_apart(mine: Any, theirs: Any) -> bool:
    """Whether two numbers that pass for equal differ relative to their size: tiny ones are not all the same."""
    import sympy

    if not all(isinstance(side, sympy.Expr) and side.is_number for side in (mine, theirs)):
        return False
    values = [sympy.N(side.doit(), 30) for side in (mine, theirs)]
    if not all(value.is_finite for value in values):
        return False
    gap, size = abs(values[0] - values[1]), abs(values[0]) + abs(values[1])
    return bool(gap > sympy.Float(_RELATIVE) * size)


def _same_complex(mine: Any, theirs: Any) -> bool:
    """Whether the sides are equal once i is the imaginary unit."""
    import sympy

    units = [symbol for side in (mine, theirs) for symbol in getattr(side, "free_symbols", ()) if symbol.name == "i"]
    if not units or not all(isinstance(side, sympy.Expr) for side in (mine, theirs)):
        return False
    difference = (mine - theirs).subs(dict.fromkeys(units, sympy.I))
    return bool(sympy.simplify(sympy.expand(difference)) == 0)


def compare(gold: str, found: str) -> bool | None:
    """The whole comparison; None where it failed."""
    try:
        return equal(gold, found, algebra_says)
    except Exception:  # whatever the parser and the algebra think of
        return None


class _Child:
    """A forked process that compares, line by line, until it is killed."""

    def __init__(self) -> None:
        job_read, self._jobs = os.pipe()
        self._answers, answer_write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._jobs)
                os.close(self._answers)
                _serve(os.fdopen(job_read, "rb"), os.fdopen(answer_write, "wb", 0))
            finally:
                os._exit(0)
        os.close(job_read)
        os.close(answer_write)

    def ask(self, line: bytes, seconds: float) -> bytes | None:
        """The child's answer; None, and no child any more, where there was none in time."""
        try:
            os.write(self._jobs, line)  # shorter than a pipe's buffer
            if select.select([self._answers], [], [], seconds)[0] and (answer := os.read(self._answers, 64)):
                return answer
        except BrokenPipeError:
            pass
        self.close()
        return None

    def close(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self._jobs)
        os.close(self._answers)


def _serve(jobs: BinaryIO, answers: BinaryIO) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in jobs:
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, job["seconds"])  # the system ends the process, whatever Python does
        answers.write(json.dumps({"equal": compare(job["gold"], job["found"])}).encode() + b"\n")


def main() -> None:
    """Serve standard input; whatever the libraries print goes nowhere."""
    import logging

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    replies = os.fdopen(os.dup(1), "wb", 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    assert algebra_says("\\sqrt{12}", "2\\sqrt{3}")  # children inherit what this loads
    child = _Child()
    replies.write(b'{"ready": true}\n')
    for line in sys.stdin.buffer:
        answer = child.ask(line, 2 * json.loads(line)["seconds"])
        if answer is None:
            child = _Child()
        replies.write(answer or b'{"equal": null}\n')
    child.close()


if __name__ == "__main__":
    main()
