"""Scores of these very problems: how far other samples of the same problems could move a mean.

A score is a function f of c, the right ones of n samples. Its sampling variance for a problem solved with probability θ
is Var f(c), c ~ Binomial(n, θ). θ is the mean of its posterior under the beta distribution that fits all problems, so a
problem never solved is taken to be hard, not impossible. The mean's interval is Wilson's with m (1 − m) / variance
trials, m the mean that these θ predict. Means and differences of several scores share the posterior.
"""

from collections.abc import Sequence
from functools import cached_property
from math import lgamma
from statistics import NormalDist

import numpy as np

from opasd.evaluation.statistics import LEVEL, Estimate, wilson

_ALIKE, _UNLIKE = 0.01, 0.95
"""Bounds of the correlation of two samples of one problem."""


class SampledScores:
    """The counts of right samples of each problem."""

    def __init__(self, correct: Sequence[int], samples: int) -> None:
        self.counts, self.samples = np.asarray(correct), samples
        if not len(self.counts) or self.counts.min() < 0 or self.counts.max() > samples:
            raise ValueError(f"counts of right samples must be 0 to {samples} for one problem or more; got {correct}")

    @cached_property
    def probabilities_PC(self) -> np.ndarray:
        """For each problem, the probability of each count of right samples."""
        n, count = self.samples, len(self.counts)
        shares = self.counts / n
        p = shares.mean()
        spread = shares.var(ddof=1) if count > 1 else 0.0
        correlation = (spread / max(p * (1 - p), 1e-9) - 1 / n) / (1 - 1 / n) if n > 1 else 0.0
        concentration = 1 / np.clip(correlation, _ALIKE, _UNLIKE) - 1
        centre = np.clip(p, 0.5 / (n * count), 1 - 0.5 / (n * count))
        theta_P1 = ((self.counts + centre * concentration) / (n + concentration))[:, None]
        right_C = np.arange(n + 1)
        ways_C = np.array([lgamma(n + 1) - lgamma(c + 1) - lgamma(n - c + 1) for c in right_C])
        return np.exp(ways_C + right_C * np.log(theta_P1) + (n - right_C) * np.log1p(-theta_P1))

    def variance(self, scores: Sequence[float]) -> float:
        """Return the sampling variance of the mean of `scores[c]`."""
        scores_C = np.asarray(scores)
        mean_P = self.probabilities_PC @ scores_C
        return float((self.probabilities_PC @ scores_C**2 - mean_P**2).sum()) / len(self.counts) ** 2

    def estimate(self, scores: Sequence[float], level: float = LEVEL) -> Estimate:
        """Return the mean of `scores[c]`, a share for each count c, with its interval."""
        p, expected = np.asarray(scores)[self.counts].mean(), float((self.probabilities_PC @ scores).mean())
        trials = expected * (1 - expected) / max(self.variance(scores), 1e-12)
        low, high = wilson(p, max(trials, 1.0), NormalDist().inv_cdf((1 + level) / 2))
        return Estimate(float(p), float(low), float(high))

    def minus(self, other: "SampledScores", scores: Sequence[float], level: float = LEVEL) -> Estimate:
        """Return the difference of two models' means of `scores[c]` on the same problems."""
        table = np.asarray(scores)
        gap = float(table[self.counts].mean() - table[other.counts].mean())
        z = NormalDist().inv_cdf((1 + level) / 2)
        half = z * float(np.sqrt(self.variance(scores) + other.variance(scores)))
        return Estimate(gap, max(gap - half, -1.0), min(gap + half, 1.0))
