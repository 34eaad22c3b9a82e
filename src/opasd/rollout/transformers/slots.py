"""A key-value cache with one slot a sequence, each filled to a length of its own.

A prompt lies at the start of its slot, so nothing is padded and no mask is built: a decoding step gets each row's last
position where transformers models expect a prepared mask, and attention reads that far. The storage never moves, so a
step can be captured as a CUDA graph and replayed.

Shapes: B rows, H query heads, K key heads, T new positions, S positions of a slot, D head size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, DynamicCache, PreTrainedConfig
from transformers.cache_utils import CacheLayerMixin, DynamicLayer

from opasd.rollout.transformers.fusing import kernels_available

IMPLEMENTATION = "opasd_slots"
"""The attention implementation of a decoding step; it has no mask function, so models build no mask for it."""
_UNKNOWN = ("softcap", "s_aux", "sliding_window", "position_bias", "cu_seq_lens_q")
"""What attention over slots does not do."""


class SlotsError(Exception):
    """A model whose attention or cache the slots cannot stand for."""


@dataclass(frozen=True)
class LayerShape:
    """What one layer keeps of a token."""

    heads: int
    key_size: int
    value_size: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        return self.heads * (self.key_size + self.value_size) * self.dtype.itemsize


def layer_shapes(cache: DynamicCache) -> tuple[LayerShape, ...]:
    """The shapes of a cache that was used."""
    shapes = []
    for layer in cache.layers:
        assert isinstance(layer, DynamicLayer)
        assert layer.keys is not None
        assert layer.values is not None
        shapes.append(LayerShape(layer.keys.shape[1], layer.keys.shape[3], layer.values.shape[3], layer.keys.dtype))
    return tuple(shapes)


class SlotCache(Cache):
    """Storage for `rows` sequences of up to `length` tokens."""

    def __init__(self, shapes: Sequence[LayerShape], rows: int, length: int, device: torch.device) -> None:
        self.slots = [_SlotLayer(shape, rows, length, device) for shape in shapes]
        super().__init__(layers=list(self.slots))

    def at(self, place: Tensor, *, decoding: bool) -> None:
        """The next forward fills the slots `place` from the start or, `decoding`, the position `place` of each row."""
        for layer in self.slots:
            layer.place, layer.decoding = place, decoding

    def clear(self, slots: Tensor) -> None:
        """Forget what slots held: a masked NaN would still spoil a plain weighted sum."""
        for layer in self.slots:
            layer.stored_keys.index_fill_(0, slots, 0)
            layer.stored_values.index_fill_(0, slots, 0)

    def move(self, sources: Tensor, targets: Tensor) -> None:
        for layer in self.slots:
            layer.stored_keys[targets] = layer.stored_keys[sources]
            layer.stored_values[targets] = layer.stored_values[sources]


class _SlotLayer(CacheLayerMixin):
    is_sliding = False

    def __init__(self, shape: LayerShape, rows: int, length: int, device: torch.device) -> None:
        super().__init__()
        self.stored_keys = torch.zeros(rows, shape.heads, length, shape.key_size, dtype=shape.dtype, device=device)
        self.stored_values = torch.zeros(rows, shape.heads, length, shape.value_size, dtype=shape.dtype, device=device)
        self.is_initialized = True
        self.place, self.decoding = torch.empty(0), False

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None: ...

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        rows, _, new, _ = key_states.shape
        if not self.decoding:
            self.stored_keys[self.place, :, :new] = key_states
            self.stored_values[self.place, :, :new] = value_states
            return key_states, value_states
        keys, values = self.stored_keys[:rows], self.stored_values[:rows]
        if kernels_available(keys.device):
            from opasd.rollout.transformers import kernels

            kernels.store(key_states, value_states, keys, values, self.place)
        else:
            every = torch.arange(rows, device=keys.device)
            keys[every, :, self.place] = key_states[:, :, 0]
            values[every, :, self.place] = value_states[:, :, 0]
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return self.stored_keys.shape[2]

    get_max_cache_shape = get_max_length  # the name before transformers 5.18


def fits(config: PreTrainedConfig) -> bool:
    """Whether every layer of the model's cache grows by one key and value a token, and does nothing else."""
    layers = DynamicCache(config=config).layers
    return len(layers) > 0 and all(type(layer) is DynamicLayer for layer in layers)


# ---- attention ------------------------------------------------------------------------------------------------------


def slots_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    scaling: float | None = None, dropout: float = 0.0, **kwargs: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """Attention of one new token a row; `attention_mask` holds each row's last position, [B, 1, 1, 1]."""
    unknown = [name for name in _UNKNOWN if kwargs.get(name) is not None]
    last = attention_mask
    if unknown or dropout or query.shape[2] != 1:
        raise SlotsError(f"attention with {', '.join(unknown) or 'dropout or several queries'}")
    if last is None or last.shape != (query.shape[0], 1, 1, 1) or last.dtype != torch.long:
        raise SlotsError("a model that changes a prepared attention mask")
    scaling = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
    if kernels_available(query.device):
        from opasd.rollout.transformers import kernels

        return kernels.attend(query, key, value, last[:, 0, 0, 0], scaling), None
    seen = torch.arange(key.shape[2], device=key.device) <= last
    grouped = query.shape[1] != key.shape[1]
    output = nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=seen, scale=scaling, enable_gqa=grouped
    )
    return output.transpose(1, 2), None


AttentionInterface.register(IMPLEMENTATION, slots_attention)


@contextmanager
def attending_to_slots(model: nn.Module) -> Iterator[None]:
    """While entered, the model's attention is `slots_attention`."""
    found = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in found if isinstance(config, PreTrainedConfig)}.values()
    before = [config._attn_implementation_internal for config in configs]
    try:
        for config in configs:
            config._attn_implementation_internal = IMPLEMENTATION
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
