"""What a probe's rows say: figures as mean and 95 % interval over problems, each of which counts once."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from opasd.analysis.preference import before_the_end, preference
from opasd.evaluation.statistics import estimate
from opasd.probe.measure import IN_TENTHS, Probe, Reply, Trajectory

Verdict = Literal["above", "below", "open", "too few", "none"]
"""Where a preference's interval lies beside 0.5; or that there are too few problems to say, or none at all."""
FEWEST = 10
"""With fewer problems a bootstrap interval is too narrow to be believed."""

Readings = tuple[Callable[[Trajectory], float | None], Callable[[Trajectory], float | None]]
_FIGURES = ("divergence", "top_share", "clipped", "attention_divergence", "solution_mass")
_T = TypeVar("_T")


def summarise(found: Probe) -> dict[str, Any]:
    """Every figure of the page; None where there is none.

    What sets right answers beside wrong ones leaves out those cut off, and problems with only one kind."""
    replies = {"student": found.student, "teacher": [[reply] for reply in found.teacher]}
    whole = [[row for row in rows if row.finish_reason != "length"] for rows in found.student]
    attention = _sides(whole, lambda row: row.attention_divergence)
    all_tokens = _preference(_sides(whole, lambda row: row.log_ratio))
    first_tokens = _preference(_sides(whole, lambda row: _before_the_end(row, "log_ratio")))
    lower_attention = _preference([(wrong, right) for right, wrong in attention])
    return {
        **{
            role: {
                "accuracy": _figure([statistics.fmean(row.correct for row in rows) for rows in several]),
                "tokens": _figure([statistics.fmean(row.tokens for row in rows) for rows in several]),
                "truncated": _figure([statistics.fmean(r.finish_reason == "length" for r in rows) for rows in several]),
                "leaks": _figure([statistics.fmean(told) for rows in several if (told := _told(rows))]),
            }
            for role, several in replies.items()
        },
        "preference": all_tokens,
        "verdict": _verdict(all_tokens),
        "preference_before_the_end": first_tokens,
        "verdict_before_the_end": _verdict(first_tokens),
        **_control(whole),
        "attention_preference": lower_attention,
        "attention_verdict": _verdict(lower_attention),
        "attention_divergence_right": _figure([statistics.fmean(right) for right, _ in attention]),
        "attention_divergence_wrong": _figure([statistics.fmean(wrong) for _, wrong in attention]),
        **_by_tenths(whole),
        "log_ratio_right": _figure(_by_problem(found.student, "log_ratio", lambda row: row.correct)),
        "log_ratio_wrong": _figure(_by_problem(found.student, "log_ratio", lambda row: not row.correct)),
        **{name: _figure(_by_problem(found.student, name)) for name in _FIGURES},
    }


def _told(rows: Sequence[Reply]) -> list[bool]:
    return [row.leaks for row in rows if row.leaks is not None]


def _sides(
    problems: Sequence[Sequence[Trajectory]], value: Callable[[Trajectory], _T | None]
) -> list[tuple[list[_T], list[_T]]]:
    """The values of right and of wrong answers to each problem that has both; answers without one are left out."""
    sides: list[tuple[list[_T], list[_T]]] = []
    for rows in problems:
        right = [one for row in rows if row.correct and (one := value(row)) is not None]
        wrong = [one for row in rows if not row.correct and (one := value(row)) is not None]
        if right and wrong:
            sides.append((right, wrong))
    return sides


def _preference(sides: Sequence[tuple[list[float], list[float]]]) -> dict[str, float] | None:
    """How often the first side's value is the higher one, with the numbers of problems and pairs."""
    figure = _figure([share for first, second in sides if (share := preference(first, second)) is not None])
    pairs = sum(len(first) * len(second) for first, second in sides)
    return figure and {**figure, "problems": len(sides), "pairs": pairs}


def _before_the_end(row: Trajectory, name: str) -> float | None:
    return before_the_end(row.tenths[name], row.tokens) if name in row.tenths else None


def _control(problems: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    """The preferences with another problem's reference, and what the problem's own adds, of the same problems."""
    found: dict[str, Any] = {}
    whole: Readings = (lambda row: row.log_ratio, lambda row: row.control)
    first: Readings = (lambda row: _before_the_end(row, "log_ratio"), lambda row: _before_the_end(row, "control"))
    for name, (own, other) in {"": whole, "_before_the_end": first}.items():
        both = _sides(problems, lambda row, own=own, other=other: _pair(own(row), other(row)))
        shares = [
            [preference([one[place] for one in right], [one[place] for one in wrong]) or 0.0 for place in (0, 1)]
            for right, wrong in both
        ]
        found[f"control_preference{name}"] = _figure([share for _, share in shares])
        found[f"own_adds{name}"] = _figure([mine - theirs for mine, theirs in shares])
    return found


def _pair(first: float | None, second: float | None) -> tuple[float, float] | None:
    return None if first is None or second is None else (first, second)


def _by_tenths(problems: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    """`tenths`: what right and wrong answers have in each tenth of their tokens, a mean over the same problems.

    `log_ratio_difference` is right less wrong over whole answers. `late` is the last tenth's share of it: more than 1
    or less than 0 where tenths disagree, None where the interval of the difference holds 0."""
    tenths: dict[str, dict[str, Any] | None] = {}
    for name in IN_TENTHS:
        sides = _sides(problems, lambda row, name=name: row.tenths.get(name))
        right, wrong = (_means([_means(side[kind]) for side in sides]) for kind in (0, 1))
        tenths[name] = {"problems": len(sides), "right": right, "wrong": wrong} if sides else None
    sums = _sides(problems, lambda row: math.fsum(row.tenths["log_ratio"]) if row.tenths else None)
    difference = _figure([statistics.fmean(right) - statistics.fmean(wrong) for right, wrong in sums])
    late = None
    if (found := tenths["log_ratio"]) and difference and difference["low"] * difference["high"] > 0:
        late = (found["right"][-1] - found["wrong"][-1]) / difference["mean"]
    return {"tenths": tenths, "log_ratio_difference": difference, "late": late}


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Of each column."""
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def _by_problem(
    problems: Sequence[Sequence[Trajectory]], name: str, chosen: Callable[[Trajectory], bool] = lambda _: True
) -> list[float]:
    """The mean over each problem's chosen rows, of the problems that have such and where it was measured."""
    values = [[getattr(row, name) for row in rows if chosen(row)] for rows in problems]
    return [statistics.fmean(several) for several in values if several and None not in several]


def _figure(per_problem: Sequence[float]) -> dict[str, float] | None:
    return estimate(per_problem)._asdict() if per_problem else None


def _verdict(figure: dict[str, float] | None) -> Verdict:
    if figure is None:
        return "none"
    if figure["problems"] < FEWEST:
        return "too few"
    return "above" if figure["low"] > 0.5 else "below" if figure["high"] < 0.5 else "open"
