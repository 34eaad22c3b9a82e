"""A key-value cache with one slot for each sequence, each filled to its own length.

A prompt lies at the start of its slot, so nothing is padded and no mask is built. A decoding step passes each row's
last position where transformers models expect a prepared mask, and attention reads up to that position. The storage
never moves, so a step can be captured as a CUDA graph and replayed.

Shapes: B rows, H query heads, K key heads, T new positions, S positions of a slot, D head size.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from opasd.rollout.transformers.fusing import kernels_available

IMPLEMENTATION = "opasd_slots"
"""Name of the attention of a decoding step; it has no mask function, so models build no mask for it."""
_UNSUPPORTED = ("softcap", "s_aux", "sliding_window", "position_bias", "cu_seq_lens_q")
"""Arguments of attention functions that `slots_attention` cannot honour."""


TokenState = tuple[Tensor, Tensor]
"""Keys [1, K, 1, D] and values that one layer stores for a token."""


def token_states(cache: DynamicCache) -> list[TokenState]:
    """Return the first token's keys and values in each layer of a cache."""
    layers: list[Any] = cache.layers
    return [(layer.keys[:1, :, :1].clone(), layer.values[:1, :, :1].clone()) for layer in layers]


class SlotCache(Cache):
    """Storage for `rows` sequences of up to `length` tokens, for layers that store such tokens."""

    def __init__(self, tokens: Iterable[TokenState], rows: int, length: int) -> None:
        self.slots = [_SlotLayer(token, rows, length) for token in tokens]
        super().__init__(layers=list(self.slots))

    def fill(self, slots: Tensor) -> None:
        """Let the next forward write its prompts to these slots, each from the start."""
        for layer in self.slots:
            layer.target, layer.extends = slots, False

    def extend(self, positions: Tensor) -> None:
        """Let the next forward write one token to each row, at these positions."""
        for layer in self.slots:
            layer.target, layer.extends = positions, True

    def clear(self, slots: Tensor) -> None:
        """Set slots to 0: a NaN in them would spoil a weighted sum even where it is masked."""
        for layer in self.slots:
            layer.stored_keys.index_fill_(0, slots, 0)
            layer.stored_values.index_fill_(0, slots, 0)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        """Copy the contents of slots to other slots."""
        for layer in self.slots:
            layer.stored_keys[targets] = layer.stored_keys[sources]
            layer.stored_values[targets] = layer.stored_values[sources]


class _SlotLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, token: TokenState, rows: int, length: int) -> None:
        super().__init__()
        self.stored_keys, self.stored_values = (
            state.new_zeros(rows, state.shape[1], length, state.shape[3]) for state in token
        )
        self.is_initialized = True
        self.target, self.extends = torch.empty(0), False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        rows, _, new, _ = key_states.shape
        if not self.extends:
            self.stored_keys[self.target, :, :new] = key_states
            self.stored_values[self.target, :, :new] = value_states
            return key_states, value_states
        keys, values = self.stored_keys[:rows], self.stored_values[:rows]
        if kernels_available(keys.device):
            from opasd.rollout.transformers import kernels

            kernels.store(key_states, value_states, keys, values, self.target)
        else:
            every = torch.arange(rows, device=keys.device)
            keys[every, :, self.target] = key_states[:, :, 0]
            values[every, :, self.target] = value_states[:, :, 0]
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.stored_keys.shape[2]

    get_max_cache_shape = get_max_length  # the name before transformers 5.18


def fits(config: PreTrainedConfig) -> bool:
    """Return whether every layer of the model's cache stores one key and one value for each token, and nothing else."""
    layers = DynamicCache(config=config).layers
    return len(layers) > 0 and all(type(layer) is DynamicLayer for layer in layers)


def slots_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attend from one new token in each row; `attention_mask` [B, 1, 1, 1] holds the rows' last positions."""
    unsupported = [name for name in _UNSUPPORTED if kwargs.get(name) is not None]
    if unsupported or dropout or query.shape[2] != 1:
        raise NotImplementedError(f"its attention has {', '.join(unsupported) or 'dropout or several queries'}")
    last = attention_mask
    if last is None or last.shape != (query.shape[0], 1, 1, 1) or last.dtype != torch.long:
        raise NotImplementedError("it changes a prepared attention mask")
    scaling = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    if kernels_available(query.device):
        from opasd.rollout.transformers import kernels

        return kernels.attend(query, key, value, last[:, 0, 0, 0], scaling), None
    seen = torch.arange(key.shape[2], device=key.device) <= last
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=scaling, enable_gqa=query.shape[1] != key.shape[1]
    )
    return output.transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, slots_attention)
