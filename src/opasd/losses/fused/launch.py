"""Launch kernels that are already compiled, without Triton's search for them.

At every launch Triton describes all arguments to find the compiled version, and compares every global constant with its
value at compile time. With the thirty arguments of a kernel here, that takes longer than the device needs for a short
rollout. On an NVIDIA GPU we know which properties of an argument the code depends on, so a table of them finds the
version. Other launches use Triton's own search. Triton's hooks and debugging switches work only at the first launch.
"""

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

_compiled: dict[tuple[Hashable, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """Run `kernel[grid](*arguments, **constants)` on the current device, which must be the tensors'.

    Tensors and numbers are positional, a tensor first; all constants are named.
    """
    if torch.version.hip is not None:
        kernel[grid](*arguments, **constants)
        return
    compiled_for = *constants, *map(type, constants.values()), *constants.values()
    key = kernel, arguments[0].device, compiled_for, *map(described, arguments)
    if known := _compiled.get(key):
        compiled, values = known
        compiled[(*grid, 1, 1)[:3]](*arguments, *values)
        return
    values = tuple(constants[name] for name in kernel.arg_names[len(arguments) :])
    compiled = kernel[grid](*arguments, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        _compiled[key] = compiled, values


def described(argument: Tensor | float | None) -> Hashable:
    """Return the properties of an argument on which a kernel's code may depend: type, alignment, whether it is 1."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        wide = -(2**31) <= argument < 2**31, argument < 2**63
        return type(argument), argument % 16 == 0, argument == 1, wide
    if isinstance(argument, float | None):
        return type(argument)
    raise TypeError(f"a kernel's argument is a tensor, a number or None, got {type(argument).__name__}")
