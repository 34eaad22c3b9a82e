"""Power: formulas against simulation, measured spreads, and the search for a number of problems."""

import numpy as np
import pytest

from opasd.errors import ConfigError
from opasd.evaluation.power import Spread, assumed, averaged_problems, measured, measured_spreads, power_rows
from opasd.evaluation.statistics import mean_limits, share_limits


def test_widths_are_those_of_simulated_evaluations():
    generator = np.random.default_rng(0)
    rates = generator.beta(1.5, 1.5, (2000, 60))
    shares = generator.binomial(8, rates) / 8
    low, high = share_limits(shares)
    spread = assumed(0.5, 1 / 4, 0.9)  # Beta(a, b) has the correlation 1 / (a + b + 1)
    assert spread.width(60, 8, paired=False) == pytest.approx(np.mean(high - low), rel=0.03)


def test_a_detectable_difference_is_found_as_often_as_said():
    generator = np.random.default_rng(1)
    base = generator.uniform(0.2, 0.6, (2000, 100))
    spread = Spread(0.4**2 / 12, float(np.mean(base * (1 - base))), 0.0)
    gain = spread.detectable(100, 12, 0.8)
    gaps = (generator.binomial(12, base + gain) - generator.binomial(12, base)) / 12
    low, _ = mean_limits(gaps, bound=1.0)
    assert np.mean(low > 0) == pytest.approx(0.8, abs=0.05)


def test_spreads_are_measured_without_the_samples_noise():
    generator = np.random.default_rng(2)
    rates = generator.beta(2, 3, 20_000)
    first, second = (generator.binomial(6, rates).tolist() for _ in range(2))
    spread = measured(first, 6, second)
    assert spread.between == pytest.approx(0.04, rel=0.05)
    assert spread.within == pytest.approx(0.2, rel=0.03)
    assert spread.difference == pytest.approx(0, abs=2e-3)
    rows = [
        {
            "benchmark": "a",
            "budget": 9,
            "samples": 6,
            "per_problem": {str(n): {"correct": c} for n, c in enumerate(own)},
        }
        for own in (first, second)
    ]
    assert measured_spreads({"results": rows}, 0.9)["a"] == spread
    with pytest.raises(ConfigError, match="cannot be measured with 3 problems and 1 samples"):
        measured([0, 1, 1], 1)


def test_the_number_of_problems_is_the_smallest_that_is_enough():
    spread = assumed(0.4, 0.5, 0.9)
    for wanted, power in ((0.05, None), (0.03, 0.8), (0.3, 0.9)):
        found = spread.problems_for(wanted, 12, power)
        assert found is not None

        def reached(problems: int, power: float | None = power) -> float:
            return spread.width(problems, 12, paired=False) if power is None else spread.detectable(problems, 12, power)

        assert reached(found) <= wanted
        assert found == 2 or reached(found - 1) > wanted
    assert spread.problems_for(1e-6, 12, None) is None
    assert len(power_rows(spread, [30, 100], [4, 12], 0.8)) == 4


def test_an_average_over_benchmarks_is_as_exact_as_said():
    """Each benchmark weighs the same, whatever its size."""
    assert averaged_problems([30, 30, 30, 30]) == 120
    generator = np.random.default_rng(3)
    sizes = [10, 40, 200]
    means = [generator.random((4000, size)).mean(axis=1) for size in sizes]
    assert np.mean(means, axis=0).var() == pytest.approx(1 / 12 / averaged_problems(sizes), rel=0.1)
