r"""Are two expressions equal wherever both are defined? √(ab) and √a √b, ln(x² − 1) and ln(x − 1) + ln(x + 1).

Both are calculated with many digits at fixed points of all signs. A point counts if every root, power and logarithm in
both is real there. The expressions must agree at each such point, and there must be some.
"""

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import mpmath
import sympy

_DIGITS = 40
_CLOSE, _CLOSE_TO_FLOATS = mpmath.mpf("1e-25"), mpmath.mpf("1e-12")
_POINTS, _FEWEST, _MOST_SYMBOLS = 48, 4, 8
_SIZES = (1, 3, 9)
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
    limit = _CLOSE_TO_FLOATS if first.has(sympy.Float) or second.has(sympy.Float) else _CLOSE
    agreed = 0
    with mpmath.workdps(_DIGITS):
        for point in _points(symbols):
            try:
                values = _value(first, point), _value(second, point)
            except (_Undefined, ZeroDivisionError, OverflowError):
                continue
            except TypeError:  # what is not calculated here
                return False
            if abs(values[0] - values[1]) > limit * max(abs(values[0]), abs(values[1])):
                return False
            agreed += 1
    return agreed >= _FEWEST


def _points(symbols: list[Any]) -> Iterator[dict[Any, Any]]:
    """Yield values for the variables, the same ones each time: positive ones first, then of any sign."""
    random = Random(0)
    for place in range(_POINTS):
        size = _SIZES[place % len(_SIZES)]
        signs = (1,) if place < _POINTS // 3 else (1, -1)
        yield {symbol: mpmath.mpf(random.uniform(size / 9, size)) * random.choice(signs) for symbol in symbols}


def _value(term: Any, point: dict[Any, Any]) -> Any:
    if term.is_Symbol:
        return point[term]
    if term.is_Add:
        return mpmath.fsum(_value(arg, point) for arg in term.args)
    if term.is_Mul:
        return mpmath.fprod(_value(arg, point) for arg in term.args)
    if term.is_Pow:
        base, power = (_value(arg, point) for arg in term.args)
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
        value = _FUNCTIONS[type(term)](_value(term.args[0], point))
    elif term.is_real:
        value = mpmath.mpf(sympy.N(term, _DIGITS))
    else:
        raise TypeError
    if not mpmath.isfinite(value) or isinstance(value, mpmath.mpc):
        raise _Undefined
    return value
