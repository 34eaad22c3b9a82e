"""Handling of the solution's attention, on rows worked out by hand."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opasd.losses.projection import LEAST_MASS, normalise, shuffle_permutation, target

ROW = torch.tensor([[0.1, 0.3, 0.2]], dtype=torch.float64)  # two prompt positions, one response position
SOLUTION = torch.tensor([0.4], dtype=torch.float64)
IN_PROMPT = torch.tensor([True, True, False])


def test_project_drops_and_renormalises():
    assert target(ROW, SOLUTION, IN_PROMPT, "project")[0].tolist() == pytest.approx([1 / 6, 3 / 6, 2 / 6])


def test_project_preserves_ratios():
    projected = target(ROW, SOLUTION, IN_PROMPT, "project")[0]
    assert (projected[1] / projected[0]).item() == pytest.approx(3)
    assert (projected[2] / projected[0]).item() == pytest.approx(2)


def test_redistribute_gives_the_mass_to_the_prompt_in_proportion():
    # 0.4 goes to the prompt as 1 : 3, the response keeps its 0.2.
    assert target(ROW, SOLUTION, IN_PROMPT, "redistribute")[0].tolist() == pytest.approx([0.2, 0.6, 0.2])


def test_shuffle_gives_the_same_shares_to_permuted_positions():
    swapped = torch.tensor([1, 0, 2])
    assert target(ROW, SOLUTION, IN_PROMPT, "shuffle", swapped)[0].tolist() == pytest.approx([0.4, 0.4, 0.2])
    same = torch.arange(3)
    torch.testing.assert_close(
        target(ROW, SOLUTION, IN_PROMPT, "shuffle", same), target(ROW, SOLUTION, IN_PROMPT, "redistribute")
    )


def test_shuffle_gives_nothing_to_a_position_out_of_reach():
    row = torch.tensor([[0.3, 0.1, 0.0, 0.2]], dtype=torch.float64)
    in_prompt = torch.tensor([True, True, True, False])
    actual = target(row, SOLUTION, in_prompt, "shuffle", torch.tensor([1, 2, 0, 3]))
    assert actual[0, 2] == 0
    assert actual.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("handling", ["project", "redistribute", "shuffle"])
def test_nothing_on_the_support_gives_zeros_and_no_nan(handling):
    zeros = torch.zeros(2, 3, dtype=torch.float64)
    assert target(zeros, torch.ones(2), IN_PROMPT, handling, torch.arange(3)).abs().max() == 0


@pytest.mark.parametrize("handling", ["redistribute", "shuffle"])
def test_without_prompt_mass_redistribution_is_projection(handling):
    row = torch.tensor([[0.0, 0.0, 0.2]], dtype=torch.float64)
    assert target(row, SOLUTION, IN_PROMPT, handling, torch.arange(3))[0].tolist() == [0, 0, 1]


def test_normalise_reports_the_mass_and_lets_nan_show():
    rows, mass = normalise(torch.tensor([[0.25, 0.25], [LEAST_MASS / 4, 0.0], [float("nan"), 0.1]]))
    assert mass[0] == 0.5
    assert rows[0].tolist() == [0.5, 0.5]
    assert rows[1].tolist() == [0, 0]
    assert rows[2].isnan().all()


@given(flags=st.lists(st.booleans(), max_size=30), seed=st.integers(0, 2**31))
def test_permutation_moves_prompt_positions_only(flags, seed):
    in_prompt = torch.tensor(flags, dtype=torch.bool)
    permutation = shuffle_permutation(in_prompt, seed)
    assert sorted(permutation.tolist()) == list(range(len(flags)))
    assert torch.equal(in_prompt[permutation], in_prompt)
    assert all(permutation[i] == i for i, flag in enumerate(flags) if not flag)
    assert torch.equal(permutation, shuffle_permutation(in_prompt, seed))
