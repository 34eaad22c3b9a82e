r"""Times of day: 3:45, 3:45 p.m. and 15:45.

same_time(("3:45", "pm"), ("15:45", ""))    True
same_time(("10:30", ""), ("1:3", ""))       False: a time is no ratio
same_time(("7:15", ""), ("7/15", ""))       None: it may be a ratio
"""

import re
from math import gcd

_CLOCK = re.compile(r"(\d|[01]\d|2[0-4]):([0-5]\d)", re.ASCII)


def same_time(gold: tuple[str, str], answer: tuple[str, str]) -> bool | None:
    """Return whether two texts with their half of the day, `am`, `pm` or none, are one time; None if gold is none.

    Without a half of the day 7:15 may be a ratio, but 10:30, which could be reduced, is none.
    """
    clocks = [_CLOCK.fullmatch(text) for text, _ in (gold, answer)]
    if clocks[0] is None or not (gold[1] or answer[1] or gcd(int(clocks[0][1]), int(clocks[0][2])) > 1):
        return None
    if clocks[1] is None:
        return False
    (hour, minute), (other_hour, other_minute) = ((int(clock[1]), int(clock[2])) for clock in clocks if clock)
    if bool(gold[1]) == bool(answer[1]):
        return (hour, minute, gold[1]) == (other_hour, other_minute, answer[1])
    same_hour = hour == other_hour or _of_day(hour, gold[1]) == _of_day(other_hour, answer[1])
    return same_hour and minute == other_minute


def _of_day(hour: int, half: str) -> int:
    return hour % 12 + 12 * (half == "pm") if half else hour
