"""Launches of kernels that are compiled already, without Triton's search for them.

Triton finds the version of a kernel to run by a description of all arguments, and compares every constant its source
names with what it was; for the thirty arguments of a kernel here that takes longer than a short rollout takes the
device. What Triton compiles for is known, so a table of it does.
"""

from collections.abc import Hashable
from typing import Any

from torch import Tensor

_compiled: dict[tuple[Hashable, ...], tuple[Any, tuple[Any, ...]]] = {}


def launch(kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
    """`kernel[grid](*arguments, **constants)`: tensors and numbers by place, a tensor first, constants by name."""
    key = kernel, arguments[0].device, *constants.values(), *map(described, arguments)
    if known := _compiled.get(key):
        compiled, rest = known
        compiled[(*grid, 1, 1)[:3]](*arguments, *rest)
        return
    compiled = kernel[grid](*arguments, **constants)
    if compiled is not None:  # the interpreter compiles nothing
        _compiled[key] = compiled, tuple(constants[name] for name in kernel.arg_names[len(arguments) :])


def described(argument: Tensor | float | None) -> Hashable:
    """All that a kernel's code may depend on of an argument that is no constant: type, alignment, being 1."""
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16 == 0
    if isinstance(argument, int):
        return type(argument), argument % 16 == 0, argument == 1, -(2**31) <= argument < 2**31
    return type(argument)
