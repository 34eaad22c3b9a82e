"""Run a model's small operations as one kernel each, for the length of a decoding step.

A step with one new token in each row spends its time on launching many small operations. The only way to replace them
is to patch the model's modules; `fused` does so within a block and undoes it. Names decide nothing: a norm or a rotary
embedding is replaced only if the kernel gives what the model's own code gives on random numbers.

Adapters stay adapters: their product is added to the base's. Merging would lose half of a weight's last bit. In half
precision the adapters are rounded as a training step without dropout rounds them (`opasd.model.lora`).
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from opasd.model.registry import replaced

AGREEMENTS: dict[tuple[object, ...], bool] = {}
"""Whether a kernel agrees with a piece of model code in a number format and on a device; tried once in a process."""
RoundedAdapters = dict[nn.Module, tuple[Tensor, Tensor]]
"""A and s·B of LoRA layers in the activations' format."""


def kernels_available(device: torch.device) -> bool:
    """Return whether Triton's kernels run here; they need tensor cores with bfloat16."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def fused(model: nn.Module, rounded: RoundedAdapters) -> Iterator[None]:
    """Within the block, forwards with one new token in each row are fused; `model` is in eval mode.

    `rounded` is filled with tensors that these forwards read. It must outlive every graph of them, and it is valid only
    while no weight changes.
    """
    with ExitStack() as stack:
        for module in model.modules():
            forward = _norm(module) or _adapted(module, rounded)
            if forward is not None:
                stack.enter_context(replaced(module.__dict__, "forward", forward))
        for name in {type(module).__module__ for module in model.modules()}:
            namespace = sys.modules[name].__dict__
            if callable(original := namespace.get("apply_rotary_pos_emb")):
                stack.enter_context(replaced(namespace, "apply_rotary_pos_emb", _rotary(original)))
        yield


def _is_wrapped(module: nn.Module) -> bool:
    """Return whether the module has a forward that may do more than its class says; Liger's forwards do not."""
    forward = module.__dict__.get("forward")
    return forward is not None and not is_ligers(forward)


def is_ligers(function: Callable[..., Any]) -> bool:
    """Return whether liger-kernel defines a function."""
    return str(getattr(function, "__module__", "")).startswith("liger_kernel.")


def _norm(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    """Return the fused forward of an RMS norm, or None for any other module."""
    from opasd.rollout.transformers import kernels

    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    is_norm = type(module).__name__.endswith("RMSNorm") and isinstance(weight, Tensor) and weight.ndim == 1
    if not is_norm or not isinstance(eps, float) or _is_wrapped(module):
        return None
    assert isinstance(weight, Tensor)

    def forward(x: Tensor) -> Tensor:
        return kernels.rms_norm(x, weight, eps)

    key = (type(module), weight.dtype, weight.device)
    return forward if _agree(key, forward, module, weight, (3, 1, weight.shape[0])) else None


def _rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that rotates with the kernel wherever it agrees with `original`."""
    from opasd.rollout.transformers import kernels

    def fits(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
        (B, _, T, D), dtypes = query.shape, {query.dtype, key.dtype, cos.dtype, sin.dtype}
        return (
            T == 1 and D % 2 == 0 and cos.shape == sin.shape == (B, 1, D) and len(dtypes) == 1
            and query.stride(-1) == key.stride(-1) == cos.stride(-1) == 1 and cos.stride() == sin.stride()
        )  # fmt: skip

    def agrees(query: Tensor) -> bool:
        D = query.shape[-1]
        shapes = (3, 4, 1, D), (3, 2, 1, D), (3, 1, D), (3, 1, D)
        return _agree((original, query.dtype, query.device, D), kernels.rotate, original, query, *shapes)

    def apply(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        plain = not args and not kwargs and query.ndim == key.ndim == 4 and fits(query, key, cos, sin)
        if plain and agrees(query):
            return kernels.rotate(query, key, cos, sin)
        return original(query, key, cos, sin, *args, **kwargs)

    return apply


def _adapted(module: nn.Module, rounded: RoundedAdapters) -> Callable[[Tensor], Tensor] | None:
    """Return the fused forward of a plain LoRA layer with one active adapter, or None for any other module."""
    from peft.tuners.lora import Linear

    from opasd.model.lora import FusedLinear
    from opasd.rollout.transformers import kernels

    if not isinstance(module, Linear) or type(module) not in (Linear, FusedLinear):
        return None
    if _is_wrapped(module) or module.disable_adapters or module.merged:
        return None
    active = [name for name in module.active_adapters if name in module.lora_A]
    base = module.base_layer
    if len(active) != 1 or active[0] in module.lora_variant or type(base) is not nn.Linear or module.fan_in_fan_out:
        return None
    down, up, scaling = module.lora_A[active[0]], module.lora_B[active[0]], float(module.scaling[active[0]])
    if not (type(down) is nn.Linear and type(up) is nn.Linear) or down.bias is not None or up.bias is not None:
        return None
    A, B = down.weight, up.weight
    if A.shape[0] > kernels.MAX_RANK:
        return None
    if base.weight.dtype.itemsize == 2:
        if module not in rounded:
            rounded[module] = A.detach().to(base.weight.dtype), (B.detach() * scaling).to(base.weight.dtype)
        (A, B), scaling = rounded[module], 1.0
    if A.dtype != B.dtype or not (A.is_contiguous() and B.is_contiguous()):
        return None

    def forward(x: Tensor) -> Tensor:
        return kernels.add_lora(base(x), x, A, B, scaling)

    return forward


def _agree(
    key: tuple[object, ...], kernel: Callable[..., Any], original: Callable[..., Any], like: Tensor,
    *shapes: tuple[int, ...],
) -> bool:  # fmt: skip
    """Return whether the kernel gives what the model's code gives on random numbers of these shapes."""
    if key not in AGREEMENTS:
        inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(like) for shape in shapes]
        results = (function(*inputs) for function in (kernel, original))
        pairs = zip(*((result,) if isinstance(result, Tensor) else result for result in results), strict=True)
        AGREEMENTS[key] = all(
            a.shape == b.shape and a.dtype == b.dtype
            and bool((a.double() - b.double()).norm() <= torch.finfo(a.dtype).eps * b.double().norm())
            for a, b in pairs
        )  # fmt: skip
    return AGREEMENTS[key]
