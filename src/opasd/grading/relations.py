"""Are two equations or inequalities the same? As they are written, not whether both are true.

With d = left − right of each, they are the same if d₁ = c · d₂ for a number c ≠ 0, c > 0 for an inequality; the
denominators of an equation do not count. Where d has no variable, or is zero for all values, the sides themselves must
be the same: 1 + 1 = 2 is not 2 + 2 = 4. Otherwise the solutions decide, if there are some and not all numbers are.
"""

from typing import Any

import sympy
from latex2sympy2_extended.logic import And
from sympy.core.relational import Eq, Ge, Gt, Le, Lt, Ne, Relational
from sympy.functions.elementary.trigonometric import TrigonometricFunction

_FLIPPED = {Lt: Gt, Le: Ge}


def parts(relation: Any) -> list[Relational]:
    """Return the relations of a chain such as 1 < x < 3; none if it is no relation."""
    if isinstance(relation, Relational):
        return [relation]
    links = getattr(relation, "_unsorted_args", ()) if isinstance(relation, And) else ()
    return [*links] if links and all(isinstance(link, Relational) for link in links) else []


def same_relation(first: Any, second: Any) -> bool:
    """Return whether two relations, or two chains of them, are the same."""
    golds, answers = parts(first), parts(second)
    if len(golds) == len(answers):
        orders = (answers, answers[::-1])
        if any(all(map(_same, golds, order)) for order in orders):
            return True
    if any(map(_is_trivial, (*golds, *answers))):
        return False
    return _same_solutions(first, second)


def is_false(relation: Any) -> bool:
    """Return whether it is an equation of numbers that does not hold, such as 3 = 5."""
    try:
        gaps = [_gap(part.lhs, part.rhs) for part in parts(relation) if isinstance(part, Eq) and not part.free_symbols]
    except (TypeError, AttributeError):  # a side is a set
        return False
    return any(gap.is_zero is False for gap in gaps)


def _normal(relation: Relational) -> tuple[type, Any, Any]:
    """Return a relation as =, ≠, > or ≥ with its sides in that order."""
    kind = type(relation)
    if kind in _FLIPPED:
        return _FLIPPED[kind], relation.rhs, relation.lhs
    return kind, relation.lhs, relation.rhs


def _gap(left: Any, right: Any) -> Any:
    return sympy.simplify((left - right).doit())


def _is_trivial(relation: Relational) -> bool:
    """Return whether a relation has no variable or holds for all values of its variables, by algebra alone."""
    try:
        _, left, right = _normal(relation)
        return not _gap(left, right).free_symbols
    except (TypeError, AttributeError):
        return True


def _same(first: Relational, second: Relational) -> bool:
    (kind, left, right), (other_kind, other_left, other_right) = _normal(first), _normal(second)
    if kind is not other_kind:
        return False
    symmetric = kind in (Eq, Ne)
    sides = [_written(side) for side in (left, right)]
    others = [_written(side) for side in (other_left, other_right)]
    if sides == others or (symmetric and sides == others[::-1]):
        return True
    try:
        gaps = [_gap(left, right), _gap(other_left, other_right)]
    except (TypeError, AttributeError):  # a side is a set
        return False
    if not all(gap.free_symbols for gap in gaps) or gaps[0].free_symbols != gaps[1].free_symbols:
        return False
    ratio = sympy.simplify(gaps[0] / gaps[1])
    if not ratio.free_symbols:
        return bool(ratio.is_nonzero if symmetric else ratio.is_positive)
    if not symmetric:
        return False
    above = [sympy.expand(sympy.fraction(sympy.together(gap))[0]) for gap in gaps]
    if not all(numerator.free_symbols for numerator in above):
        return False  # 1/x = 0 and 2/x² = 0 have no solution
    ratio = sympy.simplify(above[0] / above[1])
    return not ratio.free_symbols and bool(ratio.is_nonzero)


def _written(side: Any) -> Any:
    """Return an expression as it is written, up to the order of terms and factors."""
    if not isinstance(side, sympy.Basic) or not side.args:
        return str(side)
    args = [_written(arg) for arg in side.args]
    return side.func.__name__, tuple(sorted(args, key=repr) if isinstance(side, sympy.Add | sympy.Mul) else args)


def _same_solutions(first: Any, second: Any) -> bool:
    """Return whether both have the same solutions, some but not all numbers."""
    if first.free_symbols != second.free_symbols or any(side.has(TrigonometricFunction) for side in (first, second)):
        return False  # of solutions that repeat, the solver finds a few
    if all(isinstance(side, Eq) for side in (first, second)):
        symbols = sorted(first.free_symbols, key=str)
        if len(symbols) != 1:  # with several variables, the solver would find only what it can
            return False
        try:
            solutions = [sympy.solve(side, symbols, dict=True) for side in (first, second)]
        except NotImplementedError:
            return False
        listed = [{frozenset(found.items()) for found in side} for side in solutions]
        return listed[0] == listed[1] != set()
    solutions = [solution_set(side) for side in (first, second)]
    if solutions[0] in (None, sympy.S.Reals, sympy.S.EmptySet):
        return False
    return bool(solutions[0] == solutions[1])


def solution_set(side: Any) -> Any:
    """Return a set itself, or the set that satisfies an inequality; None if that is unknown."""
    if isinstance(side, sympy.Set):
        return side
    if not parts(side) or side.has(Eq):
        return None
    try:
        return side.as_set()
    except Exception:  # more than one variable, or too hard to solve
        return None
