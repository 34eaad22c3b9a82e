r"""What an answer's text is worth as a number: exact, bounded, and None where it is no number.

Decimals, ratios, LaTeX fractions, mixed numbers, powers of ten, repeating decimals; units and per cent are taken off
before (`quantity`). Whatever is longer than any number is left to be compared as text.
"""

import re
from fractions import Fraction
from typing import NamedTuple

LONGEST = 1000
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_RATIO = re.compile(r"([-+]?)(?:(\d+)/(\d+)|\\frac\{([-+]?\d+)\}\{([-+]?\d+)\}|\\frac(\d)(\d))", re.ASCII)
_MIXED = re.compile(r"([-+]?)(\d+)(?:\\frac\{(\d+)\}\{(\d+)\}|\\frac(\d)(\d)| (\d+)/(\d+))", re.ASCII)
_POWER_OF_TEN = re.compile(
    r"([-+]?(?:\d+\.?\d*|\.\d+))(?:\\times|\\cdot|×|\*)10\^(?:(\d)|\{([-+]?\d{1,3})\})", re.ASCII
)
_REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*)\\overline\{(\d+)\}", re.ASCII)


def number(text: str) -> Fraction | None:
    """The rational number that a plain text writes, if it writes one."""
    if len(text) > LONGEST:
        return None
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if found := _RATIO.fullmatch(text):
        sign, *parts = (part for part in found.groups() if part is not None)
        return _ratio(sign, 0, *map(int, parts))
    if found := _MIXED.fullmatch(text):
        sign, whole, *parts = (part for part in found.groups() if part is not None)
        return _ratio(sign, int(whole), *map(int, parts))
    if found := _POWER_OF_TEN.fullmatch(text):
        return Fraction(found[1]) * Fraction(10) ** int(found[2] or found[3])
    if found := _REPEATING.fullmatch(text):
        sign, whole, fixed, repeated = found.groups()
        tail = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(fixed))
        value = Fraction(f"{whole or 0}.{fixed or 0}") + tail
        return -value if sign == "-" else value
    return None


def _ratio(sign: str, whole: int, above: int, below: int) -> Fraction | None:
    if below == 0:
        return None
    value = whole + Fraction(above, below)
    return -value if sign == "-" else value


class Unit(NamedTuple):
    """What a number counts: its dimension and how many of the dimension's own unit it is."""

    dimension: str
    factor: Fraction


class Quantity(NamedTuple):
    """A value without its unit, and the unit: None where there is none, without dimension where it is not known."""

    value: str
    unit: Unit | None


def _units() -> dict[str, Unit]:
    table = {
        "length": {
            "mm millimeter millimetre": "1/1000", "cm centimeter centimetre 厘米": "1/100", "m meter metre 米": 1,
            "km kilometer kilometre 千米 公里": 1000, "in inch inche": "0.0254", "ft foot feet": "0.3048",
            "yd yard": "0.9144", "mi mile": "1609.344",
        },
        "time": {"s sec second 秒": 1, "min minute 分钟": 60, "h hr hour 小时": 3600, "day 天": 86400, "week": 604800},
        "mass": {"mg": "1/1000", "g gram 克": 1, "kg kilogram 千克": 1000, "oz ounce": "28.349523125",
                 "lb pound": "453.59237"},
        "volume": {"ml milliliter millilitre 毫升": "1/1000", "l liter litre 升": 1},
        "money": {"cent": "1/100", "dollar 美元": 1},
        "angle": {"degree deg ° 度": 1},
        "radian": {"radian rad": 1},
        "year": {"month": 1, "year 年": 12},
    }  # fmt: skip
    return {
        name: Unit(dimension, Fraction(factor))
        for dimension, sizes in table.items()
        for names, factor in sizes.items()
        for name in names.split()
    }


UNITS = _units()
UNKNOWN = Unit("", Fraction(1))
_MULTIPLIERS = {
    "hundred": 10**2,
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_CJK = "\u3400-\u9fff"
_CJK_NUMERALS = "一二三四五六七八九十百千万亿零两半"
_POWER = r"(?:\^?\{?([23])\}?|([²³]))?"
_MARKED = re.compile(rf"(.*?[^\s\\(,=])\s*(?:\\(?:text|mathrm|mbox|textrm|rm)\s*\{{([^{{}}\d]*)\}}){_POWER}", re.DOTALL)
_BARE = re.compile(rf"(.*?[\d}})])\s*((?:sq(?:uare)?\.?\s+|cubic\s+)?[A-Za-z]{{2,}})\.?{_POWER}", re.DOTALL)
_CJK_UNIT = re.compile(rf"(.*?[\d}})])\s*([{_CJK}]+)", re.DOTALL)
_DEGREE = re.compile(r"(.*?\S)\s*(?:\^\{?\\circ\}?|\^\{?°\}?|°|\\degree|\\deg)", re.DOTALL)
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_PER = re.compile(r"/|\bper\b")
_CURRENCY = re.compile(r"([-+]?)\s*(\\\$|€|£|¥|\\pounds|\\euro)\s*(.+)", re.DOTALL)


def quantity(text: str) -> Quantity:
    r"""The value and its unit: `5\text{ cm}^2`, `\$5`, `90^\circ`, `12 dollars`, `5元`."""
    if found := _CURRENCY.fullmatch(text):
        return Quantity(found[1] + quantity(found[3]).value, UNITS["dollar"] if found[2] == "\\$" else UNKNOWN)
    if found := _DEGREE.fullmatch(text):
        if _ANGLE_FUNCTION.search(text):
            return Quantity(text, None)
        return Quantity(found[1], UNITS["degree"])
    if (found := _CJK_UNIT.fullmatch(text)) and not set(found[2]) & set(_CJK_NUMERALS):
        return Quantity(found[1], UNITS.get(found[2], UNKNOWN))
    for pattern in (_MARKED, _BARE):
        if found := pattern.fullmatch(text):
            unit, multiplier = _unit(found[2], found[3] or found[4])
            if unit is not None and (pattern is _MARKED or unit is not UNKNOWN or multiplier != 1):
                value = number(found[1].strip()) if multiplier != 1 else None
                if value is not None:
                    return Quantity(str(value * multiplier), None if unit is UNKNOWN else unit)
                return Quantity(found[1].strip(), unit) if multiplier == 1 else Quantity(text, None)
    return Quantity(text, None)


def _unit(words: str, power: str | None) -> tuple[Unit | None, int]:
    """The unit that words name, and what they multiply the number by."""
    if len(rate := _PER.split(words)) == 2 and not power:
        above, below = (_unit(part, None)[0] for part in rate)
        if above and below and UNKNOWN not in (above, below):
            return Unit(f"{above.dimension}/{below.dimension}", above.factor / below.factor), 1
    names = [word.strip(".") for word in re.split(r"[\s~]+", words.lower().strip(" .")) if word]
    exponent = {"2": 2, "3": 3, "²": 2, "³": 3}.get(power or "", 1)
    multiplier = 1
    while names and names[0] in _MULTIPLIERS:
        multiplier *= _MULTIPLIERS[names.pop(0)]
    if names and names[0] in ("square", "sq", "cubic"):
        exponent = 3 if names.pop(0) == "cubic" else 2
    if names and names[-1] in ("squared", "cubed"):
        exponent = 3 if names.pop() == "cubed" else 2
    if len(names) != 1:
        return UNKNOWN, multiplier
    name = names[0]
    unit = UNITS.get(name) or UNITS.get(name.removesuffix("s")) or UNITS.get(name.removesuffix("es"))
    if unit is None:
        return UNKNOWN, multiplier
    return Unit(unit.dimension if exponent == 1 else f"{unit.dimension}^{exponent}", unit.factor**exponent), multiplier
