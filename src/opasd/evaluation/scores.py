"""Scores of n graded samples of one problem, c of them right, exact over all choices of k samples.

Of the C(n, k) sets of k samples, drawn without replacement:

    Pass@k      the share with at least one right sample, 1 − C(n − c, k) / C(n, k)
    G-Pass@k_τ  the share with at least ⌈τ k⌉ right samples, and at least one: Pass@k for small τ, all right at τ = 1
    mG-Pass@k   2/k · the sum of G-Pass@k_τ over τ = i/k for i = ⌈k/2⌉ + 1, …, k (arXiv 2412.13147)
    Maj@k       the share in which the most frequent answer is right; a tie of s answers counts 1 / s for the right one

Avg@k, the mean share of right samples, is c / n for every k. A sample without an answer has no vote in Maj@k; where
nobody votes, the majority is wrong.
"""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from math import ceil, comb

from opasd.grading.verdict import Verdict, same_answer_key


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Return the probability that k of the samples include a right one."""
    _check(correct, samples, k)
    return float(1 - Fraction(comb(samples - correct, k), comb(samples, k)))


THRESHOLDS = (0.5, 0.75, 1.0)
"""The τ of G-Pass@k_τ that results have."""


def g_pass_at_k(correct: int, samples: int, k: int, threshold: float) -> float:
    """Return the probability that at least ⌈threshold · k⌉ of k of the samples, and at least one, are right."""
    _check(correct, samples, k)
    if not 0 <= threshold <= 1:
        raise ValueError(f"the threshold must be between 0 and 1; got {threshold}")
    return float(_at_least(correct, samples, k)[max(ceil(Fraction(threshold) * k), 1)])


def mg_pass_at_k(correct: int, samples: int, k: int) -> float:
    """Return the mean of G-Pass@k over thresholds between a half and all, as its authors define it."""
    _check(correct, samples, k)
    return float(Fraction(2, k) * sum(_at_least(correct, samples, k)[ceil(Fraction(k, 2)) + 1 :], Fraction(0)))


@lru_cache(maxsize=10_000)
def _at_least(correct: int, samples: int, k: int) -> tuple[Fraction, ...]:
    """Return the share of sets of k samples with r right ones or more, for r = 0, …, k."""
    ways = [comb(correct, right) * comb(samples - correct, k - right) for right in range(k, -1, -1)]
    return tuple(Fraction(total, comb(samples, k)) for total in accumulate(ways))[::-1]


def maj_at_k(votes: Sequence[int], samples: int, k: int) -> float:
    """Return the probability that the majority of k samples is right; `votes` are by answer, the right one first."""
    _check(votes[0], samples, k)
    if sum(votes) > samples:
        raise ValueError(f"{sum(votes)} votes of {samples} samples")
    return _majorities(votes[0], tuple(sorted(votes[1:])), samples - sum(votes))[k - 1]


def votes(verdicts: Sequence[Verdict], answers: Sequence[str | None]) -> list[int]:
    """Return how many samples gave each answer: the right one first, then the others, told apart by their text."""
    graded = list(zip(verdicts, answers, strict=True))
    others = Counter(same_answer_key(answer) for verdict, answer in graded if verdict != "correct" and answer)
    return [sum(verdict == "correct" for verdict in verdicts), *others.values()]


@lru_cache(maxsize=10_000)
def _majorities(right: int, others: tuple[int, ...], silent: int) -> tuple[float, ...]:
    """Return the probability for every k from 1."""
    samples = right + sum(others) + silent
    won: list[Counter[int]] = [Counter() for _ in range(samples + 1)]  # [k]: ways to win, by how many others tie
    for drawn in range(1, right + 1):
        # ways[r, t]: to draw r of the others with no answer more than `drawn` times and t of them exactly that often
        ways: Counter[tuple[int, int]] = Counter({(0, 0): comb(right, drawn)})
        for count in others:
            longer: Counter[tuple[int, int]] = Counter()
            for (total, tied), number in ways.items():
                for more in range(min(count, drawn) + 1):
                    longer[total + more, tied + (more == drawn)] += number * comb(count, more)
            ways = longer
        for (total, tied), number in ways.items():
            for quiet in range(silent + 1):
                won[drawn + total + quiet][tied] += number * comb(silent, quiet)
    return tuple(
        float(sum(Fraction(number, tied + 1) for tied, number in won[k].items()) / comb(samples, k))
        for k in range(1, samples + 1)
    )


def _check(correct: int, samples: int, k: int) -> None:
    if not 0 <= correct <= samples or not 1 <= k <= samples:
        raise ValueError(f"k must be 1 to {samples} samples, of which 0 to all are right; got k = {k}, {correct} right")
