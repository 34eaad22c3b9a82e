"""For the length of a decoding step, a model's small operations are one kernel each.

Nothing is assumed from names: a norm or a rotary embedding is replaced only where the kernel gives what the model's own
code gives on random numbers, else it stays. Adapters stay adapters: their product is added to the base's, not merged,
where half of a weight's last bit would be lost; in half precision they are rounded as a training step without dropout
rounds them (`opasd.model.lora`).
"""

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_verdicts: dict[tuple[object, ...], bool] = {}
"""Whether a kernel gives what a piece of model code gives, in a precision."""
Rounded = dict[nn.Module, tuple[Tensor, Tensor]]
"""A and s·B of LoRA layers in the activations' format."""


def kernels_available(device: torch.device) -> bool:
    """Whether Triton's kernels run here; they want tensor cores that know bfloat16."""
    if device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@contextmanager
def fused(model: nn.Module, rounded: Rounded) -> Iterator[None]:
    """While entered, forwards of one new token a row run in the model's fused form; `model` is in eval mode.

    `rounded` is filled with what the forwards read besides the model: it must outlive any graph of them, and holds
    while no weight changes."""
    with ExitStack() as stack:
        for module in model.modules():
            forward = _norm(module) or _adapted(module, rounded)
            if forward is not None:
                if "forward" in module.__dict__:
                    stack.callback(module.__dict__.__setitem__, "forward", module.__dict__["forward"])
                else:
                    stack.callback(module.__dict__.pop, "forward")
                module.forward = forward
        for name in {type(module).__module__ for module in model.modules()}:
            namespace = sys.modules[name].__dict__
            if callable(original := namespace.get("apply_rotary_pos_emb")):
                namespace["apply_rotary_pos_emb"] = _rotary(original)
                stack.callback(namespace.__setitem__, "apply_rotary_pos_emb", original)
        yield


def _is_wrapped(module: nn.Module) -> bool:
    """Whether the module was given another forward, which may do more than its class says; liger-kernel's does not."""
    forward = module.__dict__.get("forward")
    return forward is not None and not is_ligers(forward)


def is_ligers(function: Callable[..., Any]) -> bool:
    """Whether a function is one of liger-kernel's."""
    return str(getattr(function, "__module__", "")).startswith("liger_kernel.")


# ---- norms ----------------------------------------------------------------------------------------------------------


def _norm(module: nn.Module) -> Callable[[Tensor], Tensor] | None:
    from opasd.rollout.transformers import kernels

    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
    is_norm = type(module).__name__.endswith("RMSNorm") and isinstance(weight, Tensor) and weight.ndim == 1
    if not is_norm or not isinstance(eps, float) or _is_wrapped(module):
        return None
    assert isinstance(weight, Tensor)

    def forward(x: Tensor) -> Tensor:
        return kernels.rms_norm(x, weight, eps)

    def agrees() -> bool:
        x = _numbers(3, 1, weight.shape[0], like=weight)
        return _close([forward(x)], [module(x)])

    return forward if _verdict((type(module), weight.dtype, weight.device), agrees) else None


# ---- rotary embeddings ----------------------------------------------------------------------------------------------


def _rotary(original: Callable[..., Any]) -> Callable[..., Any]:
    from opasd.rollout.transformers import kernels

    def fits(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> bool:
        (B, _, T, D), alike = query.shape, (query.dtype, key.dtype, cos.dtype, sin.dtype)
        return (
            T == 1 and D % 2 == 0 and cos.shape == sin.shape == (B, 1, D) and len(set(alike)) == 1
            and query.stride(-1) == key.stride(-1) == cos.stride(-1) == 1 and cos.stride() == sin.stride()
        )  # fmt: skip

    def agrees(query: Tensor) -> bool:
        D = query.shape[-1]
        given = [_numbers(*shape, like=query) for shape in ((3, 4, 1, D), (3, 2, 1, D), (3, 1, D), (3, 1, D))]
        return _close(kernels.rotate(*given), original(*given))

    def apply(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *args: Any, **kwargs: Any) -> Any:
        plain = not args and not kwargs and query.ndim == key.ndim == 4 and fits(query, key, cos, sin)
        if plain and _verdict((original, query.dtype, query.device, query.shape[-1]), lambda: agrees(query)):
            return kernels.rotate(query, key, cos, sin)
        return original(query, key, cos, sin, *args, **kwargs)

    return apply


# ---- adapters -------------------------------------------------------------------------------------------------------


def _adapted(module: nn.Module, rounded: Rounded) -> Callable[[Tensor], Tensor] | None:
    """A plain LoRA layer with one active adapter."""
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


# ---- whether two computations agree ---------------------------------------------------------------------------------


def _verdict(key: tuple[object, ...], agrees: Callable[[], bool]) -> bool:
    if key not in _verdicts:
        _verdicts[key] = agrees()
    return _verdicts[key]


def _numbers(*shape: int, like: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(shape, generator=generator).to(like)


def _close(found: Any, expected: Any) -> bool:
    return all(
        a.shape == b.shape and a.dtype == b.dtype
        and bool((a.double() - b.double()).norm() <= torch.finfo(a.dtype).eps * b.double().norm())
        for a, b in zip(found, expected, strict=True)
    )  # fmt: skip
