r"""The exact number that an answer writes, and its unit.

    number(r"1\frac{4}{5}")      9/5; also decimals, ratios, powers of ten and repeating decimals
    quantity(r"5\text{ cm}^2")   "5" and the unit: an area, 1/10000 of a square metre

A text that is longer than any number is left to be compared as text.
"""

import re
from fractions import Fraction
from math import prod
from string import ascii_lowercase
from typing import NamedTuple

LONGEST = 1000
_DECIMAL = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?", re.ASCII)
_RATIO = re.compile(r"([-+]?)()(?:(\d+)/(\d+)|\\frac\{([-+]?\d+)\}\{([-+]?\d+)\}|\\frac(\d)(\d))", re.ASCII)
_MIXED = re.compile(r"([-+]?)(\d+)(?:\\frac\{(\d+)\}\{(\d+)\}|\\frac(\d)(\d)| (\d+)/(\d+))", re.ASCII)
_POWER_OF_TEN = re.compile(
    r"([-+]?(?:\d+\.?\d*|\.\d+))(?:\\times|\\cdot|×|\*)10\^(?:(\d)|\{([-+]?\d{1,3})\})", re.ASCII
)
_REPEATING = re.compile(
    r"([-+]?)(\d*)\.(\d*)\\(?:(?:overline|bar|dot)(?:\{(\d+)\}|(\d))|dot\{(\d)\}(\d*)\\dot\{(\d)\})", re.ASCII
)
# 0.(36), and 0.333… with what is there three times, or twice if it is long.
_PERIOD = re.compile(
    r"([-+]?\d*\.\d{0,9}?)(?:(?<=\.)\((\d+)\)|(\d{1,6}?)\3{2,9}\\ldots|(\d{6,12}?)\4\\ldots)", re.ASCII
)


def number(text: str) -> Fraction | None:
    """Return the rational number that a plain text writes; None if it writes none."""
    if len(text) > LONGEST:
        return None
    if _DECIMAL.fullmatch(text):
        return Fraction(text)
    if match := _PERIOD.fullmatch(text):
        return number(f"{match[1]}\\overline{{{match[2] or match[3] or match[4]}}}")
    if match := _POWER_OF_TEN.fullmatch(text):
        return Fraction(match[1]) * Fraction(10) ** int(match[2] or match[3])
    if match := _RATIO.fullmatch(text) or _MIXED.fullmatch(text):
        sign, whole, above, below = (group for group in match.groups() if group is not None)
        if int(below) == 0:
            return None
        value = int(whole or 0) + Fraction(int(above), int(below))
    elif match := _REPEATING.fullmatch(text):
        sign, whole, fixed, *digits = match.groups()
        repeated = "".join(filter(None, digits))
        tail = Fraction(int(repeated), (10 ** len(repeated) - 1) * 10 ** len(fixed))
        value = Fraction(f"{whole or 0}.{fixed or 0}") + tail
    else:
        return None
    return -value if sign == "-" else value


_RESIDUE = re.compile(
    r"(?:([a-zA-Z])\s*\\equiv\s*)?(.*?\S)\s*(?:\\[pb]?mod|\\text\s*\{\s*mod(?:ulo)?\s*\}|\(\s*(?:\\text\s*\{\s*mod\s*\}|mod|\\[pb]?mod)(?=[^)]*\)$))"
    r"\s*(?:\{([^{}]+)\}|([\w^]+))\s*\)?",
    re.DOTALL,
)


class Residue(NamedTuple):
    """A number, its modulus and the name in front of it; the last two are empty where there are none."""

    value: str
    modulus: str = ""
    name: str = ""


def residue(text: str) -> Residue:
    r"""Return the parts of `x \equiv 27 \pmod{100}`, or the text alone."""
    match = _RESIDUE.fullmatch(text) if "mod" in text else None
    return Residue(match[2], match[3] or match[4], match[1] or "") if match else Residue(text)


class Unit(NamedTuple):
    """A unit: its dimension, and how many of the dimension's own unit it is.

    Words that name no known unit are a dimension of their own, in quotes: apples are no oranges.
    """

    dimension: str
    factor: Fraction

    @property
    def known(self) -> bool:
        """Whether the table of units has all its parts."""
        return "'" not in self.dimension


class Quantity(NamedTuple):
    """A value without its unit, and the unit, None if there is none."""

    value: str
    unit: Unit | None


_UNIT_NAMES = {
    "length": {
        "mm millimeter millimetre": "1/1000", "cm centimeter centimetre 厘米": "1/100", "m meter metre 米": 1,
        "km kilometer kilometre 千米 公里": 1000, "in inch inche": "0.0254", "ft foot feet": "0.3048",
        "yd yard": "0.9144", "mi mile": "1609.344",
    },
    "time": {"s sec second 秒": 1, "min minute 分钟": 60, "h hr hour 小时": 3600, "day 天": 86400, "week": 604800},
    "mass": {"mg": "1/1000", "g gm gram 克": 1, "kg kilogram 千克": 1000, "oz ounce": "28.349523125",
             "lb pound": "453.59237", "tonne": 1000000},
    "length^3": {"ml milliliter millilitre 毫升": "1/1000000", "l liter litre 升": "1/1000",
                 "cc": "1/1000000", "gallon gal": "0.003785411784", "quart": "0.000946352946",
                 "pint": "0.000473176473"},
    "money": {"cent ¢": "1/100", r"dollar usd \$ 美元": 1},
    "euro": {r"euro € \euro": 1},
    "rupee": {"rupee ₹": 1},
    "sterling": {r"£ \pounds": 1},
    "yuan": {"yuan ¥ 元": 1},
    "length/time": {"mph": "1609344/3600000", "kph kmh": "1000/3600"},
    "am": {"am": 1},
    "pm": {"pm": 1},
    "unit": {"unit": 1},
    "angle": {"degree deg ° 度": 1},
    "celsius": {"celsius": 1},
    "fahrenheit": {"fahrenheit": 1},
    "radian": {"radian rad": 1},
    "year": {"month": 1, "year yr 年": 12},
}  # fmt: skip
UNITS = {
    name: Unit(dimension, Fraction(factor))
    for dimension, sizes in _UNIT_NAMES.items()
    for names, factor in sizes.items()
    for name in names.split()
}
_MONEY = {UNITS[name] for name in ("dollar", "euro", "£", "yuan", "rupee")}
_SI_SYMBOLS = "A B C F H Hz J K N Pa T V W Wb Wh eV mol Ω"
_SI = (
    {symbol: (f"SI {symbol}", Fraction(1)) for symbol in _SI_SYMBOLS.split()}
    | {"m": ("length", Fraction(1)), "s": ("time", Fraction(1)), "g": ("mass", Fraction(1)), "b": ("bit", Fraction(1))}
    | dict.fromkeys("lL", ("length^3", Fraction(1, 1000)))
    | {"N": ("length*mass/time^2", Fraction(1000)), "J": ("length^2*mass/time^2", Fraction(1000))}
    | {"Wh": ("length^2*mass/time^2", Fraction(3600000))}
    | {"W": ("length^2*mass/time^3", Fraction(1000)), "Pa": ("mass/length*time^2", Fraction(1000))}
)
_SI_NAMES = {"hertz": "Hz", "joule": "J", "newton": "N", "pascal": "Pa", "volt": "V", "watt": "W", "ampere": "A"} | {
    "amp": "A", "ohm": "Ω", "kelvin": "K", "mole": "mol", "coulomb": "C", "farad": "F", "tesla": "T"
}  # fmt: skip
_PREFIXES = {"n": -9, "µ": -6, "μ": -6, "m": -3, "c": -2, "d": -1, "": 0, "k": 3, "M": 6, "G": 9, "T": 12}
SYMBOLS = {
    prefix + symbol: Unit(dimension, factor * Fraction(10) ** power)
    for symbol, (dimension, factor) in _SI.items()
    for prefix, power in _PREFIXES.items()
}
"""Units whose symbols mean something else in another case: 5 MJ are no 5 mJ."""
_MULTIPLIERS = {"dozen": 12, "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_CJK = "\u3400-\u9fff"
_CJK_NUMERALS = "一二三四五六七八九十百千万亿零两半"
_POWER = r"(?:\^?\{?([23])\}?|([²³]))?"
_MARKED_POWER = r"(?:\s*\^\s*\{?\s*([23])\s*\}?|([²³]))?"
_MARKED = re.compile(
    rf"(.*?[^\s\\(,=])\s*(?:\\(?:text|mathrm|mbox|textrm|rm)\s*\{{([^{{}}\d]*)\}}){_MARKED_POWER}", re.DOTALL
)
_BARE = re.compile(rf"(.*?[\d}})])(\s*)([A-Za-z][A-Za-z./\s]*?)\.?{_POWER}", re.DOTALL)
# A product of units: \text{ kg}\cdot\text{m}^2, \mu\text{m}, \Omega.
_TEXT_GROUP = r"\\text\s*\{(?:[^{}]|\^\s*\{[^{}]*\})*\}"
_FIRST_UNIT = rf"(?:\\mu\s*)?{_TEXT_GROUP}|\\Omega(?![a-zA-Z])"
_PRODUCT = re.compile(
    rf"(.*?[^\s\\(,=^_/])\s*((?:{_FIRST_UNIT})(?:\s*(?:{_FIRST_UNIT}|\\cdot|/|[()]|\^\s*(?:\{{\s*-?\d\s*\}}|\d)))*)",
    re.DOTALL,
)
_MICRO = re.compile(r"\\mu\s*\\text\s*\{\s*")
_OHM = re.compile(r"\\Omega")
_TEXT_COMMAND = re.compile(r"\\text\s*\{((?:[^{}]|\^\s*\{[^{}]*\})*)\}")
_UNIT_TERM = re.compile(
    r"\s*(?:(?P<slash>/\s*\(?)|(?P<name>[^\W\d_]+)\.?\s*(?:\^\s*\{?\s*(?P<power>-?\d)\s*\}?)?\s*(?P<end>\)?))"
)
_TERM = r"\s*(\d+(?:\.\d+)?)\s*(?:\\text\s*\{\s*([a-zA-Z]+)\.?(?:\s+and)?\s*\}|([a-zA-Z]{2,})\.?)"
_COMPOUND = re.compile(rf"(?:{_TERM}){{2,4}}", re.ASCII)
_TERMS = re.compile(_TERM, re.ASCII)
_CJK_UNIT = re.compile(rf"(.*?[\d}})])\s*([{_CJK}]+)", re.DOTALL)
_DEGREE = re.compile(
    r"(.*?\S)\s*(?:\^\{?\\circ\}?|\^\{?°\}?|°|\\degree|\\deg)(?:\s*\\text\s*\{\s*([CF])\s*\}|\s*([CF]))?", re.DOTALL
)
_PRIMES = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*(?:('{1,2})|\^\s*\{?\s*((?:\\prime\s*){1,2})\}?)", re.ASCII)
_FEET_OR_INCHES = {"'": UNITS["foot"], "''": UNITS["inch"]}
_SCALES = {"C": "celsius", "F": "fahrenheit"}
_ANGLE_FUNCTION = re.compile(r"\\?(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_PER = re.compile(r"/|\bper\b", re.IGNORECASE)
_PER_UNIT = re.compile(r"(?<=\d)\s*/\s*\\text\s*\{\s*([a-zA-Z]{2}[^{}]*)\}")
_SIGN = r"(\\\$|€|£|¥|¢|₹|\\pounds|\\euro)"
_CURRENCY = re.compile(rf"([-+]?)\s*{_SIGN}\s*(.+)", re.DOTALL)
_CURRENCY_LAST = re.compile(rf"(.*?[\d}})])\s*{_SIGN}", re.DOTALL)
FUNCTIONS = {"sin", "cos", "tan", "log", "sqrt", "exp", "inf", "infinity"}
_NO_UNITS = """
cot csc sinh cosh tanh arcsin arccos arctan asin acos atan ln lim det infty
alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau phi chi psi omega
and or mod modulo choose plus minus base remainder factorial
zero one two three four five six seven eight nine ten eleven twelve twenty thirty forty fifty sixty seventy eighty
ninety half halves third thirds fourth fourths fifth fifths sixth sixths seventh sevenths eighth eighths ninth ninths
tenth tenths hundredth hundredths thousandth thousandths
"""
_MATHEMATICS = FUNCTIONS | set(_NO_UNITS.split())
"""Words that are mathematics, or part of the number, or join it to another."""
_CLAIM_WORDS = """
negative not doesn't isn't wrong impossible incorrect false fails if unless except least most than power root
"""
_CLAIMS = set(_CLAIM_WORDS.split())
_PROPERTY_WORDS = "is are even odd prime composite positive negative integer integers real rational divisible"
_PROPERTIES = set(_PROPERTY_WORDS.split())
_PRODUCTS = {"mg", "ml", "gm", "hr", "ft", "mi"}
"""Units that are also products of variables: 3mg is a force, 3 mg may be a mass."""
_WORD = re.compile(r"[^aeiou][aeiou][a-z]|(?=.*[aeiou])[a-z]{4,}")


def quantity(text: str) -> Quantity:
    r"""Return the value and its unit: `5\text{ cm}^2`, `\$5`, `90^\circ`, `12 dollars`, `7 apples`, `5元`."""
    if compound := _compound(text):
        return compound
    text = _PER_UNIT.sub(r"\\text{ per \1}", text)
    if match := _CURRENCY.fullmatch(text):
        (value, rate), money = quantity(match[3]), UNITS[match[2]]
        is_rate = rate is not None and rate.dimension.startswith("/")  # $3 per pound
        return Quantity(match[1] + value, _product([(money, 1), (rate, 1)]) if rate and is_rate else money)
    if match := _CURRENCY_LAST.fullmatch(text):
        return Quantity(match[1], UNITS[match[2]])
    if match := _DEGREE.fullmatch(text):
        if _ANGLE_FUNCTION.search(text):
            return Quantity(text, None)
        return Quantity(match[1], UNITS[_SCALES.get(match[2] or match[3], "degree")])
    if match := _PRIMES.fullmatch(text):
        return Quantity(match[1], _FEET_OR_INCHES[match[2] or "'" * match[3].count("prime")])
    if product := _in_units(text):
        return product
    if (match := _CJK_UNIT.fullmatch(text)) and not set(match[2]) & set(_CJK_NUMERALS):
        return Quantity(match[1], _unit(match[2], None)[0])
    if match := _MARKED.fullmatch(text):
        if is_mathematics(match[2]) or _says_more(match[2], match[1]):
            return Quantity(f"{match[1]} {match[2]}{text[match.end(2) + 1 :]}", None)
        return _multiplied(text, match[1].strip(), *_unit(match[2], match[3] or match[4]))
    if (match := _BARE.fullmatch(text)) and not is_mathematics(match[3]):
        value, power = match[1].replace(" \\", "\\"), match[4] or match[5]
        unit, multiplier = _unit(match[3], power, marked=False)
        if match[3] in _PRODUCTS and not (match[2] and _DECIMAL.fullmatch(value)):
            return Quantity(text, None)
        in_words = match[2] and not power and number(value) is not None and all(map(_is_word, _names(match[3])))
        if (in_words or unit is None or unit.known) and len(_names(match[3])[0]) > 1:
            return _multiplied(text, value, unit, multiplier)
    return Quantity(text, None)


def _compound(text: str) -> Quantity | None:
    r"""Return the sum of decreasing known units in the last one: `2\text{ hours }30\text{ minutes}` is 150 minutes."""
    if not _COMPOUND.fullmatch(text):
        return None
    terms = [
        (Fraction(term[1]), *_unit(term[2] or term[3], None, marked=bool(term[2]))) for term in _TERMS.finditer(text)
    ]
    units = [unit for _, unit, multiplier in terms if unit and unit.known and multiplier == 1]
    factors = [unit.factor for unit in units]
    if len(units) < len(terms) or len({unit.dimension for unit in units}) > 1 or sorted(set(factors)) != factors[::-1]:
        return None
    total = sum((value * factor for (value, *_), factor in zip(terms, factors, strict=True)), Fraction(0))
    return Quantity(str(total / factors[-1]), units[-1])


def _multiplied(text: str, value: str, unit: Unit | None, multiplier: int) -> Quantity:
    if multiplier == 1:
        return Quantity(value, unit)
    factor = number(value)
    return Quantity(text, None) if factor is None else Quantity(str(factor * multiplier), unit)


def is_money_at_a_rate(first: Unit, second: Unit) -> bool:
    """Return whether one is money and the other the same money per something, which a sum may leave out."""
    (money, _, rate), (other, _, other_rate) = (unit.dimension.partition("/") for unit in (first, second))
    return money == other and bool(rate) != bool(other_rate) and {first, second} & _MONEY != set()


def _names(words: str) -> list[str]:
    return [name for name in re.split(r"[\s~/]+", words.replace(".", "").strip(" ,;:!")) if name]


def is_mathematics(words: str) -> bool:
    """Return whether words are no unit but a variable or part of the number."""
    names = [name.lower() for name in _names(words)]
    variable = len(words.strip()) == 1 and words.islower() and words.strip() not in UNITS
    return variable or not _MATHEMATICS.isdisjoint(names) or names in (["squared"], ["cubed"], ["above"], ["below"])


def _says_more(words: str, value: str) -> bool:
    """Return whether words after a value are no unit but change what it says: at most, is prime."""
    names = {name.lower() for name in _names(words)}
    return not _CLAIMS.isdisjoint(names) or (value.strip().isalpha() and not _PROPERTIES.isdisjoint(names))


def _is_word(name: str) -> bool:
    """Return whether letters without a text command are a word, not a product of variables or a figure's corners."""
    long = len(name) > 4 or not name.isupper()
    return long and _WORD.fullmatch(name.lower()) is not None and name.lower() not in ascii_lowercase


def _symbol(name: str) -> Unit | None:
    """Return the unit of a symbol or name in which the case of letters counts."""
    if unit := SYMBOLS.get(name) or SYMBOLS.get(_SI_NAMES.get(name.lower().removesuffix("s"), "")):
        return unit
    alone = len(name) == 1 and name.isupper()
    return Unit(f"'{name}'", Fraction(1)) if alone else None


def _unit(words: str, power: str | None, *, marked: bool = True) -> tuple[Unit | None, int]:
    """Return the unit that words name, None if they name none, and the factor that they put before it.

    Without a text command (`marked`) symbols such as kT are products of variables.
    """
    if len(rate := _PER.split(words)) == 2:
        above, multiplier = _unit(rate[0], None, marked=marked)
        below, divisor = _unit(rate[1], power, marked=marked)
        if below is not None:
            above = above or Unit("", Fraction(1))
            unit = _product([(above, 1), (below, -1)])
            return unit._replace(factor=unit.factor / divisor), multiplier
    names = [name.lower() for name in _names(words)]
    exponent = {"2": 2, "3": 3, "²": 2, "³": 3}.get(power or "", 1)
    multiplier = 1
    while names and names[0] in _MULTIPLIERS:
        multiplier *= _MULTIPLIERS[names.pop(0)]
    if names and names[0] in ("square", "sq", "cubic"):
        exponent = 3 if names.pop(0) == "cubic" else 2
    if names and names[-1] in ("squared", "cubed"):
        exponent = 3 if names.pop() == "cubed" else 2
    if len(names) > 1 and names[-1] == "old":
        names.pop()
    if not names:
        return None, multiplier
    if names[0] in ("degree", "degrees") and names[-1] in _SCALES.values():
        names = names[1:]
    name = " ".join(names)
    unit = _symbol(_names(words)[-1]) if marked and len(names) == 1 else None
    singular = name.removesuffix("s") if len(name) > 2 else name  # ms are no metres
    unit = unit or UNITS.get(name) or UNITS.get(singular) or UNITS.get(name.removesuffix("es"))
    if unit is None:
        unit = Unit(f"'{' '.join(name.removesuffix('s') for name in names)}'", Fraction(1))
    return _product([(unit, exponent)]), multiplier


def _product(powers: list[tuple[Unit, int]]) -> Unit:
    """Return the product of powers of units; its dimension reads length*mass/time^2."""
    exponents: dict[str, int] = {}
    for unit, power in powers:
        above, _, below = unit.dimension.partition("/")
        for side, sign in ((above, power), (below, -power)):
            for part in filter(None, side.split("*")):
                name, _, exponent = part.partition("^")
                exponents[name] = exponents.get(name, 0) + sign * int(exponent or 1)
    above, below = (
        "*".join(
            f"{name}^{abs(power)}" if abs(power) > 1 else name
            for name, power in sorted(exponents.items())
            if power * sign > 0
        )
        for sign in (1, -1)
    )
    factor = prod((unit.factor**power for unit, power in powers), start=Fraction(1))
    return Unit(f"{above}/{below}" if below else above, factor)


def _in_units(text: str) -> Quantity | None:
    r"""Return the value before a product of known units: `9.8\text{ m/s^2}`, `2\text{ N}\cdot\text{m}`."""
    if (match := _PRODUCT.fullmatch(text)) is None:
        return None
    if match[2].startswith("\\Omega") and not (text[match.start(2) - 1] == " " and number(match[1]) is not None):
        return None  # a variable
    words = _OHM.sub("Ω", _MICRO.sub(r"\\text{µ", match[2]))
    words = _TEXT_COMMAND.sub(r" \1 ", words.replace("}Ω", "Ω}")).replace("\\cdot", " ")
    terms, start, below, closing = [], 0, False, False
    for term in _UNIT_TERM.finditer(words):
        if words[start : term.start()].strip():
            return None
        start = term.end()
        if term["slash"]:
            below, closing = True, term["slash"].endswith("(")
            continue
        unit, multiplier = _unit(term["name"], None)
        if unit is None or not unit.known or unit.dimension == "angle" or multiplier != 1:
            return None
        terms.append((unit, int(term["power"] or 1) * (-1 if below else 1)))
        below = below and closing and not term["end"]
    return Quantity(match[1].strip(), _product(terms)) if terms and not words[start:].strip() else None
