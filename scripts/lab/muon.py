"""Muon, an optimizer for the matrices of a network's layers: steps of momentum, made orthogonal (Jordan et al., 2024).

The embedded model learns to look things up in its context many times sooner with it than with AdamW alone.
"""

import torch
from torch import Tensor, nn


class Muon:
    """Nesterov momentum whose steps are made orthogonal, all matrices of a shape at once.

    The rate is a tensor, so that a CUDA graph can follow a schedule."""

    def __init__(self, weights: list[nn.Parameter], decay: float, device: torch.device, momentum: float = 0.95) -> None:
        self.rate = torch.zeros((), device=device)
        self.decay, self.momentum = decay, momentum
        shapes = sorted({tuple(weight.shape) for weight in weights})
        self.parts = [[weight for weight in weights if tuple(weight.shape) == shape] for shape in shapes]
        self.means = [torch.zeros(len(part), *part[0].shape, device=device) for part in self.parts]

    @torch.no_grad()
    def step(self) -> None:
        for part, mean in zip(self.parts, self.means, strict=True):
            gradient = torch.stack([_gradient(weight) for weight in part])
            mean.lerp_(gradient, 1 - self.momentum)
            rows, columns = mean.shape[1:]
            update = orthogonal(gradient.lerp(mean, self.momentum)) * (self.rate * max(1.0, rows / columns) ** 0.5)
            for weight, change in zip(part, update, strict=True):
                weight.mul_(1 - self.rate * self.decay).sub_(change)


def _gradient(weight: nn.Parameter) -> Tensor:
    assert weight.grad is not None
    return weight.grad


def orthogonal(matrices: Tensor) -> Tensor:
    """Each of the matrices [N, R, C] with its singular values brought near 1 by five Newton-Schulz iterations."""
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16 if x.is_cuda else x.dtype)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (2.0315 * square @ square - 4.775 * square) @ x
    return (x if wide else x.mT).to(matrices.dtype)
