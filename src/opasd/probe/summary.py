"""Summarise a probe: means with 95 % intervals over problems, each of which counts once."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from opasd.analysis.preference import before_the_end, preference
from opasd.evaluation.statistics import Estimate, estimate, gap_estimate, mean_of
from opasd.probe.measure import IN_TENTHS, GradedAnswer, Probe, Trajectory

Verdict = Literal["above", "below", "open", "too few", "none"]
"""The side of 0.5 on which a preference's interval lies; or that there are too few problems to say, or none."""
FEWEST = 10
"""Fewer problems say little about others like them."""

_FIGURES = ("divergence", "attention_divergence")
_SHARES = ("top_share", "clipped", "solution_mass")
_T = TypeVar("_T")


def summarise(probe: Probe) -> dict[str, Any]:
    """Return every figure of the page; None where there is none.

    Comparisons of right with wrong answers leave out answers that were cut off and problems with only one kind."""
    whole = [[row for row in rows if row.finish_reason != "length"] for rows in probe.student]
    attention = _sides(whole, lambda row: row.attention_divergence)
    all_tokens = _preference(_sides(whole, lambda row: row.log_ratio))
    first_tokens = _preference(_sides(whole, lambda row: _before_the_end(row, "log_ratio")))
    lower_attention = _preference([(wrong, right) for right, wrong in attention])
    return {
        "student": _of_role(probe.student),
        "teacher": _of_role([[answer] for answer in probe.teacher]),
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
        "log_ratio_right": _figure(_by_problem(probe.student, "log_ratio", lambda row: row.correct)),
        "log_ratio_wrong": _figure(_by_problem(probe.student, "log_ratio", lambda row: not row.correct)),
        **{name: _figure(_by_problem(probe.student, name)) for name in _FIGURES},
        **{name: _figure(_by_problem(probe.student, name), _within) for name in _SHARES},
    }


def _of_role(problems: Sequence[Sequence[GradedAnswer]]) -> dict[str, dict[str, float] | None]:
    leaks = [[row.leaks for row in rows if row.leaks is not None] for rows in problems]
    return {
        "accuracy": _share([statistics.fmean(row.correct for row in rows) for rows in problems]),
        "tokens": _figure([statistics.fmean(row.tokens for row in rows) for rows in problems]),
        "truncated": _share([statistics.fmean(row.finish_reason == "length" for row in rows) for rows in problems]),
        "leaks": _share([statistics.fmean(known) for known in leaks if known]),
    }


def _sides(
    problems: Sequence[Sequence[Trajectory]], value: Callable[[Trajectory], _T | None]
) -> list[tuple[list[_T], list[_T]]]:
    """Return the values of right and of wrong answers to each problem with both; leave out answers without a value."""
    sides: list[tuple[list[_T], list[_T]]] = []
    for rows in problems:
        values = [(row.correct, own) for row in rows if (own := value(row)) is not None]
        right, wrong = ([own for correct, own in values if correct is kind] for kind in (True, False))
        if right and wrong:
            sides.append((right, wrong))
    return sides


def _preference(sides: Sequence[tuple[list[float], list[float]]]) -> dict[str, float] | None:
    """Return how often the first side's value is higher, with the numbers of problems and pairs."""
    figure = _share([share for first, second in sides if (share := preference(first, second)) is not None])
    pairs = sum(len(first) * len(second) for first, second in sides)
    return figure and {**figure, "problems": len(sides), "pairs": pairs}


def _before_the_end(row: Trajectory, name: str) -> float | None:
    return before_the_end(row.tenths[name], row.tokens) if name in row.tenths else None


def _control(problems: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    """Return the preferences with another problem's reference, and what the own reference adds on the same problems."""

    def whole(row: Trajectory) -> tuple[float, float] | None:
        return None if row.control is None else (row.log_ratio, row.control)

    def start(row: Trajectory) -> tuple[float, float] | None:
        own, other = _before_the_end(row, "log_ratio"), _before_the_end(row, "control")
        return None if own is None or other is None else (own, other)

    figures: dict[str, Any] = {}
    for ending, both in (("", whole), ("_before_the_end", start)):
        shares = [
            [preference([pair[n] for pair in right], [pair[n] for pair in wrong]) or 0.0 for n in (0, 1)]
            for right, wrong in _sides(problems, both)
        ]
        figures[f"control_preference{ending}"] = _share([control for _, control in shares])
        figures[f"own_adds{ending}"] = _figure([with_own - control for with_own, control in shares], gap_estimate)
    return figures


def _by_tenths(problems: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
    """Return `tenths`, the means of right and of wrong answers in each tenth of their tokens, over the same problems.

    `log_ratio_difference` is right less wrong over whole answers. `late` is the last tenth's share of it: more than 1
    or less than 0 if tenths disagree, None if the interval of the difference holds 0."""
    tenths: dict[str, dict[str, Any] | None] = {}
    for name in IN_TENTHS:
        sides = _sides(problems, lambda row, name=name: row.tenths.get(name))
        right, wrong = (_means([_means(side[kind]) for side in sides]) for kind in (0, 1))
        tenths[name] = {"problems": len(sides), "right": right, "wrong": wrong} if sides else None
    sums = _sides(problems, lambda row: math.fsum(row.tenths["log_ratio"]) if row.tenths else None)
    difference = _figure([statistics.fmean(right) - statistics.fmean(wrong) for right, wrong in sums])
    late = None
    if (ratios := tenths["log_ratio"]) and difference and difference["low"] * difference["high"] > 0:
        late = (ratios["right"][-1] - ratios["wrong"][-1]) / difference["mean"]
    return {"tenths": tenths, "log_ratio_difference": difference, "late": late}


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each column."""
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]


def _by_problem(
    problems: Sequence[Sequence[Trajectory]], name: str, chosen: Callable[[Trajectory], bool] = lambda _: True
) -> list[float]:
    """Return the mean over each problem's chosen rows, for problems with such rows and with measured values."""
    values = [[getattr(row, name) for row in rows if chosen(row)] for rows in problems]
    return [statistics.fmean(own) for own in values if own and None not in own]


def _share(per_problem: Sequence[float]) -> dict[str, float] | None:
    return _figure(per_problem, estimate)


def _within(per_problem: Sequence[float]) -> Estimate:
    """Return the mean of shares that are not counts, such as ρ: its interval ends at 0 and at 1."""
    mean, low, high = mean_of(per_problem)
    return Estimate(mean, max(low, 0.0), min(high, 1.0))


def _figure(
    per_problem: Sequence[float], interval: Callable[[Sequence[float]], Estimate] = mean_of
) -> dict[str, float] | None:
    return interval(per_problem)._asdict() if per_problem else None


def _verdict(figure: dict[str, float] | None) -> Verdict:
    if figure is None:
        return "none"
    if figure["problems"] < FEWEST:
        return "too few"
    return "above" if figure["low"] > 0.5 else "below" if figure["high"] < 0.5 else "open"
