"""Curves from rows: closed forms, loops, and rows that hold anything."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.curves import against_total, cumulative, curve, ema, ends, number, validation_curves

values = st.floats(-1e6, 1e6)
points = st.lists(values, max_size=30).map(lambda ys: [(float(x), y) for x, y in enumerate(ys, 1)])
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


def test_a_curve_is_by_step_and_the_last_row_of_a_step_counts():
    rows = [
        {"step": 3, "a": 1},
        {"step": 1, "a": 5.0},
        {"step": 3, "a": 2},
        {"step": 2, "b": 7},
        {"step": 4, "a": None},
    ]
    assert curve(rows, "a") == [(1.0, 5.0), (3.0, 2.0)]


@given(st.lists(st.dictionaries(st.sampled_from(["step", "a", "validation/x/avg@1"]), anything, max_size=3)))
def test_rows_of_anything_give_finite_points(rows):
    for x, y in curve(rows, "a"):
        assert math.isfinite(x)
        assert math.isfinite(y)
    validation_curves(rows)


@pytest.mark.parametrize("value", [None, True, "1", [1], math.nan, math.inf, 10**400])
def test_what_is_no_number(value):
    assert number(value) is None


@given(points, st.floats(0, 0.99))
def test_ema_is_the_weighted_sum_of_the_past(curve_, smoothing):
    """m_t = s^{t−1} y₁ + (1 − s) Σ_{i=2..t} s^{t−i} y_i."""
    for t, (_, smoothed) in enumerate(ema(curve_, smoothing), 1):
        ys = [y for _, y in curve_[:t]]
        weights = [smoothing ** (t - 1), *((1 - smoothing) * smoothing ** (t - i) for i in range(2, t + 1))]
        assert smoothed == pytest.approx(math.fsum(w * y for w, y in zip(weights, ys, strict=True)), rel=1e-9, abs=1e-6)


def test_ema_of_a_constant_is_the_constant_and_the_paper_smooths_with_seven_tenths():
    assert ema([(1, 2.0), (2, 2.0)]) == [(1, 2.0), (2, pytest.approx(2.0))]
    assert ema([(1, 1.0), (2, 0.0), (3, 0.0)])[-1][1] == pytest.approx(0.49)


@given(points)
def test_cumulative_by_brute_force(curve_):
    for index, (x, total) in enumerate(cumulative(curve_)):
        assert x == curve_[index][0]
        assert total == pytest.approx(math.fsum(y for _, y in curve_[: index + 1]), abs=1e-6)


@given(st.lists(st.integers(0, 100), max_size=20), st.lists(st.integers(0, 25), max_size=6, unique=True))
def test_accuracy_against_tokens_by_brute_force(tokens, steps):
    spent = [(float(step), float(count)) for step, count in enumerate(tokens, 1)]
    reached = [(float(step), step / 100) for step in sorted(steps)]
    expected = [(float(sum(count for s, count in spent if s <= step)), value) for step, value in reached]
    assert against_total(spent, reached) == expected


def test_ends():
    curve_ = [(float(i), float(i)) for i in range(1, 11)]
    assert ends(curve_, 2) == (1.5, 9.5)
    assert ends(curve_, 100) == (5.5, 5.5)
    assert ends([], 2) is None


def test_validation_curves_by_set_and_measure():
    rows = [
        {"step": 0, "validation/a/avg@4": 0.5, "validation/a/b/avg@4": 0.1},
        {"step": 9, "validation/a/avg@4": 0.6, "validation/a/length_mean": 3, "grad_norm": 1, "validation/": 2},
    ]
    assert validation_curves(rows) == {
        "a": {"avg@4": [(0, 0.5), (9, 0.6)], "length_mean": [(9, 3)]},
        "a/b": {"avg@4": [(0, 0.1)]},
    }
