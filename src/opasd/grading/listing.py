r"""The items of a list: which signs they have, and in which order they must be.

both_signs(r"1 \pm 2")           ["1 + 2", "1 - 2"]
in_order_of("()", "", 2)         True: a bare list may stand for a tuple, in its order
"""

import re
from collections.abc import Iterator, Sequence
from itertools import product

from opasd.grading.names import chain, name_of
from opasd.grading.quantities import number
from opasd.grading.tidying import bare, split

_PLUS_MINUS = re.compile(r"\\pm(?![a-zA-Z])|±|\\mp(?![a-zA-Z])|∓")
_OPPOSITE = {"\\mp", "∓"}
_MOST_SIGNS = 3
_NEXT = re.compile(r";|\\text\s*\{\s*,?\s*or\s*\}|(?<![a-zA-Z\\{])or(?![a-zA-Z}])")
OR, _ALSO = (
    re.compile(rf"\\text\s*\{{\s*,?\s*{word}\s*\}}|(?<![a-zA-Z\\{{]){word}(?![a-zA-Z}}])|{sign}", re.ASCII)
    for word, sign in (("or", "或"), ("and", "和"))
)
_NAME_INDEX = re.compile(r"[_\d'].*")


def one_choice_of_signs(text: str) -> bool:
    """Return whether one ±, or one that is opposite to another, gives the text two readings."""
    signs = _PLUS_MINUS.findall(text)
    return len(signs) == 1 or not _OPPOSITE.isdisjoint(signs)


def both_signs(value: str) -> list[str]:
    """Return what a value with ± says, itself alone if it has none; each ± is free, but ∓ is opposite to ±."""
    signs = _PLUS_MINUS.findall(value)
    if not signs or len(signs) > _MOST_SIGNS:
        return [value]
    if one_choice_of_signs(value):
        choices = [["-+"[(sign in _OPPOSITE) ^ plus] for sign in signs] for plus in (True, False)]
    else:
        choices = product("+-", repeat=len(signs))
    return [_with_signs(value, iter(choice)) for choice in choices]


def _with_signs(value: str, signs: Iterator[str]) -> str:
    return _PLUS_MINUS.sub(lambda _: next(signs), value).removeprefix("+").strip()


def pairs_off(matches: Sequence[Sequence[bool]]) -> bool:
    """Return whether every row can have a column of its own that it matches."""
    row_of: dict[int, int] = {}

    def place(row: int, tried: set[int]) -> bool:
        for column, match in enumerate(matches[row]):
            if match and column not in tried:
                tried.add(column)
                if column not in row_of or place(row_of[column], tried):
                    row_of[column] = row
                    return True
        return False

    return all(place(row, set()) for row in range(len(matches)))


def in_order_of(gold: str, answer: str, count: int) -> bool | None:
    """Return whether items in these brackets must be in order; None if no order could make them equal."""
    if {gold, answer} == {"", "[]"} and count == 2:
        return None  # a closed interval is no list
    if gold == answer:
        return gold not in ("", "{}")
    if "" in (gold, answer):
        return "{}" not in (gold, answer)
    return True if count > 2 and {gold, answer} == {"()", "[]"} else None


def may_be_in_brackets(value: str) -> bool:
    """Return whether a value may be alone in square brackets: [x] is the floor of x, but [5] is 5."""
    whole = number(bare(value))
    return "\\begin" in value or (whole is not None and whole.denominator == 1)


def joined_otherwise(gold: str, answer: str) -> bool:
    """Return whether one side says `and` where the other says `or`."""
    joints = {(OR.search(text) is not None, _ALSO.search(text) is not None) for text in (gold, answer)}
    return joints == {(True, False), (False, True)}


def names_give_order(gold: Sequence[str], answer: Sequence[str]) -> bool:
    """Return whether one side alone names its values, and with other letters: x = 1, y = 2 is 1, 2 but not 2, 1."""
    sides = [[name_of(value) for value in values] for values in (gold, answer)]
    if all(map(any, sides)):
        return False
    letters = [{_NAME_INDEX.sub("", name) for name in names if name} for names in sides]
    return any(all(names) and len(own) == len(names) > 1 for names, own in zip(sides, letters, strict=True))


def solutions(text: str) -> list[str]:
    """Return x=1, y=2; x=2, y=1 as (x,y)=(1,2) and (x,y)=(2,1); nothing if the text is no such list."""
    found: list[str] = []
    known: list[str | None] = []
    for group in _NEXT.split(text):
        values = split(group)
        names = [name_of(value) for value in values]
        if len({*names} - {None}) < max(2, len(names)) or (known and known != names):
            return []
        known = names
        found.append(f"({','.join(map(str, names))})=({','.join(chain(value)[-1] for value in values)})")
    return found if len(found) > 1 else []


def without_names(gold: tuple[str, ...], answer: tuple[str, ...]) -> list[list[str]]:
    """Remove `x =` in front of the values, if all of one side have it and none of the other."""
    sides = [[(value, name_of(value)) for value in values] for values in (gold, answer)]
    every, some = ([test(name for _, name in side) for side in sides] for test in (all, any))
    removable = every[0] != every[1] and not all(some)
    return [[chain(value)[-1] if name and removable else value for value, name in side] for side in sides]
