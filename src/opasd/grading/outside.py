"""Graders from outside: a function (problem, completion) → bool, or a number from 0 to 1.

    def grade(problem: Problem, completion: str) -> bool:
        return problem.answer in completion

It is named as `module:function`, or registered under a name of its own. It runs in worker processes that are killed if
it hangs (`grading.pool`). From 0.5 on, a number counts as right.
"""

import re
from collections.abc import Callable, Sequence
from pkgutil import resolve_name
from typing import Protocol

from opasd.choices import GRADERS
from opasd.data.problems import Problem
from opasd.errors import ConfigError, closest
from opasd.grading import pool
from opasd.grading.pool import Grader, Job
from opasd.grading.verdict import is_correct

GradeFunction = Callable[[Problem, str], bool | float]
MATH = "math"
"""The package's own grader."""
SECONDS = 10.0
"""Processor time that a grader from outside may take for one completion."""
_PATH = re.compile(r"[\w.]+:[\w.]+")


class RolloutGrader(Protocol):
    """Grades completions during training: a verdict each, or None if the problem has no answer or grading failed."""

    def __call__(self, attempts: Sequence[tuple[Problem, str]]) -> Sequence[bool | None]: ...


def register_grader(name: str, function: GradeFunction) -> None:
    """Let recipes and commands name a grader: `grader: NAME`, `--grader NAME`."""
    if name in GRADERS or name == MATH:
        raise ConfigError(f"there is already a grader named {name!r}; choose another name")
    GRADERS[name] = path_of(function)


def path_of(function: GradeFunction) -> str:
    """Return `module:function`, under which a worker process finds it."""
    path = f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"
    if "<" in path or path.startswith("__main__:"):
        raise ConfigError(
            f"grader: {path} cannot be found by another process; define the function at the top of a module that can "
            "be imported"
        )
    return path


def find_grader(name: str | GradeFunction) -> str | None:
    """Return a grader's `module:function`, or None for the package's own; refuse a name that is none."""
    path = path_of(name) if callable(name) else None if name == MATH else GRADERS.get(name, name)
    if path is None:
        return None
    if not _PATH.fullmatch(path):
        hint = closest(path, [MATH, *GRADERS])
        raise ConfigError(f"grader: got {path!r:.60}; give {MATH}, a registered name or module:function {hint}".strip())
    try:
        function = resolve_name(path)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"grader: {path} cannot be imported ({error}); give module:function") from error
    if not callable(function):
        raise ConfigError(f"grader: {path} is no function; give one that takes a problem and a completion")
    return path


def seconds_of(path: str) -> float:
    """Return the processor time that a grader may take for one answer; no path: the package's own."""
    return SECONDS if path else pool.SECONDS


def rollout_grader(name: str | GradeFunction) -> RolloutGrader:
    """Return the grader of training and validation; the package's own needs no algebra there."""
    path = find_grader(name)
    if path is None:
        return _by_text
    grader = Grader(seconds=SECONDS, function=path)

    def grade(attempts: Sequence[tuple[Problem, str]]) -> list[bool | None]:
        graded = grader.grade_all(Job(text, str(problem.answer), problem=problem) for problem, text in attempts)
        return [None if verdict == "grader_failed" else verdict == "correct" for verdict, _ in graded]

    return grade


def _by_text(attempts: Sequence[tuple[Problem, str]]) -> list[bool | None]:
    return [None if problem.answer is None else is_correct(text, problem.answer) for problem, text in attempts]
