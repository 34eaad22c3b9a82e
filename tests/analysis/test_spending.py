"""Sums over a run, and the Pareto front by its definition."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.spending import pareto_front, spending

ROWS = [
    {"step": 1, "grad_norm": 1.0, "seconds/step": 10.0, "seconds/rollout": 6.0, "seconds/update": 1.0,
     "flops/rollout": 2e18, "flops/update": 1e18, "tokens/generated": 100, "tokens/processed": 300,
     "memory/peak_bytes": 5, "ms_per_processed_token": 2.0},
    {"step": 2, "grad_norm": 1.0, "seconds/step": 20.0, "seconds/rollout": 5.0, "seconds/update": 2.0,
     "flops/rollout": 4e18, "flops/update": 1e18, "tokens/generated": 50, "tokens/processed": 100,
     "memory/peak_bytes": 9, "ms_per_processed_token": 4.0},
]  # fmt: skip


def test_by_hand():
    spent = spending(ROWS)
    assert spent.steps == 2
    assert spent.seconds == 30
    assert spent.hours == pytest.approx(30 / 3600)
    assert spent.seconds_by_part == {"rollout": 11, "update": 3}
    assert spent.eflops_by_part == {"rollout": 6, "update": 2}
    assert spent.eflops == 8
    assert (spent.tokens_generated, spent.tokens_processed, spent.peak_bytes) == (150, 400, 9)
    assert spent.ms_per_processed_token == pytest.approx((2 * 300 + 4 * 100) / 400)


def test_a_step_that_was_made_twice_is_paid_once():
    assert spending([*ROWS, ROWS[1]]) == spending(ROWS)


def test_of_nothing():
    spent = spending([])
    assert spent.steps == 0
    assert (spent.seconds, spent.hours, spent.eflops, spent.peak_bytes, spent.ms_per_processed_token) == (None,) * 5


def test_opasd_beats_opsd_in_the_paper():
    """Accuracy, and hours and tokens, of which less is better."""
    assert pareto_front({"OPSD": (42.36, -8.04, -59.73), "OPASD": (50.76, -5.27, -15.58)}) == ["OPASD"]


@given(st.dictionaries(st.text(max_size=3), st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_the_front_is_what_nobody_beats(models):
    front = pareto_front(models)
    beaten = {
        b
        for a, b in itertools.permutations(models, 2)
        if models[a][0] >= models[b][0] and models[a][1] >= models[b][1] and models[a] != models[b]
    }
    assert set(front) == set(models) - beaten
    assert bool(front) == bool(models)
