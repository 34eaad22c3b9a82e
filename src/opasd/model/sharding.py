"""Models whose weights are spread over the processes (FSDP2, ZeRO-3).

A sharded weight of FSDP2 is a DTensor: each process holds a part. ZeRO-3 empties a weight and keeps a process's part
beside it, flat (`ds_tensor`). Both put a layer's whole weights in their place while the layer computes, by a call that
all processes must make together. So what depends on a process's own rollouts, such as the number of sampled tokens,
must not run such a forward: `gathered` holds all weights whole for the length of a block.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Partial


def shards(model: nn.Module) -> list[FSDPModule]:
    """Return the parts of the model that FSDP2 gathers on their own; none if the model is not sharded."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def in_zero3(tensor: Tensor) -> bool:
    """Return whether ZeRO-3 has divided a weight."""
    return hasattr(tensor, "ds_tensor")


def divided(model: nn.Module) -> bool:
    """Return whether processes share the model's weights."""
    return bool(shards(model)) or any(map(in_zero3, model.parameters()))


def local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else getattr(tensor, "ds_tensor", tensor)


def part(tensor: Tensor, weight: Tensor) -> Tensor:
    """Return this process's part of a whole tensor, as ZeRO-3 has divided `weight`."""
    size = local(weight).numel()
    flat = tensor.detach().flatten()[size * dist.get_rank() :][:size]
    return nn.functional.pad(flat, (0, size - flat.numel())).to(local(weight).device)


def joined(own: Tensor, weight: Any) -> Tensor:
    """Return the whole tensor from all processes' `part`s; all must call this."""
    flat = own.new_empty(own.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(flat, own.contiguous())
    return flat[: weight.ds_numel].view(weight.ds_shape)


@contextmanager
def held(weights: Iterable[Tensor]) -> Iterator[None]:
    """Within the block, weights that ZeRO-3 has divided are whole; all processes must enter it."""
    away = [weight for weight in weights if in_zero3(weight) and not weight.numel()]
    if not away:
        yield
        return
    import deepspeed  # pyright: ignore[reportMissingImports]

    with deepspeed.zero.GatheredParameters(away):
        yield


class _WholeInBackward(torch.autograd.Function):
    """A copy of a weight, which is whole again while it gets its gradient; ZeRO-3 sees to that in modules alone."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.weight = weight
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        weight: Any = ctx.weight
        if not weight.numel():

            def let_go(_: Tensor) -> None:
                hook.remove()
                if not weight.ds_active_sub_modules:  # as a tied head is, in the embedding's backward
                    weight.partition()

            weight.all_gather()
            hook = weight.register_post_accumulate_grad_hook(let_go)
        return gradients[0]


def whole(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor; all processes must call this. Its gradient is their mean, as FSDP's is."""
    if in_zero3(tensor):
        with held([tensor]):
            return _WholeInBackward.apply(tensor)
    if not isinstance(tensor, DTensor):
        return tensor
    gathered = tensor.full_tensor(grad_placements=[Partial()] * tensor.device_mesh.ndim)
    if gathered.requires_grad:
        gathered.register_hook(lambda gradient: gradient / tensor.device_mesh.size())
    return gathered


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Within the block, every process holds all weights, so that a forward needs no other process."""
    offload = getattr(getattr(model, "optimizer", None), "parameter_offload", None)
    if offload is not None:
        with held(model.parameters()), _without_hooks(offload):
            yield
        return
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


@contextmanager
def _without_hooks(offload: Any) -> Iterator[None]:
    """Within the block, a forward neither gathers weights nor gives them back."""
    start = offload.module._forward_pre_hooks[offload.fwd_pre_hook.id]
    offload._remove_module_hooks()
    offload.forward_hooks.clear()
    offload.backward_hooks.clear()
    try:
        yield
    finally:
        offload.fwd_pre_hook = offload.module.register_forward_pre_hook(start)
        offload._register_deepspeed_module(offload.module)


def _groups(module: FSDPModule) -> list[Any]:
    """Return what FSDP gathers together; its own setter cannot say what was set before."""
    state: Any = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None)
    return list(groups) if groups is not None else [state._fsdp_param_group] if state._fsdp_param_group else []
