"""Intervals for these very problems: coverage by simulation, and against those for problems like these."""

from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.evaluation.sampled import SampledScores
from opasd.evaluation.scores import pass_at_k
from opasd.evaluation.statistics import estimate

SHARE = [c / 12 for c in range(13)]
PASS = [pass_at_k(c, 12, 4) for c in range(13)]


@pytest.mark.parametrize("shape", [(6, 1.5), (1.5, 1.5), (0.3, 3), (0.25, 0.25)])
def test_coverage_over_samples_of_the_same_problems(shape):
    generator = np.random.default_rng(3)
    hits: dict[str, list[bool]] = {"avg": [], "pass": [], "gap": []}
    for _ in range(400):
        rates = generator.beta(*shape, 30)
        first, second = (SampledScores(generator.binomial(12, rates).tolist(), 12) for _ in range(2))
        for name, interval, true in (
            ("avg", first.estimate(SHARE), rates.mean()),
            ("pass", first.estimate(PASS), (1 - (1 - rates) ** 4).mean()),
            ("gap", first.minus(second, SHARE), 0.0),
        ):
            hits[name].append(interval.low <= true <= interval.high)
    assert 92.5 <= 100 * fmean(hits["avg"]) <= 98.5
    assert 92.5 <= 100 * fmean(hits["gap"]) <= 98.5
    assert 100 * fmean(hits["pass"]) >= 90


def test_these_problems_are_known_better_than_problems_like_them():
    counts = [0, 0, 12, 12, 6, 1, 11, 3] * 4
    these = SampledScores(counts, 12).estimate(SHARE)
    likely = estimate([count / 12 for count in counts])
    assert these.mean == pytest.approx(likely.mean)
    assert these.high - these.low < (likely.high - likely.low) / 2


def test_the_variance_is_that_of_binomial_counts():
    """With as many samples as here the posterior is the share itself."""
    counts, n = [500, 2500, 4000], 5000
    expected = sum(c / n * (1 - c / n) / n for c in counts) / 9
    assert SampledScores(counts, n).variance([c / n for c in range(n + 1)]) == pytest.approx(expected, rel=1e-2)


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n), min_size=1, max_size=9))))
def test_no_width_is_zero(drawn):
    n, counts = drawn
    scores = [c / n for c in range(n + 1)]
    sampled = SampledScores(counts, n)
    interval, gap = sampled.estimate(scores), sampled.minus(sampled, scores)
    assert 0 <= interval.low <= interval.mean <= interval.high <= 1
    assert interval.high - interval.low > 1e-3
    assert gap.low < 0 == gap.mean < gap.high


def test_impossible_counts_are_refused():
    for counts in ([], [13], [-1]):
        with pytest.raises(ValueError, match="must be 0 to 12"):
            SampledScores(counts, 12)
