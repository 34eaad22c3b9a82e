"""Gradients that are ready before the backward pass, and the losses' own precision, under autocast too."""

import pytest
import torch

from opasd.losses.attention import attention_loss
from opasd.losses.numerics import needs_gradient, relative_weights, weighted_loss, wide, without_autocast
from opasd.losses.token import log_probabilities, token_loss
from tests.losses.cases import make_alignment, make_layers
from tests.losses.test_token import make_case

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


def test_at_least_float32():
    assert wide(torch.bfloat16) == wide(torch.float16) == wide(torch.float32) == torch.float32
    assert wide(torch.float64) == torch.float64


def test_autocast_is_off_inside_and_on_again_afterwards():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with without_autocast():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")


def test_the_losses_are_the_same_under_autocast():
    case, alignment = make_case(), make_alignment()
    layers = make_layers(alignment)
    tokens = torch.arange(len(case[0]))

    def values():
        losses = [token_loss(*case, impl=impl).loss for impl in ("reference", "chunked")]
        losses += [attention_loss(*layers, alignment, impl=impl).loss for impl in ("reference", "chunked")]
        return torch.stack([*losses, log_probabilities(*case[:2], tokens).sum()])

    plain = values()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(values(), plain)
