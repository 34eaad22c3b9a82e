"""Attention for sequences packed one after another in a row: each sees only itself, and nothing is padded.

`use` gives a model the attention implementation NAME. A forward with `bounds(...)` among its arguments runs
variable-length attention, also when gradient checkpointing repeats the forward; any other forward runs the attention
the model had before. There are three ways to compute it, and the first that fits is used:

    FlashAttention      the model's own implementation, if it is one: it takes the bounds itself
    torch               PyTorch's `varlen_attn`, on a GPU in half precision
    one by one          scaled-dot-product attention of each sequence alone, anywhere

Shapes: H query heads, K key heads, N positions of the packed row, D head size.
"""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask

from opasd.device import send
from opasd.errors import ConfigError
from opasd.model.registry import attention_registries, configurations, replaced, use_attention
from opasd.model.unwrap import unwrap

NAME = "opasd_varlen"
ONE_BY_ONE = "one sequence at a time"
SHARED_KEYS: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}
"""Lets query heads share a key head; torch 2.11 always does, and has no such argument."""
FLASH = ("flash_attention_2", "flash_attention_3", "flash_attention_4")


def use(model: nn.Module) -> Callable[[], None]:
    """Let the model take packed rows without a mask, if its attention is scaled-dot-product attention.

    The returned function gives the model its own attention back.
    """
    base = unwrap(model)
    own_is_sdpa = base.config._attn_implementation == "sdpa"
    configs = [config for config in configurations(base) if config._attn_implementation == "sdpa"]
    return use_attention(configs if own_is_sdpa else [], NAME)


def is_used(model: nn.Module) -> bool:
    """Return whether packed rows need bounds and no mask."""
    return unwrap(model).config._attn_implementation in (NAME, *FLASH)


def bounds(model: nn.Module, lengths: Sequence[int]) -> dict[str, Any]:
    """Return the arguments of a forward that say where each packed sequence begins and ends."""
    base = unwrap(model)
    ends = send(functional.pad(torch.tensor(lengths).cumsum(0), (1, 0)).to(torch.int32), base.device)
    longest = max(lengths)
    arguments = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    if base.config._attn_implementation in FLASH:
        return arguments
    # A model takes a mask of four dimensions as ready-made and makes none of [N, N]; nothing reads this one.
    return arguments | {"attention_mask": torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=base.device)}


@contextmanager
def observed_windows(model: nn.Module) -> Iterator[tuple[set[int | None], set[int | None]]]:
    """Within the block, collect the windows that the model makes masks for, and those it calls its attention with."""
    in_masks: set[int | None] = set()
    in_calls: set[int | None] = set()

    def mask(*args: Any, local_size: int | None = None, **kwargs: Any) -> Tensor | None:
        in_masks.add(local_size)
        return sdpa_mask(*args, local_size=local_size, **kwargs)

    def attention(*args: Any, sliding_window: int | None = None, **kwargs: Any) -> tuple[Tensor, None]:
        in_calls.add(sliding_window)
        return packed_attention(*args, sliding_window=sliding_window, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(replaced(ALL_MASK_ATTENTION_FUNCTIONS._local_mapping, NAME, mask))
        for registry in attention_registries(model):
            stack.enter_context(replaced(registry._local_mapping, NAME, attention))
        yield in_masks, in_calls


def method(model: nn.Module, *, half: bool) -> str:
    """Return how packed rows are computed here, in words for a log; `half`: in a format of 16 bits."""
    base = unwrap(model)
    if base.config._attn_implementation in FLASH:
        return str(base.config._attn_implementation)
    return "PyTorch's varlen_attn" if base.device.type == "cuda" and half and _gpu_has_kernels() else ONE_BY_ONE


def packed_attention(
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
    size = query.shape[-1]
    half_on_gpu = query.is_cuda and query.dtype.itemsize == 2 and _gpu_has_kernels()
    if half_on_gpu and not dropout and size <= 256 and size % 8 == 0 and value.shape[-1] == size:
        window_size = (-1 if sliding_window is None else sliding_window - 1, 0)
        # squeezed and not indexed: the gradient of an index would be a copy
        query_NHD, key_NKD, value_NKD = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
        ends, longest = (cu_seq_lens_q, cu_seq_lens_q), (max_length_q, max_length_q)
        output = varlen_attn(
            query_NHD, key_NKD, value_NKD, *ends, *longest, scale=scaling, window_size=window_size, **SHARED_KEYS
        )
        assert isinstance(output, Tensor)
        return output[None], None
    return _one_by_one(query, key, value, cu_seq_lens_q, scaling, sliding_window, dropout), None


@functools.cache
def _gpu_has_kernels() -> bool:
    """Return whether the GPU is recent enough for PyTorch's `varlen_attn`."""
    return torch.cuda.get_device_capability() >= (8, 0)


def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, scaling: float | None, window: int | None, dropout: float
) -> Tensor:
    """Return the attention of each sequence alone, one after another [1, N, H, D]."""
    outputs = []
    for begin, end in pairwise(ends.tolist()):
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


AttentionInterface.register(NAME, packed_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
