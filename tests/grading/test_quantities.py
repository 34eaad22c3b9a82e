"""Units: known ones are converted, the words of all others are compared."""

import re
import string
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from opasd.grading.pool import Grader, Job
from opasd.grading.quantities import UNITS, Unit, quantity
from tests.grading.pairs import box

OTHERS = {"square", "cubic", "per", "percent", "hundred", "thousand", "million", "billion", "trillion", "dozen"}
LETTER = st.sampled_from(string.ascii_lowercase)
WORD = st.from_regex(r"[bcdfghjklmnprstvw][aeiou][a-z]{3,6}", fullmatch=True)
WRITTEN = st.sampled_from([r"{} {}", r"{}\text{{ {}}}", r"{}\ \mathrm{{{}}}", r"\text{{{} {}}}", r"{} \text{{ {}. }}"])


def singular(word: str) -> str:
    return re.sub("s$", "", word.lower())


def is_own(word: str) -> bool:
    """Whether a word is neither in the table nor mathematics."""
    unit = quantity(rf"5\text{{ {word}}}").unit
    return unit is not None and unit.dimension == f"'{singular(word)}'"


@st.composite
def pairs(draw) -> tuple[str, str]:
    """Two words: the same in another form, one with another letter, or any."""
    word = draw(WORD)
    position = draw(st.integers(0, len(word) - 1))
    near = word[:position] + draw(LETTER) + word[position + 1 :]
    other = draw(st.one_of(st.sampled_from([word, word + "s", word.removesuffix("s"), near, near + "s"]), WORD))
    first, second = (draw(st.sampled_from([str.lower, str.upper, str.title]))(text) for text in (word, other))
    return first, second


@given(pairs(), WRITTEN, WRITTEN, st.one_of(st.integers(-(10**6), 10**6), st.sampled_from(["2.5", "1/3", "0"])))
def test_two_unknown_units_are_equal_if_they_are_the_same_word(words, first, second, value):
    """Up to case and a plural s; and either of them may be left out."""
    assume(not OTHERS & {form for word in words for form in (word.lower(), singular(word))})
    assume(all(map(is_own, words)))
    assume(all(re.search("[aeiou]", word.lower()) for word in words))
    gold, answer = first.format(value, words[0]), second.format(value, words[1])
    with Grader(workers=1) as grader:
        verdict = "correct" if singular(words[0]) == singular(words[1]) else "wrong"
        assert grader.grade(Job(box(answer), gold)).verdict == verdict
        assert grader.grade(Job(box(str(value)), gold)).verdict == "correct"
        assert grader.grade(Job(box(answer), str(value), "integer")).verdict == "correct"


@given(WORD, st.sampled_from(sorted(UNITS)))
def test_an_unknown_unit_equals_no_known_one(word, known):
    assume(is_own(word))
    unit = quantity(rf"5\text{{ {word}}}").unit
    known_unit = quantity(rf"5\text{{ {known}}}").unit
    assert unit is not None
    assert known_unit is None or unit.dimension != known_unit.dimension


@pytest.mark.parametrize(
    ("text", "value", "unit"),
    [
        ("12 dollars", "12", Unit("money", Fraction(1))),
        ("12 Apples", "12", Unit("'apple'", Fraction(1))),
        ("12 square feet", "12", Unit("length^2", Fraction("0.3048") ** 2)),
        ("12 apples per day", "12", Unit("'apple'/time", Fraction(1, 86400))),
        (r"12\text{ m/s}^2", "12", Unit("length/time^2", Fraction(1))),
        ("3 dozen eggs", "36", Unit("'egg'", Fraction(1))),
        (r"3\text{.}", "3", None),
        ("12apples", "12apples", None),
        ("12 m", "12 m", None),
        ("12 xyz", "12 xyz", None),
        ("x^2 apples", "x^2 apples", None),
        ("12 thirds", "12 thirds", None),
        (r"12\mathrm{i}", "12 i", None),
    ],
)
def test_a_value_and_its_unit(text, value, unit):
    assert quantity(text) == (value, unit)


@pytest.mark.parametrize(("words", "factor"), [("mph", "0.44704"), ("miles per hour", "0.44704"), ("km/h", "5/18")])
def test_speeds_are_in_metres_a_second(words, factor):
    assert quantity(rf"1\text{{ {words}}}").unit == Unit("length/time", Fraction(factor))
