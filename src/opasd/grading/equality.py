r"""Are two answers equal? This module knows lists, names, units and numbers; the caller decides about expressions.

    equal(r"\{1, 2\}", "2, 1", decide)        sets and lists: any order
    equal("(1, 2)", "(2, 1)", decide)         tuples, points and intervals: in order, and brackets matter
    equal("x = 5", r"5\text{ cm}", decide)    a name or a unit that one side leaves out does not matter

`decide(gold, answer)` is called with two single expressions that are neither the same text nor two numbers. It may
return None for unknown, and then `equal` may too. So the quick grader of training and the one with a computer algebra
system share every rule except the algebra.
"""

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import NamedTuple

from opasd.grading.arithmetic import contradicts_itself
from opasd.grading.bases import in_base
from opasd.grading.layout import Pieces, pieces
from opasd.grading.listing import (
    OR,
    both_signs,
    in_order_of,
    joined_otherwise,
    may_be_in_brackets,
    names_give_order,
    pairs_off,
    solutions,
    without_names,
)
from opasd.grading.names import (
    about_parts,
    chain,
    differ_in_case,
    name_first,
    name_of,
    name_other_angles,
    names_of,
    plain_name,
    same_letter_forms,
    same_variables,
    without_shared_name,
)
from opasd.grading.quantities import UNITS, Residue, is_money_at_a_rate, number, quantity, residue
from opasd.grading.reading import unboxed
from opasd.grading.tidying import bare, inside, is_balanced, split, tidy
from opasd.grading.times import same_time
from opasd.grading.words import (
    around_words,
    choice,
    differ_in_first_word,
    has_article,
    in_words,
    is_prose,
    starts_with_words,
    without_answer_is,
    without_leads,
    words_apart,
)

Decide = Callable[[str, str], bool | None]


class Rules(NamedTuple):
    """What the comparison of two single values needs."""

    decide: Decide
    tolerance: Fraction = Fraction(0)
    """How far a number may be from the known one, as a share of it."""

    def same_number(self, gold: Fraction, answer: Fraction) -> bool:
        return abs(gold - answer) <= self.tolerance * abs(gold)


LONGEST = 1000
MOST_ITEMS = 100
"""A longer answer, or one of more items, is compared as text alone."""

# Names of values: `x \in (1, 2)`, `(x, y) = (1, 2)`, `x | x > 2`; see also `names`.
_MEMBER = re.compile(r"([a-zA-Z])\s*(?:\\in(?![a-zA-Z])|∈)\s*(.+)", re.DOTALL)
_NAMED_WHOLE = re.compile(
    r"(\([^()=]*\)|\\vec\s*\{?\w\}?|[a-zA-Z]\w?)\s*=\s*(?=[(\[]|\\\{|\\langle|\\begin)(.+)", re.DOTALL
)
_SUCH_THAT = re.compile(r"[a-zA-Z]\s*(?:\\in\s*\\mathbb\s*\{?R\}?\s*)?(?:\||:|\\mid|\\vert)\s*(.+)", re.DOTALL)
# Lists, vectors and intervals.
_RELATION = re.compile(r"[<>≤≥∪∈]|\\(?:leq?|geq?|leqslant|geqslant|lt|gt|in|cup|cap|mathbb|setminus)(?![a-zA-Z])")
_INFINITY = re.compile(r"\\infty|infinity")
_COLUMN = re.compile(r"\\begin\s*\{([pb]matrix)\}((?:(?!\\begin|&).)*)\\end\s*\{\1\}", re.DOTALL)
# Numbers.
_PERCENT = re.compile(
    r"(.*?\S)\s*(?:\\%|%|\\text\s*\{\s*per ?cent(?:age)?\s*\}|per ?cent(?:age)?)", re.DOTALL | re.IGNORECASE
)
_STERLING = re.compile(r"£|\\pounds(?![a-zA-Z])")
_POUNDS = re.compile(r"(?<![a-zA-Z\\])pounds?(?![a-zA-Z])", re.IGNORECASE)
_HALVES_OF_DAY = {UNITS["am"], UNITS["pm"]}
RADIAN = UNITS["radian"]
_IN_RADIANS = re.compile(r"\\(?:pi|arc(?:sin|cos|tan)|(?:sin|cos|tan)\s*\^\s*\{\s*-\s*1\s*\})(?![a-zA-Z])")


class Items(NamedTuple):
    """An answer's items and the brackets around them: "" for a bare list, "{}" for a set, "(]" for an interval."""

    text: str
    brackets: str
    values: tuple[str, ...]
    is_interval: bool
    """It cannot be a point: a variable is in it, it is half open, or it has an infinite end."""
    name: str = ""
    """What it is the value of: A, or (x,y)."""


def equal(gold: str, answer: str, decide: Decide, *, tolerance: float = 0.0) -> bool | None:
    """Return whether `answer` equals `gold`, None if `decide` left it open. An empty answer equals nothing."""
    gold, answer = unboxed(gold), unboxed(answer)
    if any(len(text) > LONGEST or text.count(",") + text.count(";") > MOST_ITEMS for text in (gold, answer)):
        return gold.strip() == answer.strip()
    gold, answer = same_letter_forms(*(without_answer_is(tidy(text)) for text in (gold, answer)))
    if not bare(gold) or not bare(answer):
        return False
    if bare(gold) == bare(answer):
        return True
    if (letter := choice(gold, marked=True)) is not None:
        return letter == choice(answer)
    if (words := in_words(gold, certain=not has_article(answer))) is not None:
        others = in_words(answer, certain=False)
        if others is not None or " and " not in words:
            return words == others
    if differ_in_first_word(gold, answer):
        return False
    gold, answer = map(name_first, without_leads(gold, answer))
    if contradicts_itself(answer):
        return False
    answer = same_variables(gold, answer)
    try:
        return _same(_items(gold), _items(answer), Rules(decide, Fraction(tolerance).limit_denominator(10**9)))
    except RecursionError:
        return None


def _items(text: str) -> Items:
    """Return the answer's items; in lists and sets ± becomes two of them."""
    is_member, name = _MEMBER.fullmatch(text) is not None, ""
    for pattern in (_MEMBER, _NAMED_WHOLE):
        if (named := pattern.fullmatch(text)) and "=" not in named[2]:
            name, text = plain_name(named[1]), named[2]
    text = words_apart(text)
    brackets, values = "", solutions(text) or split(text)
    if len(values) == 1 and (enclosed := inside(text)) is not None:
        brackets, inner = enclosed
        if brackets == "{}" and (condition := _SUCH_THAT.fullmatch(inner)) and inner[0] in condition[1]:
            return _items(condition[1])._replace(name="")
        values = split(inner, thousands=brackets == "{}")
        if brackets == "" or (brackets == "()" and len(values) == 1):
            return _items(inner)._replace(name=name)
    if brackets == "()" and len(values) > 1 and len(points := both_signs(text)) > 1:
        return Items(text, "", tuple(points), is_interval=False, name=name)
    if brackets in ("", "{}"):
        signed = [one for value in values for one in both_signs(value)]
        text, values = text if brackets or signed == values or "\\{" in text else ", ".join(signed), signed
    endless = len(values) == 2 and any(map(_INFINITY.search, values))
    is_interval = brackets not in ("", "{}") and (is_member or endless or brackets in ("(]", "[)"))
    return Items(text, brackets, tuple(values), is_interval, name)


def _same(gold: Items, answer: Items, rules: Rules, *, is_item: bool = False) -> bool | None:
    gold, answer = _each_named(gold, answer), _each_named(answer, gold)
    gold, answer = _assigned(gold, answer.name), _assigned(answer, gold.name)
    if gold.name and answer.name and gold.name != answer.name:
        if (reordered := _reordered(answer, gold.name)) is None:
            return False
        answer = reordered
    gold, answer = _as_tuple(gold, answer), _as_tuple(answer, gold)
    if not is_item:
        gold, answer = _only_element(gold, answer), _only_element(answer, gold)
    if len(gold.values) == len(answer.values) == 1 and {gold.brackets, answer.brackets} <= {"", "{}"}:
        if gold.brackets != answer.brackets and (is_item or "\\emptyset" in (*gold.values, *answer.values)):
            return False
        return _same_value(gold.values[0], answer.values[0], rules)
    verdict = _same_items(gold, answer, rules)
    texts = gold.text, answer.text
    if verdict is False and any(map(_RELATION.search, texts)) and not any(map(is_prose, texts)):
        return rules.decide(gold.text, answer.text)  # an interval and an inequality, two inequalities and a union
    return verdict


def _reordered(items: Items, name: str) -> Items | None:
    """Return (y, x) = (2, 1) in the order of the name (x, y); None if the name is that of something else."""
    if name.startswith("(") != items.name.startswith("("):
        return items  # a point and its coordinates
    wanted, letters = (text.strip("()").split(",") for text in (name, items.name))
    if sorted(wanted) != sorted(letters) or len({*wanted}) != len(items.values) or items.brackets != "()":
        return None
    return items._replace(values=tuple(items.values[letters.index(letter)] for letter in wanted))


def _assigned(items: Items, name: str) -> Items:
    """Return y = 2, x = 1 as (y, x) = (2, 1), if the other side has such a name."""
    names = [name_of(value) for value in items.values]
    if not name.startswith("(") or items.brackets or not all(names):
        return items
    values = tuple(chain(value)[-1] for value in items.values)
    return items._replace(brackets="()", values=values, name=f"({','.join(filter(None, names))})")


def _each_named(items: Items, other: Items) -> Items:
    """Return x = y = 1 as x = 1, y = 1, if the other side has several values."""
    names = names_of(items.text) if len(items.values) == 1 < len(other.values) and not items.brackets else []
    value = chain(items.text)[-1]
    return items._replace(values=tuple(f"{name}={value}" for name in names)) if len(names) > 1 else items


def _only_element(items: Items, other: Items) -> Items:
    """Return the point in a set of one point, if the other side is no set."""
    is_set_of_one = items.brackets == "{}" and len(items.values) == 1
    return _items(items.values[0]) if is_set_of_one and other.brackets == "()" else items


def _as_tuple(items: Items, other: Items) -> Items:
    """Return a column vector as the tuple of its rows, if the other side is a tuple."""
    column = _COLUMN.fullmatch(items.text)
    if column is None or other.brackets != "()" or other.is_interval:
        return items
    rows = tuple(row.strip() for row in column[2].split("\\\\") if row.strip())
    return Items(items.text, "()", rows, is_interval=False)


def _same_items(gold: Items, answer: Items, rules: Rules) -> bool | None:
    in_order = in_order_of(gold.brackets, answer.brackets, len(gold.values))
    if in_order is False and names_give_order(gold.values, answer.values):
        in_order = True
    sets = gold.brackets == answer.brackets == "{}"  # a set has an element once, however often it is written
    if "" in (gold.brackets, answer.brackets) and (gold.is_interval or answer.is_interval):
        return False
    if in_order and any(map(_is_choice_of_values, (gold, answer))):
        return False
    if joined_otherwise(gold.text, answer.text) and all(map(_RELATION.search, (*gold.values, *answer.values))):
        return False
    if (
        {gold.brackets, answer.brackets} == {"", "[]"}
        and len(gold.values) == 1
        and not may_be_in_brackets(gold.values[0])
    ):
        return False
    counts = len(gold.values), len(answer.values)
    if in_order is None or (len({*counts}) > 1 and not sets) or max(counts) > MOST_ITEMS:
        return False
    golds, answers = ([_items(value) for value in values] for values in without_names(gold.values, answer.values))
    if in_order:
        return _all(_same(a, b, rules, is_item=True) for a, b in zip(golds, answers, strict=True))
    matches = [[_same(a, b, rules, is_item=True) for b in answers] for a in golds]
    if sets:
        rows = (*matches, *zip(*matches, strict=True))
        return _all(True in row or (None if None in row else False) for row in rows)
    return _paired(matches)


def _is_choice_of_values(items: Items) -> bool:
    """Return whether a bare list has several values of one thing, x = 1 or x = 2; that is no tuple."""
    names = [name for name in map(name_of, items.values) if name]
    return items.brackets == "" and (len({*names}) < len(names) or OR.search(items.text) is not None)


def _same_value(gold: str, answer: str, rules: Rules) -> bool | None:
    (gold, *about), (answer, *answer_about) = about_parts(gold), about_parts(answer)
    if about and answer_about and _same_value(about[0], answer_about[0], rules) is not True:
        return False
    if name_other_angles(gold, answer):
        return False
    gold, answer = without_shared_name(gold, same_variables(gold, answer))
    if bare(gold) == bare(answer):
        return bare(gold) != ""
    in_pieces = pieces(gold), pieces(answer)
    if any(in_pieces):
        return _same_pieces(*in_pieces, rules)
    if any(around_words(quantity(text).value)[0] for text in (gold, answer)):
        (words, golds), (answer_words, answers) = around_words(gold), around_words(answer)
        if words != answer_words:
            return False
        return _all(_same(_items(a), _items(b), rules) for a, b in zip(golds, answers, strict=True))
    ratios = _ratio(gold), _ratio(answer)
    if any(ratios):
        return _same_ratio(*ratios, rules)
    residues = residue(gold), residue(answer)
    if any(side.modulus for side in residues):
        return _same_residue(*residues, rules)
    bases = in_base(gold), in_base(answer)
    if any(bases):
        return bases[0] == bases[1]
    if (verdict := _same_percent(gold, answer, rules)) is not None:
        return verdict
    if any(map(_STERLING.search, (gold, answer))):
        gold, answer = (_POUNDS.sub("£", text) for text in (gold, answer))  # pounds are a weight otherwise
    return _same_quantity(gold, answer, rules)


def _same_quantity(gold: str, answer: str, rules: Rules) -> bool | None:
    (gold, gold_unit), (answer, answer_unit) = quantity(gold), quantity(answer)
    halves = (unit.dimension if unit and unit in _HALVES_OF_DAY else "" for unit in (gold_unit, answer_unit))
    plain = {gold_unit, answer_unit} <= {None, *_HALVES_OF_DAY}
    if plain and (verdict := same_time(*zip(map(bare, (gold, answer)), halves, strict=True))) is not None:
        return verdict
    if {gold_unit, answer_unit} & _HALVES_OF_DAY and None in (gold_unit, answer_unit) and ":" not in gold:
        return False
    if (gold_unit is None) != (answer_unit is None) and _IN_RADIANS.search(gold if gold_unit is None else answer):
        degrees = UNITS["degree"]
        gold_unit, answer_unit = (
            RADIAN if unit is None and other == degrees else unit
            for unit, other in ((gold_unit, answer_unit), (answer_unit, gold_unit))
        )
    if gold_unit and answer_unit and {gold_unit.dimension, answer_unit.dimension} == {"angle", "radian"}:
        gold, answer = (
            value if unit.dimension == "radian" else rf"\frac{{\pi}}{{180}}({value})"
            for value, unit in ((gold, gold_unit), (answer, answer_unit))
        )
        gold_unit = answer_unit
    gold_number, answer_number = number(bare(gold)), number(bare(answer))
    if gold_unit and answer_unit and gold_unit != answer_unit:
        if gold_unit.dimension != answer_unit.dimension:
            return is_money_at_a_rate(gold_unit, answer_unit) and _same_quantity(gold, answer, rules)
        factor = gold_unit.factor / answer_unit.factor
        if gold_number is not None and answer_number is not None:
            return rules.same_number(gold_number * factor, answer_number)
        gold, gold_number = rf"\frac{{{factor.numerator}}}{{{factor.denominator}}}\cdot({gold})", None
    if gold_number is not None and answer_number is not None:
        return rules.same_number(gold_number, answer_number)
    if bare(gold) == bare(answer):
        return bare(gold) != ""
    no_expression = (starts_with_words(text) or not is_balanced(text) for text in (gold, answer))
    if differ_in_case(gold, answer) or any(no_expression) or is_prose(gold) or is_prose(answer):
        return False
    return rules.decide(gold, answer)


def _same_pieces(gold: Pieces | None, answer: Pieces | None, rules: Rules) -> bool | None:
    """Return whether functions in pieces have the same values under the same conditions, in any order."""
    if not gold or not answer or len(gold[1]) != len(answer[1]):
        return False
    if gold[0] and answer[0] and plain_name(gold[0]) != plain_name(answer[0]):
        return False
    matches = [
        [_all(_same(_items(a), _items(b), rules) for a, b in zip(piece, other, strict=True)) for other in answer[1]]
        for piece in gold[1]
    ]
    return _paired(matches)


def _paired(matches: list[list[bool | None]]) -> bool | None:
    """Return whether each row has a column of its own that it matches, None if that is open."""
    if pairs_off([[match is True for match in row] for row in matches]):
        return True
    return None if pairs_off([[match is not False for match in row] for row in matches]) else False


def _ratio(text: str) -> list[str]:
    """Return the terms of a ratio of three or more, 3:4:5; nothing if it is none."""
    terms = [term.strip() for term in text.split(":")] if text.count(":") > 1 else []
    return terms if all(terms) and all(map(is_balanced, terms)) else []


def _same_ratio(gold: list[str], answer: list[str], rules: Rules) -> bool | None:
    """1:2:3 is 2:4:6, not 1:3:2; with a leading zero, as in the time 1:02:03, each term must be the same."""
    if len(gold) != len(answer):
        return False
    values = [[number(bare(term)) for term in side] for side in (gold, answer)]
    known = [[value for value in side if value] for side in values]
    if len(known[0]) == len(known[1]) == len(gold) and not any(term.startswith("0") for term in (*gold, *answer)):
        return all(a * known[1][0] == b * known[0][0] for a, b in zip(*known, strict=True))
    return _all(_same_value(a, b, rules) for a, b in zip(gold, answer, strict=True))


def _same_residue(gold: Residue, answer: Residue, rules: Rules) -> bool | None:
    """Two residues are equal in the same modulus; one that leaves the modulus out must be the same number."""
    if gold.name and answer.name and gold.name != answer.name:
        return False
    if gold.modulus and answer.modulus:
        if bare(gold.modulus) != bare(answer.modulus):
            return False
        values = [number(bare(text)) for text in (gold.value, answer.value, gold.modulus)]
        if all(value is not None and value.denominator == 1 for value in values):
            first, second, size = (int(value) for value in values if value is not None)
            return size > 0 and (first - second) % size == 0
    return _same_value(gold.value, answer.value, rules)


def _same_percent(gold: str, answer: str, rules: Rules) -> bool | None:
    """50 % is 1/2; it is also 50 if the other side leaves the sign out, unless the number is below 1."""
    marks = _PERCENT.fullmatch(gold), _PERCENT.fullmatch(answer)
    first, second = (number(bare(mark[1] if mark else text)) for mark, text in zip(marks, (gold, answer), strict=True))
    if not any(marks) or first is None or second is None:
        return None
    if all(marks):
        return rules.same_number(first, second)
    # Both as the known answer has them.
    scaled = second * 100 if marks[0] else second / 100
    return rules.same_number(first, scaled) or (rules.same_number(first, second) and abs(first) >= 1)


def _all(verdicts: Iterable[bool | None]) -> bool | None:
    known = list(verdicts)
    return False if False in known else None if None in known else True
