"""A cache whose keys and values grow in place: a new token does not copy those before it.

Shapes: B rows, H heads, T positions, D head size.
"""

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer

ROOM = 128
"""A layer takes memory for this many positions more than it needs."""


class GrowingLayer(DynamicLayer):
    """Keeps keys and values as the first T positions of two buffers. Buffers that are full give way to larger ones."""

    _buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values [B, H, new T, D] and return all of them."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        stop = start + key_states.shape[-2]
        old = self._buffers
        if old is None or old[0].shape[-2] < stop:
            self._buffers = _empty(key_states, stop + ROOM), _empty(value_states, stop + ROOM)
            if start:
                self._write(0, self.keys, self.values)
        self._write(start, key_states, value_states)
        return self._show(stop)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows, in this order."""
        if self._buffers is not None:
            stop = self.get_seq_length()
            keys, values = self._buffers
            rows = beam_idx.to(keys.device)
            self._buffers = keys.index_select(0, rows), values.index_select(0, rows)
            self._show(stop)

    def _write(self, start: int, *states: Tensor | None) -> None:
        assert self._buffers is not None
        for buffer, new in zip(self._buffers, states, strict=True):
            assert new is not None
            buffer[..., start : start + new.shape[-2], :] = new

    def _show(self, stop: int) -> tuple[Tensor, Tensor]:
        assert self._buffers is not None
        keys, values = (buffer[..., :stop, :] for buffer in self._buffers)
        self.keys, self.values = keys, values
        return keys, values


def growing_cache(config: PreTrainedConfig) -> DynamicCache:
    """Return an empty cache for the model; layers with a window or a state stay as transformers makes them."""
    cache = DynamicCache(config=config)
    cache.layers = [GrowingLayer() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return cache


def _empty(like: Tensor, positions: int) -> Tensor:
    return like.new_empty(*like.shape[:-2], positions, like.shape[-1])
