"""What is said of a checkpoint that does not fit, and what is no fault of a checkpoint; tests/faults has real runs."""

import pickle

import pytest
import torch
from torch.optim import AdamW, Optimizer

from opasd.errors import ConfigError
from opasd.trainer.restoring import _check_moments, _continuing


class Rowwise(Optimizer):
    """Keeps one number for each row, as optimizers that save memory do."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        for weight in self.param_groups[0]["params"]:
            self.state[weight]["exp_avg_sq"] = weight.grad.square().mean(-1)
        return closure and closure()


@pytest.mark.parametrize("kind", [AdamW, Rowwise])
def test_an_optimizers_own_moments_are_taken(kind):
    weight = torch.nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.ones(3, 2)
    optimizer = kind([weight])
    optimizer.step()
    assert optimizer.state[weight]
    _check_moments(optimizer)


def test_moments_of_another_shape_are_refused():
    weight = torch.nn.Parameter(torch.ones(3, 2))
    weight.grad = torch.ones(3, 2)
    optimizer = AdamW([weight])
    optimizer.step()
    optimizer.state[weight]["exp_avg"] = torch.ones(2)
    with pytest.raises(ValueError, match="the state of other weights"):
        _check_moments(optimizer)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), OSError(28, "No space left"), ImportError("apex"), RuntimeError("CUDA error: out of memory"),
     RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")],
)  # fmt: skip
def test_what_the_machine_lacks_is_not_blamed_on_the_checkpoint(error):
    with pytest.raises(type(error)) as caught, _continuing("its optimizer"):
        raise error
    assert caught.value is error


@pytest.mark.parametrize(
    ("error", "reason"),
    [(pickle.UnpicklingError("GLOBAL os.system"), "more than tensors and numbers"), (KeyError("state"), "'state'")],
)
def test_what_does_not_fit_is_one_message(error, reason):
    with (
        pytest.raises(ConfigError, match=f"cannot be continued from its optimizer .*{reason}"),
        _continuing("its optimizer"),
    ):
        raise error
