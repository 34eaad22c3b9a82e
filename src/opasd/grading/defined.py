r"""Are two expressions equal wherever both are defined? √(ab) and √a √b, ln(x² − 1) and ln(x − 1) + ln(x + 1).

Both are calculated with many digits at fixed points of all signs. A point counts if every root, power and logarithm in
both is real there. The expressions must agree at each such point, and there must be some. With |x| in one of them
they must also be defined at the same points.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import mpmath
import sympy

_DIGITS, _AGREE, _AGREE_WITH_FLOATS = 400, 300, 12
"""Digits that are calculated, and those that must agree; both more where a large number is in the expression."""
_MOST_BITS = 4000
_POINTS, _FEWEST, _MOST_SYMBOLS = 60, 4, 8
_SIZES = (1, 3, 9, 1000)
_FUNCTIONS: dict[type, Callable[[Any], Any]] = {
    getattr(sympy, name): getattr(mpmath, name.lower())
    for name in ["exp", "sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh"]
} | {sympy.Abs: abs}


class _Undefined(Exception):
    """A part of an expression has no real value."""


def same_where_defined(first: Any, second: Any) -> bool:
    """Return whether two real expressions with variables agree wherever both are defined."""
    if not all(isinstance(side, sympy.Expr) for side in (first, second)):
        return False
    symbols = sorted(first.free_symbols | second.free_symbols, key=str)
    if not 0 < len(symbols) <= _MOST_SYMBOLS:
        return False
    largest = max(_largest(first), _largest(second))
    if mpmath.mag(largest) > _MOST_BITS:
        return False
    figures = mpmath.mag(largest) // 3
    absolute = first.has(sympy.Abs) or second.has(sympy.Abs)  # ln |x| says that x may be negative, ln x does not
    floats = first.has(sympy.Float) or second.has(sympy.Float)
    limit = mpmath.mpf(10) ** -(_AGREE_WITH_FLOATS if floats else _AGREE + figures)
    agreed = 0
    with mpmath.workdps(_DIGITS + figures):
        # Beyond the largest number, |x - 20| is no longer 20 - x.
        for point in _points(symbols, (*_SIZES, 4 * largest)):
            try:
                one, other = _value_or_none(first, point), _value_or_none(second, point)
            except TypeError:  # what is not calculated here
                return False
            if one is None or other is None:
                if absolute and one is not other:
                    return False
                continue
            if abs(one - other) > limit * max(abs(one), abs(other)):
                return False
            agreed += 1
    return agreed >= _FEWEST


def _largest(term: Any) -> Any:
    """Return the size of the largest number in an expression, or of what is divided by it."""
    if term.is_number and term.is_real and (value := abs(mpmath.mpf(sympy.N(term, 15)))):
        return max(value, 1 / value)
    return max((_largest(arg) for arg in term.args), default=mpmath.mpf(1))


def _points(symbols: list[Any], sizes: tuple[Any, ...]) -> Iterator[dict[Any, Any]]:
    """Yield values for the variables, the same ones each time: positive ones first, then of any sign."""
    random = Random(0)
    for place in range(_POINTS):
        size = sizes[place % len(sizes)]
        signs = (1,) if place < _POINTS // 3 else (1, -1)
        yield {symbol: size * mpmath.mpf(random.uniform(1 / 9, 1)) * random.choice(signs) for symbol in symbols}


def _value_or_none(term: Any, point: dict[Any, Any]) -> Any:
    try:
        return _value(term, point)
    except (_Undefined, ZeroDivisionError, OverflowError):
        return None


def _value(term: Any, point: dict[Any, Any]) -> Any:
    if term.is_Symbol:
        return point[term]
    if term.is_Add:
        return mpmath.fsum(_value(arg, point) for arg in term.args)
    if term.is_Mul:
        return mpmath.fprod(_value(arg, point) for arg in term.args)
    if term.is_Pow:
        base, power = (_value(arg, point) for arg in term.args)
        if base < 0 and term.exp.is_Rational and term.exp.q % 2:  # an odd root is real
            return (-1 if term.exp.p % 2 else 1) * (-base) ** power
        if abs(power) > 1000 or (base <= 0 and not mpmath.isint(power)):
            raise _Undefined
        return base**power
    if isinstance(term, sympy.log):
        values = [_value(arg, point) for arg in term.args]
        if min(values) <= 0:
            raise _Undefined
        return mpmath.log(*values)
    if not term.is_number and type(term) not in _FUNCTIONS:
        raise TypeError
    if not term.is_number:
        argument = _value(term.args[0], point)
        if mpmath.mag(argument) > _MOST_BITS:
            raise _Undefined
        value = _FUNCTIONS[type(term)](argument)
    elif term.is_real:
        value = mpmath.mpf(sympy.N(term, mpmath.mp.dps))
    else:
        raise TypeError
    if not mpmath.isfinite(value) or isinstance(value, mpmath.mpc):
        raise _Undefined
    return value
