r"""Chains of equalities that contradict themselves: x = 2 + 4 = 5.

value(r"2\cdot 3 + \frac{1}{2}")    13/2, exactly
value("2x"), value("5!")            None: not figures, + − · / ^ and brackets alone

Only what can be calculated here is compared; every other link is taken as it is.
"""

import re
from fractions import Fraction
from itertools import pairwise

from opasd.grading.names import chain
from opasd.grading.tidying import is_balanced, split

_TOKEN = re.compile(
    r"(?P<mixed>\d+\s*\\frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})|(?P<number>\d+(?:\.\d+)?|\.\d+)"
    r"|(?P<sign>\\frac(?![a-zA-Z])|\\(?:cdot|times)(?![a-zA-Z])|[-+*/^(){}])",
    re.ASCII,
)
_ROUNDED = re.compile(r"[-+]?\d*\.(\d+)(?:\s*\\(?:times|cdot)\s*10\^(?:(\d)|\{\s*(-?\d{1,2})\s*\}))?", re.ASCII)
_TIMES = ("\\cdot", "\\times", "*")
_BEGINS = ("(", "{", "\\frac")
_LARGEST_BASE, _LARGEST_POWER = 10**6, 100


def contradicts_itself(answer: str) -> bool:
    """Return whether neighbours behind a name differ, by more than the rounding of a decimal: x = 2 + 4 = 5."""
    if answer.count("=") < 2:
        return False
    for item in split(answer):
        links = [(value(link), _rounding(link)) for link in chain(item)[1:]]
        for (first, coarse), (second, fine) in pairwise(link for link in links if link[0] is not None):
            gap = abs((first or 0) - (second or 0))
            if gap and gap >= max(coarse, fine):
                return True
    return False


def _rounding(text: str) -> Fraction:
    """Return one unit of a decimal's last digit; zero of what is no decimal, and so exact."""
    rounded = _ROUNDED.fullmatch(text.strip())
    return Fraction(10) ** (int(rounded[2] or rounded[3] or 0) - len(rounded[1])) if rounded else Fraction(0)


def value(text: str) -> Fraction | None:
    """Return the number that plain arithmetic gives; None of anything else."""
    tokens, start = [], 0
    for token in _TOKEN.finditer(text):
        if text[start : token.start()].strip():
            return None
        tokens.append(token)
        start = token.end()
    if not tokens or text[start:].strip() or not is_balanced(text):
        return None
    reader = _Reader(tokens)
    try:
        result = reader.sum()
    except (ValueError, ZeroDivisionError):
        return None
    return result if reader.place == len(tokens) else None


class _Reader:
    """Reads the tokens of an expression from left to right; what is no arithmetic raises ValueError."""

    def __init__(self, tokens: list[re.Match[str]]) -> None:
        self._tokens = tokens
        self.place = 0

    def _next(self) -> str:
        return self._tokens[self.place][0] if self.place < len(self._tokens) else ""

    def _take(self, *texts: str) -> str:
        found = self._next()
        if found not in texts or not found:
            return ""
        self.place += 1
        return found

    def sum(self) -> Fraction:
        total = self._product()
        while sign := self._take("+", "-"):
            term = self._product()
            total += term if sign == "+" else -term
        return total

    def _product(self) -> Fraction:
        sign = -1 if self._take("-", "+") == "-" else 1
        product, divided = self._power(), False
        while True:
            if self._take("/"):
                product, divided = product / self._power(), True
            elif self._take(*_TIMES):
                product *= self._power()
            elif self._next() in _BEGINS:
                if divided:
                    raise ValueError("1/2(3) has two readings")
                product *= self._power()
            else:
                return sign * product

    def _power(self) -> Fraction:
        base = self._atom()
        if not self._take("^"):
            return base
        power = self._atom()
        if power.denominator > 1 or abs(power) > _LARGEST_POWER or max(abs(base), base.denominator) > _LARGEST_BASE:
            raise ValueError("a root, or too large")
        return base ** int(power)

    def _atom(self) -> Fraction:
        if self._take("\\frac"):
            above = self._group("{")
            return above / self._group("{")
        if self._next() in ("(", "{"):
            return self._group(self._next())
        if self.place == len(self._tokens) or self._tokens[self.place]["sign"]:
            raise ValueError("no number")
        token = self._tokens[self.place]
        self.place += 1
        if token["number"]:
            return Fraction(token["number"])
        whole, above, below = map(int, re.findall(r"\d+", token["mixed"]))
        return whole + Fraction(above, below)

    def _group(self, bracket: str) -> Fraction:
        if not self._take(bracket):
            raise ValueError("no bracket")
        inner = self.sum()
        if not self._take(")" if bracket == "(" else "}"):
            raise ValueError("no closing bracket")
        return inner
