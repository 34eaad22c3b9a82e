"""Launches of kernels that are compiled already, without Triton's search for them.

Triton finds the version of a kernel to run by a description of all arguments, and compares every constant its source
names with what it was; for the thirty arguments of a kernel here that takes longer than a short rollout takes the
device. What Triton compiles for on an NVIDIA GPU is known, so a table of it does; anything else goes Triton's way. What
Triton looks up at every launch besides (hooks, switches for debugging) counts when a kernel is first launched.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

_compiled: dict[tuple[Hashable, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """`kernel[grid](*arguments, **constants)`: tensors and numbers by place, a tensor first, all constants by name.

    The tensors' device is the current one."""
    if torch.version.hip is not None:
        kernel[grid](*arguments, **constants)
        return
    told = *constants, *map(type, constants.values()), *constants.values()
    key = kernel, arguments[0].device, told, *map(described, arguments)
    if known := _compiled.get(key):
        compiled, rest = known
        compiled[(*grid, 1, 1)[:3]](*arguments, *rest)
        return
    rest = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    compiled = kernel[grid](*arguments, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        _compiled[key] = compiled, rest


def described(argument: Tensor | float | None) -> Hashable:
    """All that a kernel's code may depend on of an argument that is no constant: type, alignment, being 1."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        wide = -(2**31) <= argument < 2**31, argument < 2**63
        return type(argument), argument % 16 == 0, argument == 1, wide
    if isinstance(argument, float | None):
        return type(argument)
    raise TypeError(f"a kernel's argument is a tensor, a number or None, got {type(argument).__name__}")
