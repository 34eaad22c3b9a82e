r"""Is a completion's answer right? The last \boxed{…} after the thinking block, against the known answer."""

import re
from fractions import Fraction

_BOX = re.compile(r"\\boxed\s*\{")
_SPACING = re.compile(r"\\[,;:! ]|\\text\{\s*\}|\\left|\\right|\s+|\$")
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(-?\d+)\}")


def boxed_answer(text: str) -> str | None:
    """What stands in the last whole box of the answer proper; None where there is none."""
    answer = text.rpartition("</think>")[2]
    for match in reversed(list(_BOX.finditer(answer))):
        depth = 1
        for position in range(match.end(), len(answer)):
            depth += {"{": 1, "}": -1}.get(answer[position], 0)
            if depth == 0:
                return answer[match.end() : position].strip()
    return None


def is_correct(text: str, answer: str) -> bool:
    """Whether the boxed answer equals the known one, as text or as a number."""
    found = boxed_answer(text)
    if found is None:
        return False
    mine, known = _plain(found), _plain(answer)
    return mine == known or (_number(mine) is not None and _number(mine) == _number(known))


def _plain(answer: str) -> str:
    return _THOUSANDS.sub("", _SPACING.sub("", answer)).rstrip(".").removesuffix("\\%").removesuffix("%")


def _number(text: str) -> Fraction | None:
    fraction = _FRACTION.fullmatch(text)
    try:
        return Fraction(*map(int, fraction.groups())) if fraction else Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None
