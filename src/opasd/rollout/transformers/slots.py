"""A key-value cache with one slot for each sequence, each filled to its own length, in pages.

Nothing is padded and no mask is built. A decoding step passes each row's reach where transformers models expect a
prepared mask: its last position, then the distances of its pages (`pages`). Attention reads up to that position. A row
at rest has the last position -1: it reads and stores nothing. Pages never move, so a step can be captured as a CUDA
graph and replayed.

Shapes: B rows, H query heads, K key heads, T new positions, C pages of a row, D head size.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from opasd.rollout.transformers import pages as paging
from opasd.rollout.transformers.fusing import kernels_available
from opasd.rollout.transformers.pages import ALIGNMENT, Pages, TokenState

IMPLEMENTATION = "opasd_slots"
"""Name of the attention of a decoding step; it has no mask function, so models build no mask for it."""
_UNSUPPORTED = ("softcap", "s_aux", "sliding_window", "position_bias", "cu_seq_lens_q")
"""Arguments of attention functions that `slots_attention` cannot honour."""


def token_states(cache: DynamicCache) -> list[TokenState]:
    """Return the first token's keys and values in each layer of a cache."""
    layers: list[Any] = cache.layers
    return [(layer.keys[:1, :, :1].clone(), layer.values[:1, :, :1].clone()) for layer in layers]


class SlotCache(Cache):
    """The pages as a cache of transformers."""

    def __init__(self, pages: Pages) -> None:
        self.slots = [_SlotLayer(pages.view(n), pages.view(n + 1)) for n in range(0, len(pages.starts), 2)]
        super().__init__(layers=list(self.slots))

    def fill(self, reach: Tensor) -> None:
        """Let the next forward write prompts to rows of this reach [B, 1 + C], each from its start."""
        self._aim(reach, extends=False)

    def extend(self, reach: Tensor) -> None:
        """Let the next forward write one token to each row, at the last position of its reach."""
        self._aim(reach, extends=True)

    def _aim(self, reach: Tensor, *, extends: bool) -> None:
        for layer in self.slots:
            layer.reach, layer.extends = reach, extends


class _SlotLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.stored_keys, self.stored_values = keys, values
        self.is_initialized = True
        self.reach, self.extends = torch.empty(0), False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = self.stored_keys, self.stored_values
        if kernels_available(keys.device):
            from opasd.rollout.transformers import kernels

            kernels.store(key_states, value_states, keys, values, self.reach, from_start=not self.extends)
        elif self.extends:
            last = self.reach[:, 0]
            at = last.clamp_min(0)
            own = _numbers(self.reach, keys).gather(1, at[:, None] // paging.PAGE)[:, 0]
            own = torch.where(last < 0, 0, own)
            keys[own, :, at % paging.PAGE] = key_states[:, :, 0]
            values[own, :, at % paging.PAGE] = value_states[:, :, 0]
        else:
            every = torch.arange(key_states.shape[2], device=keys.device)
            row, at = (every <= self.reach[:, :1]).nonzero(as_tuple=True)
            own = _numbers(self.reach, keys)[row, at // paging.PAGE]
            keys[own, :, at % paging.PAGE] = key_states[row, :, at]
            values[own, :, at % paging.PAGE] = value_states[row, :, at]
        return (keys, values) if self.extends else (key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.stored_keys.shape[0] * paging.PAGE

    get_max_cache_shape = get_max_length  # the name before transformers 5.18


def _numbers(reach: Tensor, pages: Tensor) -> Tensor:
    """Return the numbers [B, C] of the rows' pages within the first segment."""
    return reach[:, 1:] * (ALIGNMENT // pages.itemsize) // pages.stride(0)


def fits(config: PreTrainedConfig) -> bool:
    """Return whether every layer of the model's cache stores one key and one value for each token, and nothing else."""
    layers = DynamicCache(config=config).layers
    return len(layers) > 0 and all(type(layer) is DynamicLayer for layer in layers)


def slots_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend from one new token in each row; `attention_mask` [B, 1, 1, 1 + C] holds the rows' reach."""
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if unsupported or dropout or query.shape[2] != 1:
        raise NotImplementedError(f"its attention has {', '.join(unsupported) or 'dropout or several queries'}")
    mask = attention_mask
    if mask is None or mask.shape[:3] != (query.shape[0], 1, 1) or mask.shape[3] < 2 or mask.dtype != torch.long:
        raise NotImplementedError("it changes a prepared attention mask")
    scaling, reach = float(query.shape[-1] ** -0.5 if scaling is None else scaling), mask[:, 0, 0]
    if kernels_available(query.device):
        from opasd.rollout.transformers import kernels

        return kernels.attend(query, key, value, reach, scaling), None
    numbers = _numbers(reach, key)
    seen = torch.arange(numbers.shape[1] * paging.PAGE, device=key.device) <= reach[:, :1].clamp_min(0)
    seen = seen[:, None, :, None]
    # What lies beyond may be NaN, which would spoil a weighted sum even where it is masked.
    key, value = (torch.where(seen, pages[numbers].transpose(1, 2).flatten(2, 3), 0) for pages in (key, value))
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen.transpose(2, 3), scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, slots_attention)
