r"""Is a completion's answer right? The last \boxed{…} after the thinking block, against the known answer.

Safe on anything a model may write: linear time, and no number is made of an answer that is too long to be one.
"""

import re
from fractions import Fraction

_BRACE = re.compile(r"\\boxed\s*\{|\\[{}]|[{}]")
_DROPPED = re.compile(r"\\[,;:! $%]|\\left(?![a-zA-Z])|\\right(?![a-zA-Z])|[\s$%]+")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mbox)\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<=\d)(?:,|\{,\})(?=\d{3}(?!\d))")
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_RATIO = re.compile(r"([-+]?)(?:(\d+)/(\d+)|\\[dt]?frac\{([-+]?\d+)\}\{([-+]?\d+)\}|\\[dt]?frac(\d)(\d))", re.ASCII)
_LONGEST_NUMBER = 1000


def boxed_answer(text: str) -> str | None:
    """What stands in the last whole box of the answer proper; None where there is none."""
    # A thinking block that was opened and never closed is no answer either.
    answer = text.rpartition("</think>")[2].partition("<think>")[0]
    opened: list[int | None] = []  # where the box of each open brace begins, if it is a box's
    start = end = -1
    for match in _BRACE.finditer(answer):
        brace = match.group()
        if brace == "{":
            opened.append(None)
        elif brace.startswith("\\boxed"):
            opened.append(match.end())
        elif brace == "}" and opened:
            box = opened.pop()
            if box is not None and box > start:
                start, end = box, match.start()
    return answer[start:end].strip() if end >= 0 else None


def is_correct(text: str, answer: str) -> bool:
    """Whether the boxed answer equals the known one, as text or as a number; an empty one is never right."""
    found = boxed_answer(text)
    if found is None:
        return False
    mine, known = _plain(found), _plain(answer)
    if mine == known:
        return mine != ""
    number = _number(mine)
    return number is not None and number == _number(known)


def _plain(answer: str) -> str:
    return _THOUSANDS.sub("", _TEXT.sub(r"\1", _DROPPED.sub("", answer.replace("−", "-")))).rstrip(".")


def _number(text: str) -> Fraction | None:
    if len(text) > _LONGEST_NUMBER:
        return None
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if ratio := _RATIO.fullmatch(text):
        sign, *parts = (part for part in ratio.groups() if part is not None)
        above, below = map(int, parts)
        return Fraction(-above if sign == "-" else above, below) if below else None
    return None
