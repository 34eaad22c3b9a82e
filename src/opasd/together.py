"""Processes that train together: how many there are, what one of them does for all, and what each does a share of."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

Result = TypeVar("Result")


def processes() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return this process's number among them."""
    return dist.get_rank() if processes() > 1 else 0


def from_first(work: Callable[[], Result]) -> Result:
    """Return what the first process's call returns, or raise its error in all; the others only wait for it."""
    if processes() == 1:
        return work()
    shared: list[Any] = [_tried(work) if rank() == 0 else None]
    dist.broadcast_object_list(shared)
    return _unless_error(shared)[0]


def from_all(work: Callable[[], Result]) -> list[Result]:
    """Return what every process's own call returns, in their order, or raise the first one's error in all."""
    if processes() == 1:
        return [work()]
    found: list[Any] = [None] * processes()
    dist.all_gather_object(found, _tried(work))
    return _unless_error(found)


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except Exception as error:
        return error


def _unless_error(found: list[Any]) -> list[Any]:
    for result in found:
        if isinstance(result, Exception):
            raise result
    return found
