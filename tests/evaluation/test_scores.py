"""Pass@k and Maj@k against enumeration of every choice of k samples."""

from collections import Counter
from itertools import combinations, pairwise
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.evaluation.scores import g_pass_at_k, maj_at_k, mg_pass_at_k, pass_at_k, votes

ANSWERS = st.lists(st.sampled_from(["right", "a", "b", "c", None]), min_size=1, max_size=9)


def majority(chosen: tuple[str | None, ...]) -> float:
    counted = Counter(answer for answer in chosen if answer is not None)
    top = [answer for answer, count in counted.items() if count == max(counted.values())]
    return ("right" in top) / len(top) if top else 0.0


@given(ANSWERS)
def test_equal_to_enumeration(answers):
    n, c = len(answers), answers.count("right")
    counted = [c, *Counter(answer for answer in answers if answer not in ("right", None)).values()]
    for k in range(1, n + 1):
        chosen = list(combinations(answers, k))
        assert pass_at_k(c, n, k) == pytest.approx(fmean("right" in drawn for drawn in chosen))
        assert maj_at_k(counted, n, k) == pytest.approx(fmean(map(majority, chosen)))
        right = [drawn.count("right") for drawn in chosen]
        for threshold in (0, 0.3, 0.5, 0.75, 1):
            least = max(-(-k * int(100 * threshold) // 100), 1)
            assert g_pass_at_k(c, n, k, threshold) == pytest.approx(fmean(count >= least for count in right))
        upper = range((k + 1) // 2 + 1, k + 1)
        expected = 2 / k * sum(fmean(count >= least for count in right) for least in upper)
        assert mg_pass_at_k(c, n, k) == pytest.approx(expected)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_grows_with_k_and_begins_at_the_average(numbers):
    n, c = numbers
    passed = [pass_at_k(c, n, k) for k in range(1, n + 1)]
    assert passed[0] == pytest.approx(c / n)
    assert all(0 <= low <= high <= 1 for low, high in pairwise(passed))
    assert passed[-1] == (c > 0)


@given(ANSWERS)
def test_one_vote_is_the_average(answers):
    n, c = len(answers), answers.count("right")
    counted = [c, *Counter(answer for answer in answers if answer not in ("right", None)).values()]
    assert maj_at_k(counted, n, 1) == pytest.approx(c / n)


def test_many_samples():
    assert 0.9 < maj_at_k([30, *range(1, 8)], 64, 64) <= 1
    every = [maj_at_k([64, *[1] * 50], 128, k) for k in range(1, 129)]
    assert every[0] == pytest.approx(0.5)
    assert every[-1] == 1
    assert pass_at_k(1, 10_000, 5_000) == pytest.approx(0.5)


def test_votes_by_answer():
    verdicts = ["correct", "wrong", "correct", "wrong", "wrong", "no_answer", "truncated", "grader_failed"]
    answers = ["5", "6", "x=5", "06", "7", None, None, "9^9"]
    assert votes(verdicts, answers) == [2, 2, 1, 1]
    assert votes(["no_answer"], [None]) == [0]


@pytest.mark.parametrize(("correct", "samples", "k"), [(1, 0, 1), (3, 2, 1), (-1, 2, 1), (1, 2, 0), (1, 2, 3)])
def test_impossible_numbers_are_refused(correct, samples, k):
    with pytest.raises(ValueError, match="k must be"):
        pass_at_k(correct, samples, k)
    with pytest.raises(ValueError):
        maj_at_k([correct], samples, k)
    with pytest.raises(ValueError, match="3 votes of 2"):
        maj_at_k([1, 2], 2, 1)
