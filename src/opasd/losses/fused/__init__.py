"""The losses as Triton kernels: the same numbers as the chunked versions, at the speed of the hardware.

Triton is optional. Only the modules of the kernels import it, once `unavailable` has returned None.
"""

import functools
import importlib.util
import logging
import os

import torch


def available(device: torch.device | str) -> bool:
    """Whether kernels can run on tensors of `device`: Triton and a CUDA device, or Triton's interpreter."""
    return unavailable(device) is None


def unavailable(device: torch.device | str) -> str | None:
    """Why no kernel can run on tensors of `device`, or None if one can."""
    kind = torch.device(device).type
    if installed() and (kind == "cuda" or interpreted()):
        return None
    missing = "" if installed() else ", and Triton is not installed"
    return f"needs Triton and a CUDA device, and these tensors are on {kind}{missing}"


@functools.cache
def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs its kernels as plain Python on the CPU: slow, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def say_once(message: str) -> None:
    """Warn, the first time, that something slower runs instead of a kernel or a formula."""
    logging.getLogger(__name__).warning(message)
