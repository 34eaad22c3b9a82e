"""The algebra of grading: math-verify and sympy, with the cases in which they would be wrong."""

import re
from collections import Counter
from functools import partial
from typing import Any

import sympy
from latex2sympy2_extended.math_normalization import NormalizationConfig
from math_verify import LatexExtractionConfig, parse, verify

from opasd.grading.defined import same_where_defined
from opasd.grading.equality import equal
from opasd.grading.names import chain
from opasd.grading.relations import is_false, parts, same_relation, solution_set
from opasd.grading.symbols import plain_symbols
from opasd.grading.tidying import bare

FLOAT_DIGITS = 12
"""Digits in which a decimal must agree with an expression: an approximation is no answer."""
_RELATIVE = "1e-12"
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-z])")
_DIVISOR = re.compile(r"\\(?:gcd|lcm)(?![a-z])|\\(?:text|operatorname)\s*\{\s*(?:gcd|lcm)\s*\}")
_UNREAD = re.compile(r"\\ldots|\\vec(?![a-zA-Z]).*\\times|_(?:\w|\{[^{}]*\})_", re.DOTALL)
_FIGURES = re.compile(r"\d+", re.ASCII)
_NATURAL_LOG = re.compile(r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})")
_DECIMAL_LOG = re.compile(r"\\lg(?![a-zA-Z])")
# The parser adds numbers that stand side by side: 2(3) and (2)(3) would be 5.
_ALONE = r"(?:(?<![a-zA-Z\d_\\.])(?<!_\{)|(?<=\\cdot)|(?<=\\times))\d+(?:\.\d+)?"
_FACTORS = re.compile(rf"({_ALONE}|\))\s*(?=(?:\\left\s*)?[(\[]\s*[-+]?\s*(?:[\d.]|\\frac))|(\))\s*(?=\d)", re.ASCII)
_SIDE_BY_SIDE = re.compile(rf"(?<!\^)(?<!\^\{{){_ALONE}(?:\s+\d+(?![\d.]*\s*/)|\s*\{{\s*-?\d)", re.ASCII)
_VARIABLE = re.compile(r"(?<![a-zA-Z\\{])[a-zA-Z](?![a-zA-Z])")
_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*(?:\^\s*(?:\\circ|\{\s*\\circ\s*\}|°|\{°\})|°|\\degree)", re.ASCII)


def equal_by_algebra(gold: str, answer: str, tolerance: float = 0.0) -> bool:
    """Return whether two expressions are equal by math-verify; what cannot be parsed equals nothing."""
    if any(map(_UNREAD.search, (gold, answer))) or any(map(_SIDE_BY_SIDE.search, (gold, answer))):
        return False  # the parser leaves out dots and a second index, and takes a cross product for any product
    if any(_DIVISOR.search(text) and _VARIABLE.search(text) for text in (gold, answer)):
        return False  # the parser takes the common divisor of two variables for 1
    first, second = map(_parse, plain_symbols((gold, answer)))
    if first is None or second is None or _points_and_interval(first, second):
        return False
    if parts(first) and parts(second):
        return _same_figures(gold, answer, first, second) and same_relation(first, second)
    if is_false(first) or is_false(second):
        return False
    (left, *links), (other_left, *other_links) = chain(gold), chain(answer)
    if links and other_links:  # the parser left a side out, P(X=1) in P(X=1) = 0.3
        return bare(left) == bare(other_left) and equal_by_algebra(links[-1], other_links[-1], tolerance)
    if not parts(first) and not isinstance(first, sympy.Set) and _is_unsolved(second):
        return False
    if verify([first], [second], float_rounding=FLOAT_DIGITS, allow_set_relation_comp=True, timeout_seconds=None):
        return _close(first, second) is not False
    if tolerance and _close(first, second, tolerance):
        return True
    return _same_complex(first, second) or _same_when_done(first, second) or same_where_defined(first, second)


def _parse(text: str) -> Any:
    # math-verify would take the variable m for metres; `equality` has removed real units.
    normal = NormalizationConfig(basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none")
    target = LatexExtractionConfig(boxed_match_priority=-1, normalization_config=normal)
    text = text.replace("$", "").replace("\\varnothing", "\\emptyset")
    text = _NATURAL_LOG.sub(r"\\ln ", _DECIMAL_LOG.sub(r"\\log_{10}", text))
    text = _FACTORS.sub(r"\1\2\\cdot ", text)
    if _ANGLE_FUNCTION.search(text):
        text = _DEGREES.sub(r"{\\frac{\1\\pi}{180}}", text)
    parsed = parse(f"$${text}$$", [target], fallback_mode="no_fallback", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
    if not parsed or (isinstance(parsed[0], sympy.Basic) and parsed[0].has(sympy.zoo, sympy.nan)):
        return None
    found = _with_double_factorials(parsed[0]) if "!!" in text else _with_exact_powers(parsed[0])
    return _as_set(_with_real_roots(found) if "\\sqrt[" in text else found, text)


def _same_figures(gold: str, answer: str, first: Any, second: Any) -> bool:
    """Return whether equations of numbers alone have the same numbers; the parser makes 6/2 = 3 of 9/3 = 3."""
    if first.free_symbols or second.free_symbols:
        return True
    return Counter(_FIGURES.findall(gold)) == Counter(_FIGURES.findall(answer))


def _is_unsolved(relation: Any) -> bool:
    """Return whether it is an equation about something made of one variable: neither 2x = 6 nor x² = 6 says 6.

    A function of it, such as tan θ or |z|, may be what was asked for.
    """
    if not isinstance(relation, sympy.Eq) or not isinstance(relation.lhs, sympy.Expr):
        return False
    side: Any = relation.lhs.doit()
    side = side if side.free_symbols else relation.rhs
    return len(side.free_symbols) == 1 and not side.is_Symbol and bool(side.is_algebraic_expr())


def _with_real_roots(parsed: Any) -> Any:
    """Take the real root as the odd root of a negative number; the algebra takes a complex one."""
    if not isinstance(parsed, sympy.Basic):
        return parsed
    return parsed.replace(
        lambda term: (
            term.is_Pow and term.exp.is_Rational and term.exp.p == 1 and term.exp.q % 2 == 1 and term.base.is_negative
        ),
        lambda term: -((-term.base) ** term.exp),
    )


def _with_exact_powers(parsed: Any) -> Any:
    """Take x^0.5 as the square root; the algebra rounds powers that are decimals."""
    if not isinstance(parsed, sympy.Basic) or not parsed.has(sympy.Float):
        return parsed
    return parsed.replace(
        lambda term: term.is_Pow and term.exp.is_Float, lambda term: term.base ** sympy.Rational(str(term.exp))
    )


def _with_double_factorials(parsed: Any) -> Any:
    """Take 5!! as 5 · 3 · 1; the parser takes it for the factorial of 120."""
    if not isinstance(parsed, sympy.Basic):
        return parsed
    return parsed.replace(
        lambda term: isinstance(term, sympy.factorial) and isinstance(term.args[0], sympy.factorial),
        lambda term: sympy.factorial2(term.args[0].args[0]),
    )


def _as_set(parsed: Any, text: str) -> Any:
    """Turn several inequalities into the set that satisfies all of them, or with `or` any of them."""
    if not isinstance(parsed, sympy.FiniteSet) or not all(map(parts, parsed.args)):
        return parsed
    if len({symbol for relation in parsed.args for symbol in relation.free_symbols}) > 1:
        return None
    try:
        sets = [relation.as_set() for relation in parsed.args]  # pyright: ignore[reportAttributeAccessIssue]
    except NotImplementedError:
        return None
    return sympy.Union(*sets) if re.search(r"\bor\b|或", text) else sympy.Intersection(*sets)


def _points_and_interval(first: Any, second: Any) -> bool:
    """Return whether one side is a list and the other an interval, which the algebra takes for its two ends."""
    listed = [isinstance(side, sympy.FiniteSet | sympy.Tuple) for side in (first, second)]
    return listed[0] != listed[1] and isinstance(solution_set(second if listed[0] else first), sympy.Interval)


def _close(first: Any, second: Any, tolerance: float | str = _RELATIVE) -> bool | None:
    """Return whether two numbers agree relative to the first one's size; None if one is no finite number."""
    if not all(isinstance(side, sympy.Expr) and side.is_number for side in (first, second)):
        return None
    first, second = first.doit(), second.doit()
    values = [sympy.N(side, 30) for side in (first, second)]
    if not all(value.is_finite for value in values):
        return None
    if tolerance == _RELATIVE and not first.has(sympy.Float) and not second.has(sympy.Float):
        # Exact numbers that differ far behind the point are two numbers.
        return bool(abs(sympy.N(first - second, 60)) <= sympy.Float("1e-50") * abs(values[0]))
    return bool(abs(values[0] - values[1]) <= sympy.Float(tolerance, 30) * abs(values[0]))


def _same_complex(first: Any, second: Any) -> bool:
    """Return whether the sides are equal if i is the imaginary unit."""
    units = [symbol for side in (first, second) for symbol in getattr(side, "free_symbols", ()) if symbol.name == "i"]
    if not units or not all(isinstance(side, sympy.Expr) for side in (first, second)):
        return False
    first, second = (side.subs(dict.fromkeys(units, sympy.I)) for side in (first, second))
    return _close(first, second) is True or bool(sympy.simplify(sympy.expand(first - second)) == 0)


def _same_when_done(first: Any, second: Any) -> bool:
    """Return whether the sides are equal when their sums and products are carried out.

    Also where one is a single variable, which math-verify compares as a text: 2k/2 is k.
    """
    variable = any(isinstance(side, sympy.Symbol) for side in (first, second))
    if not _are_expressions_with(first, second, *((sympy.Expr,) if variable else (sympy.Sum, sympy.Product))):
        return False
    gap = first - second
    limits = [limit for term in gap.atoms(sympy.Sum, sympy.Product) for limit in term.limits]
    counts = {symbol.name for _, *ends in limits for end in ends for symbol in end.free_symbols}
    plain = {  # the parser's symbols differ in their assumptions from text to text
        symbol: sympy.Symbol(symbol.name, **dict.fromkeys(["positive", "integer"] * (symbol.name in counts), True))
        for symbol in gap.free_symbols
    }
    return any(bool(sympy.simplify(side.doit()) == 0) for side in (gap, gap.subs(plain)))


def _are_expressions_with(first: Any, second: Any, *kinds: type) -> bool:
    return all(isinstance(side, sympy.Expr) for side in (first, second)) and (first.has(*kinds) or second.has(*kinds))


def compare(gold: str, answer: str, tolerance: float = 0.0) -> bool | None:
    """Return whether two answers are equal; None if the comparison failed."""
    try:
        return equal(gold, answer, partial(equal_by_algebra, tolerance=tolerance), tolerance=tolerance)
    except Exception:  # the parser and the algebra raise all kinds
        return None
