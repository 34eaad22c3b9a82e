"""Intervals: coverage by simulation, edges, pairing, p-values, and what must not be averaged."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.seeds import t_quantile
from opasd.evaluation.statistics import (
    Estimate,
    estimate,
    gap_estimate,
    holm,
    macro_average,
    mean_limits,
    mean_of,
    p_value,
    paired_difference,
    share_limits,
    wilson,
)

SHAPES = {"easy": (6, 1.5), "middling": (1.5, 1.5), "hard": (0.3, 3), "very hard": (0.15, 2.5), "bimodal": (0.25, 0.25)}
SIMULATIONS, PROBLEMS, SAMPLES = 6000, 30, 12


def width(interval: Estimate) -> float:
    return interval.high - interval.low


def coverage(limits: tuple[np.ndarray, np.ndarray], true: float) -> float:
    low, high = limits
    assert (high > low).all()
    return 100 * float(np.mean((low <= true) & (true <= high)))


@pytest.mark.parametrize("shape", SHAPES)
def test_intervals_of_shares_cover_95_percent(shape):
    a, b = SHAPES[shape]
    generator = np.random.default_rng(0)
    shares = generator.binomial(SAMPLES, generator.beta(a, b, (SIMULATIONS, PROBLEMS))) / SAMPLES
    assert 94 <= coverage(share_limits(shares), a / (a + b)) <= 96.5
    passed = (shares > 0).astype(float)  # Pass@12 of 12 samples
    expected = float((1 - (1 - generator.beta(a, b, 10**5)) ** SAMPLES).mean())
    assert coverage(share_limits(passed), expected) >= 94


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("shift", "noise"), [(0.5, 0.5), (1.0, 1.0)])
def test_intervals_of_paired_differences_cover_95_percent(shape, shift, noise):
    generator = np.random.default_rng(1)

    def second(rates: np.ndarray) -> np.ndarray:
        logits = np.log(rates / (1 - rates)) + shift + noise * generator.standard_normal(rates.shape)
        return 1 / (1 + np.exp(-logits))

    rates, many = (
        np.clip(generator.beta(*SHAPES[shape], size), 1e-12, 1 - 1e-12) for size in ((SIMULATIONS, PROBLEMS), 400_000)
    )
    gaps = (generator.binomial(SAMPLES, second(rates)) - generator.binomial(SAMPLES, rates)) / SAMPLES
    assert 94 <= coverage(mean_limits(gaps, bound=1.0), float((second(many) - many).mean())) <= 96.5


def test_one_sample_a_problem_is_wilsons_interval():
    interval = estimate([0] * 70 + [1] * 30)
    low, high = wilson(np.array(0.3), 100 * 0.99, t_quantile(99))  # s² has n − 1 in the denominator
    assert (interval.mean, interval.low, interval.high) == pytest.approx((0.3, low, high), rel=1e-4)
    assert (low, high) == pytest.approx((0.21895, 0.39585), abs=0.004)  # Wilson's, by hand: z = 1.96, n = 100


@given(st.lists(st.integers(0, 12), min_size=1, max_size=40))
def test_no_interval_of_shares_has_zero_width(counts):
    shares = [count / 12 for count in counts]
    interval = estimate(shares)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert width(interval) > 1e-6
    turned = estimate([1 - share for share in shares])
    assert turned.low == pytest.approx(1 - interval.high, abs=1e-9)
    gaps = gap_estimate([share - shares[0] for share in shares])
    assert -1 <= gaps.low <= gaps.mean <= gaps.high <= 1
    assert width(gaps) > 1e-6


def test_pairing_removes_what_problems_have_in_common():
    generator = np.random.default_rng(2)
    difficulty = generator.random(300) * 0.9
    first = difficulty + 0.02 + 0.01 * generator.standard_normal(300)
    paired = paired_difference(first.tolist(), difficulty.tolist())
    assert paired.low > 0
    assert width(paired) < width(estimate(np.clip(first, 0, 1).tolist())) / 10


def test_unpaired_empty_or_impossible_values_are_refused():
    with pytest.raises(ValueError, match="got 2 and 3"):
        paired_difference([1, 1], [1, 1, 1])
    for function in (estimate, gap_estimate, mean_of):
        with pytest.raises(ValueError, match="no problems"):
            function([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate([0.5, 1.5])
    with pytest.raises(ValueError, match="no sets"):
        macro_average([])


def test_means_without_bounds_are_students_t():
    values = [1.0, 2.0, 3.0, 4.0, 5.0]
    half = t_quantile(4) * np.std(values, ddof=1) / 5**0.5
    assert mean_of(values) == pytest.approx((3, 3 - half, 3 + half), rel=1e-3)
    assert mean_of([7.0, 7.0]) == (7, 7, 7)


def test_a_macro_average_weighs_benchmarks_alike():
    small, large = estimate([1.0, 1.0]), estimate([0.0, 1.0] * 200)
    average = macro_average([small, large])
    assert average.mean == 0.75
    below = [own.mean - own.low for own in (small, large)]
    assert average.mean - average.low == pytest.approx(np.hypot(*below) / 2)
    assert macro_average([large]) == pytest.approx(large)


@given(st.lists(st.integers(-12, 12), min_size=2, max_size=40))
def test_p_agrees_with_the_interval(gaps):
    values = [gap / 12 for gap in gaps]
    p = p_value(lambda level: gap_estimate(values, level))
    interval = gap_estimate(values)
    excluded = interval.low > 0 or interval.high < 0
    assert 0 < p <= 1
    assert excluded == (p < 0.05) or p == pytest.approx(0.05, abs=1e-6)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_by_its_definition(p_values):
    """The closed test: a hypothesis falls if every set of hypotheses that holds it falls by Bonferroni."""
    corrected = holm(p_values)
    indices = range(len(p_values))
    for index in indices:
        sets = (chosen for size in indices for chosen in itertools.combinations(indices, size + 1) if index in chosen)
        closed = max(min(1, len(chosen) * min(p_values[other] for other in chosen)) for chosen in sets)
        assert corrected[index] == pytest.approx(closed)
