r"""The algebra of grading, in a process that may be killed: `python -m opasd.grading.worker`.

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

from opasd.grading.equality import equal

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

    if _points_and_interval(mine, theirs):
        return False
    if verify([mine], [theirs], float_rounding=FLOAT_DIGITS, allow_set_relation_comp=True, timeout_seconds=None):
        return _close(mine, theirs) is not False
    return _same_complex(mine, theirs) or _same_inequality(mine, theirs)


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
    if not found:
        return None
    return _as_set(_with_real_roots(found[0]) if "\\sqrt[" in text else found[0], text)


def _with_real_roots(parsed: Any) -> Any:
    """With the real root for an odd root of a negative number, where the algebra has a complex one."""
    import sympy

    if not isinstance(parsed, sympy.Basic):
        return parsed
    return parsed.replace(
        lambda part: (
            part.is_Pow and part.exp.is_Rational and part.exp.p == 1 and part.exp.q % 2 == 1 and part.base.is_negative
        ),
        lambda part: -((-part.base) ** part.exp),
    )


def _as_set(parsed: Any, text: str) -> Any:
    """Several inequalities as the set they leave together, or either of them with `or`; anything else as it is."""
    import sympy
    from math_verify.grader import is_relation

    if not isinstance(parsed, sympy.FiniteSet) or not all(map(is_relation, parsed.args)):
        return parsed
    sets = [relation.as_set() for relation in parsed.args]  # pyright: ignore[reportAttributeAccessIssue]
    return sympy.Union(*sets) if re.search(r"\bor\b|或", text) else sympy.Intersection(*sets)


def _solutions(side: Any) -> Any:
    """The set that a side is, or that an inequality leaves; None where that cannot be told."""
    import sympy
    from math_verify.grader import is_relation

    if isinstance(side, sympy.Set):
        return side
    if not is_relation(side) or side.has(sympy.Eq):
        return None
    try:
        return side.as_set()
    except Exception:  # more than one variable, and whatever it cannot solve
        return None


def _points_and_interval(mine: Any, theirs: Any) -> bool:
    """Whether one side is a list and the other an interval, which the algebra would take for its two ends."""
    import sympy

    listed = [isinstance(side, sympy.FiniteSet | sympy.Tuple) for side in (mine, theirs)]
    return listed[0] != listed[1] and isinstance(_solutions(theirs if listed[0] else mine), sympy.Interval)


def _same_inequality(mine: Any, theirs: Any) -> bool:
    """Whether two inequalities in the same variable have the same solutions."""
    from math_verify.grader import is_relation

    if not all(map(is_relation, (mine, theirs))) or mine.free_symbols != theirs.free_symbols:
        return False
    solutions = _solutions(mine)
    return solutions is not None and bool(solutions == _solutions(theirs))


def _close(mine: Any, theirs: Any) -> bool | None:
    """Whether two numbers agree relative to their size, tiny ones too; None where they are no finite numbers."""
    import sympy

    if not all(isinstance(side, sympy.Expr) and side.is_number for side in (mine, theirs)):
        return None
    values = [sympy.N(side.doit(), 30) for side in (mine, theirs)]
    if not all(value.is_finite for value in values):
        return None
    gap, size = abs(values[0] - values[1]), abs(values[0]) + abs(values[1])
    return bool(gap <= sympy.Float(_RELATIVE) * size)


def _same_complex(mine: Any, theirs: Any) -> bool:
    """Whether the sides are equal once i is the imaginary unit."""
    import sympy

    units = [symbol for side in (mine, theirs) for symbol in getattr(side, "free_symbols", ()) if symbol.name == "i"]
    if not units or not all(isinstance(side, sympy.Expr) for side in (mine, theirs)):
        return False
    mine, theirs = (side.subs(dict.fromkeys(units, sympy.I)) for side in (mine, theirs))
    return _close(mine, theirs) is True or bool(sympy.simplify(sympy.expand(mine - theirs)) == 0)


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
