"""Move values to a device without waiting for it, and recognise errors of a full device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def send(values: "Sequence[Any] | np.ndarray[Any, Any] | Tensor", device: torch.device | str) -> Tensor:
    """Return host values as a tensor on the device, without waiting for the device to finish its work."""
    tensor = torch.as_tensor(values)
    if torch.device(device).type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def short_of_memory(error: Exception) -> bool:
    """Return whether the device ran out of memory; libraries that PyTorch calls raise their own errors for this.

    cuDNN's attention only says that it could not be executed when another process has the last of the memory.
    """
    words = ("out of memory", "STATUS_ALLOC_FAILED", "mha_graph.execute(")
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in words)
    )
