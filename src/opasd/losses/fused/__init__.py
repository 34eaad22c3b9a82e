"""The losses as Triton kernels: the same numbers as the chunked versions, at the speed of the hardware.

Triton is optional and is imported by the kernels' modules alone, once `available` has said yes.
"""

import functools
import importlib.util
import logging
import os

import torch


def available(device: torch.device | str) -> bool:
    """Whether kernels can run on tensors of `device`: Triton and a CUDA device, or Triton's interpreter."""
    return installed() and (torch.device(device).type == "cuda" or interpreted())


@functools.cache
def installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def interpreted() -> bool:
    """Whether Triton runs its kernels as plain Python on the CPU: slow, for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def say_once(message: str) -> None:
    """Tell, the first time, that something slower runs in the kernels' place."""
    logging.getLogger(__name__).warning(message)
