"""Preference against ranks; the largest tokens' share and the tenths against loops."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.preference import before_the_end, preference, tenths, top_share

FEW = st.lists(st.integers(-3, 3).map(float), max_size=6)


@given(right=FEW, wrong=FEW)
def test_preference_is_the_rank_sum_of_the_right_ones(right, wrong):
    """Mann and Whitney: ranks with ties shared, less what the right ones have among themselves."""
    share = preference(right, wrong)
    if not right or not wrong:
        assert share is None
        return
    both = sorted([*right, *wrong])
    rank = {value: Fraction(2 * both.index(value) + both.count(value) + 1, 2) for value in both}
    wins = sum(rank[value] for value in right) - Fraction(len(right) * (len(right) + 1), 2)
    assert share == pytest.approx(float(wins / (len(right) * len(wrong))))
    assert share + preference(wrong, right) == pytest.approx(1)
    assert preference([math.exp(value) for value in right], [math.exp(value) for value in wrong]) == share


def test_preference_by_hand():
    assert preference([1.0], [0.0]) == 1
    assert preference([0.0], [1.0]) == 0
    assert preference([1.0, 1.0], [1.0]) == 0.5
    assert preference([3.0, 1.0], [2.0, 1.0]) == (1 + 1 + 0 + 0.5) / 4


@given(values=st.lists(st.floats(0, 5), min_size=1, max_size=45))
def test_the_share_of_the_largest(values):
    rest, taken = list(values), []
    while 10 * len(taken) < len(values):
        taken.append(rest.pop(rest.index(max(rest))))
    share = top_share(values)
    assert share == pytest.approx(sum(taken) / sum(values) if sum(values) else len(taken) / len(values))
    assert len(taken) / len(values) * (1 - 1e-9) <= share <= 1 + 1e-9


def test_one_token_holds_everything():
    assert top_share([0.3]) == 1
    assert top_share([0.0] * 20) == 0.1
    assert top_share([0.0] * 19 + [7.0]) == 1


def dealt(count):
    """The sizes of ten parts that get one after the other until nothing is left."""
    sizes = [0] * 10
    for number in range(count):
        sizes[number % 10] += 1
    return sizes


@given(values=st.lists(st.integers(-1000, 1000), max_size=75))
def test_tenths_are_sums_of_even_parts_in_order(values):
    """Integers have exact sums."""
    sums = tenths([float(value) for value in values])
    sizes = dealt(len(values))
    if len(values) < 10:
        assert sums is None
        assert min(sizes) == 0
        return
    rest = list(values)
    assert sums == [sum(rest.pop(0) for _ in range(size)) for size in sizes]
    assert rest == []
    assert sum(sums) == sum(values)
    assert max(sizes) - min(sizes) <= 1
    first = values[: len(values) - sizes[-1]]
    assert before_the_end(sums, len(values)) == sum(first) / len(first)


def test_the_number_of_each_token_names_its_tenth():
    assert tenths(range(10)) == list(range(10))
    assert tenths([1.0] * 13) == [2, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    assert tenths([1.0] * 9) is None
    assert tenths([]) is None
    assert tenths([1e16, 1.0, -1e16] + [0.0] * 20)[0] == 1  # no digit is lost within a part
    assert before_the_end([1.0] * 9 + [50.0], 10) == 1
    assert before_the_end([2.0] * 9 + [50.0], 19) == 1


@given(values=st.lists(st.floats(-50, 50), min_size=10, max_size=60))
def test_tenths_add_up_to_the_mean_of_all(values):
    sums = tenths(values)
    assert math.fsum(sums) == pytest.approx(math.fsum(values), abs=1e-9)
    end = len(values) // 10
    whole = ((len(values) - end) * before_the_end(sums, len(values)) + math.fsum(values[-end:])) / len(values)
    assert whole == pytest.approx(math.fsum(values) / len(values), abs=1e-9)
