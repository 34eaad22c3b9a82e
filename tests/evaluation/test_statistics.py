"""Intervals: coverage by simulation, pairing, and what must not be averaged."""

import numpy as np
import pytest

from opasd.evaluation.statistics import Estimate, estimate, macro_average, paired_difference


def width(interval: Estimate) -> float:
    return interval.high - interval.low


def test_mean_and_interval_of_known_values():
    interval = estimate([0, 1] * 50)
    assert interval.mean == 0.5
    assert interval.low == pytest.approx(0.40, abs=0.02)  # ± 1.96 · 0.05
    assert interval.high == pytest.approx(0.60, abs=0.02)
    assert interval == estimate([0, 1] * 50)


def test_coverage_is_about_95_percent():
    generator = np.random.default_rng(1)
    hits = 0
    for trial in range(120):
        interval = estimate((generator.random(80) < 0.3).astype(float).tolist(), seed=trial)
        hits += interval.low <= 0.3 <= interval.high
    assert 106 <= hits <= 119


def test_pairing_removes_what_problems_have_in_common():
    generator = np.random.default_rng(2)
    difficulty = generator.random(300)
    first = difficulty + 0.02 + 0.01 * generator.standard_normal(300)
    paired = paired_difference(first.tolist(), difficulty.tolist())
    assert paired.low > 0
    assert width(paired) < width(estimate(first.tolist())) / 10


def test_unpaired_or_empty_values_are_refused():
    with pytest.raises(ValueError, match="got 2 and 3"):
        paired_difference([1, 2], [1, 2, 3])
    with pytest.raises(ValueError, match="no problems"):
        estimate([])


def test_a_macro_average_weighs_benchmarks_alike():
    small, large = [1.0, 1.0], [0.0, 1.0] * 200
    interval = macro_average([small, large])
    assert interval.mean == 0.75
    assert width(interval) == pytest.approx(width(estimate(large)) / 2, rel=0.1)
    assert macro_average([large]).mean == estimate(large).mean
    assert paired_difference(large, large) == (0, 0, 0)
