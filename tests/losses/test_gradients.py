"""A loss with gradients that are ready before the backward pass."""

import pytest
import torch

from opasd.losses.gradients import needs_gradient, relative_weights, weighted_loss

WEIGHTS = torch.tensor([0.25, 0.5], dtype=torch.float64)


def test_ready_gradients_are_weighted_in_the_backward_pass():
    """ℓ_t = Σ_e x_te² · s, with d ℓ_t / d x_te = 2 x_te s, and d loss / d s in units of the largest weight."""
    x_TE = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    s_1 = torch.tensor([0.5], dtype=torch.float64, requires_grad=True)
    square_T = x_TE.detach().square().sum(-1)
    relative_T, unit = relative_weights(WEIGHTS)
    ready = (2 * x_TE.detach() * s_1.detach(), (relative_T * square_T).sum(0, keepdim=True), None)
    factors = (WEIGHTS[:, None], unit, unit)
    loss = weighted_loss(WEIGHTS, square_T * s_1.detach(), (x_TE, s_1, None), ready, factors)
    expected = (WEIGHTS * x_TE.square().sum(-1) * s_1).sum()
    assert loss.item() == pytest.approx(expected.item())
    for upstream in (1.0, 3.0):
        actual = torch.autograd.grad(upstream * loss, (x_TE, s_1), retain_graph=True)
        wanted = torch.autograd.grad(upstream * expected, (x_TE, s_1), retain_graph=True)
        torch.testing.assert_close(actual, wanted)


def test_a_gradient_has_its_input_s_precision():
    x_T = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    loss = weighted_loss(WEIGHTS.float(), torch.ones(2), (x_T,), (torch.ones(2),), (WEIGHTS.float(),))
    (gradient,) = torch.autograd.grad(loss, x_T)
    assert gradient.dtype == torch.bfloat16
    assert gradient.tolist() == WEIGHTS.tolist()


def test_no_gradient_where_none_is_needed():
    leaf = torch.ones(2, requires_grad=True)
    assert needs_gradient(leaf)
    assert not needs_gradient(leaf.detach())
    assert not needs_gradient(None)
    with torch.no_grad():
        assert not needs_gradient(leaf)
        assert not weighted_loss(WEIGHTS, WEIGHTS, (leaf,), (None,), (WEIGHTS,)).requires_grad


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1e-6, -2e-6]])
def test_weights_are_the_relative_weights_times_their_unit(weights):
    weights_T = torch.tensor(weights)
    relative_T, unit = relative_weights(weights_T)
    torch.testing.assert_close(relative_T * unit, weights_T)
    assert not (relative_T.abs() > 1).any()
