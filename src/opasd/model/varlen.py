"""Attention for sequences packed one after another in a row: each sees itself alone, and nothing is padded.

`use` gives a model an attention implementation of this name. A forward with `bounds(...)` among its arguments runs
variable-length attention, in the forward and again where gradient checkpointing repeats it; any other forward runs what
the model had before. Three ways to compute it, the first that fits:

    FlashAttention      the model's own implementation, if it is one: it takes the bounds itself
    torch               PyTorch's `varlen_attn`, on a GPU in half precision
    one by one          scaled-dot-product attention of each sequence alone, anywhere

Shapes: H query heads, K key heads, N positions of the packed row, D head size.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from opasd.device import send
from opasd.errors import ConfigError
from opasd.model.unwrap import unwrap

NAME = "opasd_varlen"
ONE_BY_ONE = "one sequence at a time"
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")


def use(model: nn.Module) -> Callable[[], None]:
    """Let the model take packed rows without a mask, if its attention is one that this can stand for.

    What is returned gives the model its own attention back."""
    base = unwrap(model)
    found = [getattr(module, "config", None) for module in base.modules()]
    configs = {id(c): c for c in found if isinstance(c, PreTrainedConfig) and c._attn_implementation == "sdpa"}
    changed = list(configs.values()) if base.config._attn_implementation == "sdpa" else []

    def put(implementation: str) -> None:
        for config in changed:
            config._attn_implementation_internal = implementation  # of this part of the model alone

    put(NAME)
    return functools.partial(put, "sdpa")


def is_used(model: nn.Module) -> bool:
    """Whether packed rows need bounds and no mask."""
    return unwrap(model).config._attn_implementation in (NAME, *FLASH)


def bounds(model: nn.Module, lengths: Sequence[int]) -> dict[str, Any]:
    """The arguments of a forward that say where each packed sequence begins and ends."""
    base = unwrap(model)
    ends = send(functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32), base.device)
    longest = max(lengths)
    arguments = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    if base.config._attn_implementation in FLASH:
        return arguments
    # A mask of four dimensions is taken as made already, so no model makes one of [N, N]; nothing reads this one.
    return arguments | {"attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=base.device)}


_noted: tuple[set[int | None], set[int | None]] | None = None


@contextmanager
def windows() -> Iterator[tuple[set[int | None], set[int | None]]]:
    """While entered, notes the windows that models make masks for, and those that their attention is called with."""
    global _noted
    _noted = set(), set()
    try:
        yield _noted
    finally:
        _noted = None


def kind(model: nn.Module, *, half: bool) -> str:
    """How packed rows are computed here, in words for a log; `half` says whether in 16 bits."""
    base = unwrap(model)
    if base.config._attn_implementation in FLASH:
        return str(base.config._attn_implementation)
    return "PyTorch's varlen_attn" if base.device.type == "cuda" and half and _varlen() else ONE_BY_ONE


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """An attention function as transformers' models call it."""
    if _noted is not None:
        _noted[1].add(sliding_window)
    if cu_seq_lens_q is None:
        if attention_mask is not None and attention_mask.shape[-1] != key.shape[2]:
            raise ConfigError(
                f"{type(module).__name__} does not hand a packed row's bounds to its attention; use layout: padded"
            )
        return sdpa_attention_forward(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, sliding_window=sliding_window, **kwargs,
        )  # fmt: skip
    if query.shape[0] != 1 or query.shape[2] != key.shape[2]:
        raise ConfigError(f"packed sequences are one row without a cache, got {tuple(query.shape)}")
    changed = attention_mask is not None and attention_mask.numel() > 1
    unknown = kwargs.get("softcap") or any(kwargs.get(name) is not None for name in ("s_aux", "position_bias"))
    if changed or unknown or getattr(module, "is_causal", True) is False:
        raise ConfigError(f"the attention of {type(module).__name__} cannot be packed; use layout: padded")
    if torch.is_autocast_enabled(query.device.type):
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    run = _by_torch if _fits_torch(query, value, sliding_window, dropout) else _one_by_one
    return run(query, key, value, cu_seq_lens_q, max_length_q, scaling, sliding_window, dropout), None


def _fits_torch(query: Tensor, value: Tensor, sliding_window: int | None, dropout: float) -> bool:
    size = query.shape[-1]
    if not query.is_cuda or query.dtype.itemsize != 2 or dropout or size > 256 or size % 8 or value.shape[-1] != size:
        return False
    return bool(_varlen()) and (sliding_window is None or "window_size" in _varlen())


@functools.cache
def _varlen() -> frozenset[str]:
    """The parameters of PyTorch's own function, which grew over its releases; none where there is no such function, or
    a GPU older than its kernels."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    if torch.cuda.is_available() and torch.cuda.get_device_capability() < (8, 0):
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)


@functools.cache
def _shares_keys() -> bool:
    """Whether a release that is not asked for it (`enable_gqa`) lets several query heads share a key head all the same:
    its kernels do, and repeated keys would be copied in every layer."""
    from torch.nn.attention.varlen import varlen_attn

    ends = torch.tensor([0, 3, 8], dtype=torch.int32, device="cuda")
    generator = torch.Generator("cuda").manual_seed(0)
    numbers = [torch.randn(8, heads, 64, device="cuda", generator=generator).bfloat16() for heads in (4, 2, 2, 4)]

    def run(repeats: int) -> list[Tensor]:
        query, key, value = (tensor.clone().requires_grad_() for tensor in numbers[:3])
        wide_key, wide_value = (tensor.repeat_interleave(repeats, 1) for tensor in (key, value))
        output = varlen_attn(query, wide_key, wide_value, ends, ends, 5, 5)
        assert isinstance(output, Tensor)
        return [output, *torch.autograd.grad(output, (query, key, value), numbers[3])]

    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
        try:
            found, expected = run(1), run(2)
        except (RuntimeError, ValueError):
            return False
    return all(torch.allclose(a.float(), b.float(), atol=0.02, rtol=0.02) for a, b in zip(found, expected, strict=True))


def _by_torch(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int,
    scaling: float | None, window: int | None, _dropout: float,
) -> Tensor:  # fmt: skip
    from torch.nn.attention.varlen import varlen_attn

    options: dict[str, Any] = {}
    if "window_size" in _varlen():
        options["window_size"] = (-1 if window is None else window - 1, 0)
    else:
        options["is_causal"] = True
    if "scale" in _varlen():
        options["scale"] = scaling
    elif scaling is not None:
        query = query * (scaling * query.shape[-1] ** 0.5)
    if "enable_gqa" in _varlen():
        options["enable_gqa"] = True
    elif query.shape[1] != key.shape[1] and not _shares_keys():
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    # squeezed and not indexed, whose gradient would be a copy
    query_NHD, key_NKD, value_NKD = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    output = varlen_attn(query_NHD, key_NKD, value_NKD, ends, ends, longest, longest, **options)
    assert isinstance(output, Tensor)
    return output[None]


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, _longest: int,
    scaling: float | None, window: int | None, dropout: float,
) -> Tensor:  # fmt: skip
    places = ends.tolist()
    outputs = []
    for begin, end in pairwise(places):
        mask = None
        if window is not None and end - begin > window:
            distance = torch.arange(end - begin, device=query.device)
            distance = distance[:, None] - distance
            mask = (distance >= 0) & (distance < window)
        output = functional.scaled_dot_product_attention(
            query[:, :, begin:end], key[:, :, begin:end], value[:, :, begin:end],
            attn_mask=mask, dropout_p=dropout, is_causal=mask is None, scale=scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
        outputs.append(output)
    return torch.cat(outputs, 2).transpose(1, 2)


def _mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> Tensor | None:
    """A mask function as transformers' models call it."""
    if _noted is not None:
        _noted[0].add(local_size)
    return sdpa_mask(*args, local_size=local_size, **kwargs)


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, _mask)
