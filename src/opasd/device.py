"""Move values to a device without waiting for it, and recognise errors of a full device."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def send(values: "Sequence[Any] | np.ndarray[Any, Any] | Tensor", device: torch.device | str) -> Tensor:
    """Values of the host as a tensor of the device, without waiting for what the device is still doing."""
    tensor = torch.as_tensor(values)
    if torch.device(device).type != "cuda" or tensor.is_cuda:
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def short_of_memory(error: Exception) -> bool:
    """Whether that is all that was wrong: libraries that PyTorch calls have errors of their own for a full device.

    cuDNN's attention, which only says that it could not be executed, was seen to fail where another process had the
    last of the memory."""
    words = ("out of memory", "STATUS_ALLOC_FAILED", "mha_graph.execute(")
    return isinstance(error, torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and any(part in str(error) for part in words)
    )
