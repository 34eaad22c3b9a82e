r"""Times of day: 3:45, 3:45 p.m. and 15:45. Dates.

same_time(("3:45", "pm"), ("15:45", ""))    True
same_time(("10:30", ""), ("1:3", ""))       False: a time is no ratio
same_time(("7:15", ""), ("7/15", ""))       None: it may be a ratio
same_time(("2025-01-05", ""), ("2019", "")) False: a date is no sum
"""

import re
from math import gcd

_CLOCK = re.compile(r"(\d|[01]\d|2[0-4])(?::([0-5]\d))?", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d?/\d\d?/\d{4}", re.ASCII)


def same_time(gold: tuple[str, str], answer: tuple[str, str]) -> bool | None:
    """Return whether two texts with their half of the day, `am`, `pm` or none, are one time; None if gold is none.

    Without a half of the day 7:15 may be a ratio, but 10:30, which could be reduced, is none.
    """
    if _DATE.fullmatch(gold[0]) or _DATE.fullmatch(answer[0]):
        return gold == answer
    clock, other = _clock(*gold), _clock(*answer)
    if clock is None or not (gold[1] or answer[1] or gcd(*clock) > 1):
        return None
    if other is None:
        return False
    (hour, minute), (other_hour, other_minute) = clock, other
    if bool(gold[1]) == bool(answer[1]):
        return (hour, minute, gold[1]) == (other_hour, other_minute, answer[1])
    same_hour = hour == other_hour or _of_day(hour, gold[1]) == _of_day(other_hour, answer[1])
    return same_hour and minute == other_minute


def _clock(text: str, half: str) -> tuple[int, int] | None:
    """Return hour and minute; the minute may be left out where the half of the day is named, 5 pm."""
    match = _CLOCK.fullmatch(text)
    return (int(match[1]), int(match[2] or 0)) if match and (match[2] or half) else None


def _of_day(hour: int, half: str) -> int:
    return hour % 12 + 12 * (half == "pm") if half else hour
