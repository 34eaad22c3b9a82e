"""Keep in the host's memory what a forward pass saves for its backward pass.

With gradient checkpointing a forward saves one tensor a layer, [tokens, hidden]. Beside the weights these are most of a
long rollout's memory. They leave the GPU while later layers compute and come back one by one in the backward pass.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

SMALLEST = 2**20
"""Bytes below which a tensor stays: its journey would take longer than it is worth."""


@contextmanager
def offloaded() -> Iterator[None]:
    """Within the block, saved activations on a GPU move to pinned memory of the host; values do not change."""
    streams: dict[torch.device, torch.cuda.Stream] = {}

    def pack(tensor: Tensor) -> Tensor | tuple[torch.device, Tensor]:
        # Weights stay; only what an operation has computed is an activation.
        if not movable(tensor) or tensor.grad_fn is None or tensor.nbytes < SMALLEST:
            return tensor
        if not tensor.is_cuda:
            return tensor.device, tensor.detach().clone()
        stream = streams.setdefault(tensor.device, torch.cuda.Stream(tensor.device))
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            host = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor.detach(), non_blocking=True)
        tensor.record_stream(stream)  # its memory is used again only after the copy
        return tensor.device, host

    def unpack(packed: Tensor | tuple[torch.device, Tensor]) -> Tensor:
        if isinstance(packed, Tensor):
            return packed
        device, host = packed
        if device in streams:
            torch.cuda.current_stream(device).wait_stream(streams[device])
        return host.to(device, non_blocking=True)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def movable(tensor: Tensor) -> bool:
    """Return whether a tensor lies on a GPU."""
    return tensor.is_cuda
