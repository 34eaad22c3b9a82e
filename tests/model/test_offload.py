"""What a forward saves for its backward leaves the device and comes back unchanged."""

import pytest
import torch

from opasd.model import offload
from opasd.model.scoring import Scorer
from tests.models import add_lora, make_model
from tests.rollouts import make_rollouts


def gradients(*, offloads, checkpointing, device="cpu"):
    torch.manual_seed(0)
    model = add_lora(make_model("qwen3")).to(device)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model.train()
    scores = Scorer(model, offload=offloads)(make_rollouts(), "student")
    loss = sum(score.hidden_TE.square().sum() + score.layers[0].query_HTD.square().sum() for score in scores)
    loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_do_not_change(monkeypatch, checkpointing):
    """On a CPU a copy stands for the journey; the copies are counted."""
    expected = gradients(offloads=False, checkpointing=checkpointing)
    moved = []

    def movable(tensor):
        moved.append(tensor.shape)
        return True

    monkeypatch.setattr(offload, "movable", movable)
    monkeypatch.setattr(offload, "SMALLEST", 0)
    actual = gradients(offloads=True, checkpointing=checkpointing)
    longest = max(len(rollout.student_ids) for rollout in make_rollouts())
    layers = sum(shape == (4, longest, 32) for shape in moved)
    assert layers >= 4  # an input for each layer
    assert expected.keys() == actual.keys()
    for name, gradient in expected.items():
        assert torch.equal(actual[name], gradient)


def test_nothing_moves_without_being_asked(monkeypatch):
    monkeypatch.setattr(offload, "movable", lambda tensor: pytest.fail("moved"))
    gradients(offloads=False, checkpointing=True)


@pytest.mark.gpu
def test_on_a_gpu_less_memory_is_used_for_the_same_gradient(monkeypatch):
    monkeypatch.setattr(offload, "SMALLEST", 0)
    expected, actual = (gradients(offloads=o, checkpointing=True, device="cuda") for o in (False, True))
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient)
