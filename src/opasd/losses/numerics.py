"""The precision and the gradients of losses that compute them chunk by chunk.

Gradients are ready after the forward pass. Rows are weighted only in the backward pass, so that float16 does not lose
what a loss scale is about to save.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opasd.losses.divergence import SMALLEST

MaybeTensors = tuple[Tensor | None, ...]


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the precision in which numbers of this type are summed and exponentiated: at least float32."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch autocast off: the losses choose the precision of every product themselves."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def needs_gradient(tensor: Tensor | None) -> bool:
    """Return whether autograd will need the gradient of `tensor` for a computation that happens now."""
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def relative_weights(weights_T: Tensor) -> tuple[Tensor, Tensor]:
    """Return the weights in units of the largest, and that unit [1]: 1/T is too small a number to sum in float16."""
    if not len(weights_T):
        return weights_T, weights_T.new_ones(1)
    unit = weights_T.abs().amax(0, keepdim=True).clamp_min(SMALLEST)
    return weights_T / unit, unit


def weighted_loss(
    weights_T: Tensor, loss_T: Tensor, inputs: MaybeTensors, gradients: MaybeTensors, factors: tuple[Tensor, ...]
) -> Tensor:
    """Return Σ_t weight_t ℓ_t, with d loss / d inputs[i] = factors[i] · gradients[i], multiplied when it is needed."""
    return _WeightedLoss.apply(weights_T, loss_T, gradients, factors, *inputs)


class _WeightedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, weights_T: Tensor, loss_T: Tensor, gradients: MaybeTensors, factors: MaybeTensors, *inputs: Tensor
    ) -> Tensor:
        ctx.save_for_backward(*gradients, *factors)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in inputs]
        return (weights_T * loss_T).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> MaybeTensors:
        count, grad_loss = len(ctx.dtypes), grad_outputs[0]
        gradients, factors = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        weighted = (
            None
            if gradient is None
            else torch.mul(gradient, grad_loss * factor, out=torch.empty_like(gradient, dtype=dtype))
            for gradient, factor, dtype in zip(gradients, factors, ctx.dtypes, strict=True)
        )
        return None, None, None, None, *weighted
