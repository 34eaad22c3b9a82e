"""Losses that compute their gradients in the forward pass, chunk by chunk, and hand them to autograd.

Rows are weighted only in the backward pass, so that float16 does not lose what a loss scale is about to save.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opasd.losses.divergence import SMALLEST

MaybeTensors = tuple[Tensor | None, ...]


def needs_gradient(tensor: Tensor | None) -> bool:
    """Whether autograd will ask for the gradient of what is computed from `tensor` now."""
    return tensor is not None and tensor.requires_grad and torch.is_grad_enabled()


def relative_weights(weights_T: Tensor) -> tuple[Tensor, Tensor]:
    """Weights in units of the largest, and that unit [1]: 1/T is too small a number to sum in float16."""
    if not len(weights_T):
        return weights_T, weights_T.new_ones(1)
    unit = weights_T.abs().amax(0, keepdim=True).clamp_min(SMALLEST)
    return weights_T / unit, unit


def weighted_loss(
    weights_T: Tensor, loss_T: Tensor, inputs: MaybeTensors, gradients: MaybeTensors, factors: tuple[Tensor, ...]
) -> Tensor:
    """Σ_t weight_t ℓ_t, with d loss / d inputs[i] = factors[i] · gradients[i]; the product is formed when needed."""
    return _WeightedLoss.apply(weights_T, loss_T, gradients, factors, *inputs)


class _WeightedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        weights_T: Tensor,
        loss_T: Tensor,
        gradients: MaybeTensors,
        factors: tuple[Tensor, ...],
        *inputs: Tensor | None,
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
