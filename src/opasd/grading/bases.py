"""Numbers in a base, 101_2, and variables with an index, A_1."""

import re

from opasd.grading.tidying import bare

_BASE = re.compile(
    r"(-?)([^\W_]+|\d[^\W_]*\.[^\W_]+|\(\d\w*\)|\{\d\w*\})_(\d+|[a-zA-Z]|\{\w+\}|\{\(\w+\)\}|\(\d+\))", re.ASCII
)
_NAMED_INDEX = re.compile(r"(?<=_\{)\\(?=[a-z]+\})|(?<=_)\\(?=(?:max|min)$)")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"} | {
    "ten": "10", "eleven": "11", "twelve": "12", "sixteen": "16"
}  # fmt: skip


def in_base(text: str) -> tuple[int | str, str] | None:
    """Return the value and the base of a number in a base, or an indexed variable such as A_1 as it is written."""
    if (match := _BASE.fullmatch(_NAMED_INDEX.sub("", bare(text)))) is None:
        return None
    sign, digits, base = match[1], *(part.strip("{()}") for part in match.groups()[1:])
    base = _BASES.get(base, base)
    if "." in digits:
        return sign + digits.strip("0").casefold(), base
    if base.isdigit() and 2 <= int(base) <= 36 and digits.isalnum() and not digits.isalpha():
        try:
            return int(sign + digits, int(base)), base
        except ValueError:
            pass
    return None if "(" in match[0] else (sign + match[2], base)
