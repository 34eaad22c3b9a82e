"""Models whose weights are spread over the processes (FSDP2).

A sharded weight is a DTensor: each process holds a part. FSDP puts a layer's whole weights in their place while the
layer computes, by a call that all processes must make together. So what depends on a process's own rollouts, such as
the number of sampled tokens, must not run such a forward: `gathered` holds all weights whole for the length of a block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial


def shards(model: nn.Module) -> list[FSDPModule]:
    """Return the parts of the model that FSDP2 gathers on their own; none if the model is not sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor; all processes must call this. Its gradient is their mean, as FSDP's is."""
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = tensor.full_tensor(grad_placements=[Partial()] * tensor.device_mesh.ndim)
    if gathered.requires_grad:
        gathered.register_hook(lambda gradient: gradient / tensor.device_mesh.size())
    return gathered


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within the block, every process holds all weights, so that a forward needs no other process."""
    modules = shards(model)
    groups = [group for module in modules for group in _groups(module)]
    after_forward = [group.post_forward_mesh_info for group in groups]
    try:
        with torch.no_grad():
            for module in modules:
                module.unshard()
        for group in groups:
            group.post_forward_mesh_info = None  # keep the weights after a forward
        yield
    finally:
        for group, info in zip(groups, after_forward, strict=True):
            group.post_forward_mesh_info = info
        for module in modules:
            module.reshard()


def _groups(module: FSDPModule) -> list[Any]:
    """Return what FSDP gathers together; its own setter cannot say what was set before."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return list(groups) if groups is not None else [state._fsdp_param_group] if state._fsdp_param_group else []
