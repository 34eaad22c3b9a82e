"""The losses as Triton kernels: the same numbers as the chunked versions, at the speed of the hardware.

Triton is optional. Only the modules of the kernels import it, once `unavailable` has returned None.
"""

import functools
import importlib.util
import logging
import os
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from opasd.choices import Impl
from opasd.errors import ConfigError

if TYPE_CHECKING:
    from opasd.losses.divergence import DivergenceFormulas


def unavailable(device: torch.device | str) -> str | None:
    """Return why no kernel can run on tensors of `device`, or None if one can.

    Kernels need Triton and a CUDA device, or Triton's interpreter, which runs them as plain Python: slow, for tests.
    """
    kind, installed = torch.device(device).type, triton_is_installed()
    if installed and (kind == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"):
        return None
    missing = "" if installed else ", and Triton is not installed"
    return f"needs Triton and a CUDA device, and these tensors are on {kind}{missing}"


@functools.cache
def triton_is_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


def chosen(loss: str, impl: Impl, tensor: Tensor, formulas: "DivergenceFormulas", obstacle: str | None = None) -> bool:
    """Return whether `impl` chooses the kernels for tensors like this one, and they can compute the loss.

    If they cannot, `fused` is an error, and `auto` warns once.
    """
    if impl != "fused" and not (impl == "auto" and tensor.is_cuda):
        return False
    reason = unavailable(tensor.device)
    if reason is None and formulas.kernel_code is None:
        reason = f"has no kernel for divergence: {formulas.name}"
    reason = reason or obstacle
    if reason is not None and impl == "fused":
        raise ConfigError(f"impl: fused {reason}; use impl: auto, which takes the fastest that can run")
    if reason is not None:
        say_once(f"{loss} loss: impl: fused {reason}; impl: chunked computes the loss")
    return reason is None


@functools.cache
def say_once(message: str) -> None:
    """Warn, the first time, that something slower runs instead of a kernel or a formula."""
    logging.getLogger(__name__).warning(message)
