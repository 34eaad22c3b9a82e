"""The losses' own precision, under autocast too."""

import torch

from opasd.losses.attention import attention_loss
from opasd.losses.precision import wide, without_autocast
from opasd.losses.token import log_probabilities, token_loss
from tests.losses.cases import make_alignment, make_layers
from tests.losses.test_token import make_case


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
