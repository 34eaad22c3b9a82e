"""In which precision the losses compute: at least float32, whatever surrounds them."""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from typing import ParamSpec, TypeVar

import torch

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision in which numbers of this type are summed and exponentiated."""
    return torch.promote_types(dtype, torch.float32)


def own_precision(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function with autocast off: it chooses the precision of every product itself."""

    @functools.wraps(function)
    def inner(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return inner
