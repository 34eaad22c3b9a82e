r"""The algebra of grading, in a process that may be killed: `python -m opasd.grading.worker DESCRIPTOR`.

It receives (gold, answer, seconds) through the connection and replies with True, False, or None if the comparison was
killed or crashed. The process itself only waits. A child that it forked compares; if the child dies or takes too much
time or memory, it is killed and replaced in milliseconds. Its time is processor time, so that a busy machine changes no
verdict; on the clock it has twice as much.
"""

import ctypes
import json
import logging
import re
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

import sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify
from math_verify.grader import is_relation

from opasd.data.problems import Problem
from opasd.grading.equality import equal

MEMORY = 2 << 30
"""Address space that a comparison may add, in bytes."""
FLOAT_DIGITS = 12
"""Digits in which a decimal must agree with an expression: an approximation is no answer."""
_RELATIVE = "1e-12"
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\}|°|\{°\})|°|\\degree)", re.ASCII)
_PR_SET_PDEATHSIG = 1


def equal_by_algebra(gold: str, answer: str) -> bool:
    """Return whether two expressions are equal by math-verify; what cannot be parsed equals nothing."""
    first, second = _parse(gold), _parse(answer)
    if first is None or second is None or _points_and_interval(first, second):
        return False
    if verify([first], [second], float_rounding=FLOAT_DIGITS, allow_set_relation_comp=True, timeout_seconds=None):
        return _close(first, second) is not False
    return _same_complex(first, second) or _same_inequality(first, second)


def _parse(text: str) -> Any:
    # math-verify would take the variable m for metres; `equality` has removed real units.
    normal = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    target = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)
    text = text.replace("$", "").replace("\\varnothing", "\\emptyset")
    if _ANGLE_FUNCTION.search(text):
        text = _DEGREES.sub(r"{\\frac{\1\\pi}{180}}", text)
    parsed = parse(f"$${text}$$", [target], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not parsed:
        return None
    return _as_set(_with_real_roots(parsed[0]) if "\\sqrt[" in text else parsed[0], text)


def _with_real_roots(parsed: Any) -> Any:
    """Take the real root as the odd root of a negative number; the algebra takes a complex one."""
    if not isinstance(parsed, sympy.Basic):
        return parsed
    return parsed.replace(
        lambda term: (
            term.is_Pow and term.exp.is_Rational and term.exp.p == 1 and term.exp.q % 2 == 1 and term.base.is_negative
        ),
        lambda term: -((-term.base) ** term.exp),
    )


def _as_set(parsed: Any, text: str) -> Any:
    """Turn several inequalities into the set that satisfies all of them, or with `or` any of them."""
    if not isinstance(parsed, sympy.FiniteSet) or not all(map(is_relation, parsed.args)):
        return parsed
    sets = [relation.as_set() for relation in parsed.args]  # pyright: ignore[reportAttributeAccessIssue]
    return sympy.Union(*sets) if re.search(r"\bor\b|或", text) else sympy.Intersection(*sets)


def _solutions(side: Any) -> Any:
    """Return a set itself, or the set that satisfies an inequality; None if that is unknown."""
    if isinstance(side, sympy.Set):
        return side
    if not is_relation(side) or side.has(sympy.Eq):
        return None
    try:
        return side.as_set()
    except Exception:  # more than one variable, or too hard to solve
        return None


def _points_and_interval(first: Any, second: Any) -> bool:
    """Return whether one side is a list and the other an interval, which the algebra takes for its two ends."""
    listed = [isinstance(side, sympy.FiniteSet | sympy.Tuple) for side in (first, second)]
    return listed[0] != listed[1] and isinstance(_solutions(second if listed[0] else first), sympy.Interval)


def _same_inequality(first: Any, second: Any) -> bool:
    """Return whether two inequalities in the same variable have the same solutions."""
    if not all(map(is_relation, (first, second))) or first.free_symbols != second.free_symbols:
        return False
    solutions = _solutions(first)
    return solutions is not None and bool(solutions == _solutions(second))


def _close(first: Any, second: Any) -> bool | None:
    """Return whether two numbers agree relative to their size, however small; None if one is no finite number."""
    if not all(isinstance(side, sympy.Expr) and side.is_number for side in (first, second)):
        return None
    values = [sympy.N(side.doit(), 30) for side in (first, second)]
    if not all(value.is_finite for value in values):
        return None
    gap, size = abs(values[0] - values[1]), abs(values[0]) + abs(values[1])
    return bool(gap <= sympy.Float(_RELATIVE) * size)


def _same_complex(first: Any, second: Any) -> bool:
    """Return whether the sides are equal if i is the imaginary unit."""
    units = [symbol for side in (first, second) for symbol in getattr(side, "free_symbols", ()) if symbol.name == "i"]
    if not units or not all(isinstance(side, sympy.Expr) for side in (first, second)):
        return False
    first, second = (side.subs(dict.fromkeys(units, sympy.I)) for side in (first, second))
    return _close(first, second) is True or bool(sympy.simplify(sympy.expand(first - second)) == 0)


def compare(gold: str, answer: str) -> bool | None:
    """Return whether two answers are equal; None if the comparison failed."""
    try:
        return equal(gold, answer, equal_by_algebra)
    except Exception:  # the parser and the algebra raise all kinds
        return None


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
        comparison = compare
        assert equal_by_algebra("\\sqrt{12}", "2\\sqrt{3}")  # children inherit the modules that this loads
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
