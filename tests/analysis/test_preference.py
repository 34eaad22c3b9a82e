"""Preference against ranks, and the largest tokens' share against loops."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.preference import preference, top_share

FEW = st.lists(st.integers(-3, 3).map(float), max_size=6)


@given(right=FEW, wrong=FEW)
def test_preference_is_the_rank_sum_of_the_right_ones(right, wrong):
    """Mann and Whitney: ranks with ties shared, less what the right ones have among themselves."""
    found = preference(right, wrong)
    if not right or not wrong:
        assert found is None
        return
    both = sorted([*right, *wrong])
    rank = {value: Fraction(2 * both.index(value) + both.count(value) + 1, 2) for value in both}
    wins = sum(rank[value] for value in right) - Fraction(len(right) * (len(right) + 1), 2)
    assert found == pytest.approx(float(wins / (len(right) * len(wrong))))
    assert found + preference(wrong, right) == pytest.approx(1)
    assert preference([math.exp(value) for value in right], [math.exp(value) for value in wrong]) == found


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
