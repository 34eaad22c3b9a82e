"""The precision in which the losses compute: at least float32, under autocast too."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """The precision in which numbers of this type are summed and exponentiated."""
    return torch.promote_types(dtype, torch.float32)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Switch autocast off: the losses choose the precision of every product themselves."""
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield
