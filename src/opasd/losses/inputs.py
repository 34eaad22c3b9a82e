"""The inputs of the losses: an attention layer's queries and keys, an output head, and one role's forward.

Shapes: B rows of a forward, H query heads, K key heads, N positions of a row, D head size; T queries and S keys of one
rollout; C tokens, E hidden size, V vocabulary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from opasd.choices import Query
from opasd.device import send
from opasd.losses.numerics import wide

Span = tuple[int, int, int]
"""(row, begin, end): a sequence fills positions begin … end − 1 of a row of the forward."""


class _Tensors:
    """A dataclass of tensors and options."""

    def detach(self) -> Self:
        """Return the same tensors without their gradients."""
        tensors = {name: value.detach() for name, value in vars(self).items() if isinstance(value, Tensor)}
        instance: Any = self
        return replace(instance, **tensors)


@dataclass(frozen=True)
class OutputHead(_Tensors):
    """How hidden states become logits: z = softcap(scale · (hidden Wᵀ + bias))."""

    weight_VE: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden_CE: Tensor) -> Tensor:
        """Return z [C, V] by its definition, in at least float32."""
        dtype = wide(hidden_CE.dtype)
        bias_V = None if self.bias_V is None else self.bias_V.to(dtype)
        return self.bend(hidden_CE.to(dtype) @ self.weight_VE.to(dtype).T, bias_V)

    def zero(self) -> Tensor:
        """Return 0, with the head in its graph: its gradient is then 0 and not none."""
        tensors = [self.weight_VE] if self.bias_V is None else [self.weight_VE, self.bias_V]
        return torch.stack([tensor[:1].sum(dtype=torch.float32) * 0 for tensor in tensors]).sum()

    def bend(self, product_CV: Tensor, bias_V: Tensor | None) -> Tensor:
        """Return logits from the products hidden Wᵀ and their bias."""
        logits_CV = (product_CV if bias_V is None else product_CV + bias_V) * self.scale
        return logits_CV if self.softcap is None else self.softcap * torch.tanh(logits_CV / self.softcap)


@dataclass(frozen=True)
class LayerAttention(_Tensors):
    """The queries and keys of one attention layer, one role and one rollout."""

    query_HTD: Tensor
    """Queries at the T query positions, after normalisation and rotary embedding."""
    key_KSD: Tensor
    """Keys at all positions of the sequence; H/K query heads share one key head."""
    scaling: float
    sliding_window: int | None = None
    """A query at position i sees keys at positions i − window + 1 … i."""
    softcap: float | None = None
    """Scores s become cap·tanh(s/cap) before the softmax."""
    sinks_H: Tensor | None = None
    """One more logit in each head's softmax that no position receives."""

    def batch(self) -> "LayerBatch":
        """Return the rollout as a forward of its own."""
        span = (0, 0, self.key_KSD.shape[1])
        options = (self.scaling, self.sliding_window, self.softcap, self.sinks_H)
        return LayerBatch(self.query_HTD[None], self.key_KSD[None], (span,), *options, only_queries=True)


@dataclass(frozen=True)
class LayerBatch(_Tensors):
    """One attention layer of a whole forward: rows of sequences, padded or packed, with any strides."""

    query_BHND: Tensor
    key_BKND: Tensor
    spans: tuple[Span, ...]
    """The span of each sequence."""
    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None
    only_queries: bool = False
    """`query_BHND` holds only the T queries of one rollout, not those of all positions."""

    def sequence(self, index: int, queries: slice | Tensor) -> LayerAttention:
        """Return the layer's attention for one sequence; `queries` count positions from the sequence's begin."""
        row, begin, end = self.spans[index]
        if self.only_queries:
            query_HTD = self.query_BHND[row]
        else:
            query_HTD = self.query_BHND[row, :, begin:end][:, _as_slice(queries)]
        options = (self.scaling, self.sliding_window, self.softcap, self.sinks_H)
        return LayerAttention(query_HTD, self.key_BKND[row, :, begin:end], *options)

    def heads(self) -> "list[LayerBatch]":
        """Return each query head, with its key head, as a layer of its own."""
        # `unbind` adds the heads' gradients up once; slices would each make a gradient of the whole.
        queries, keys = self.query_BHND.unbind(1), self.key_BKND.unbind(1)
        sinks = self.sinks_H.split(1) if self.sinks_H is not None else [None] * len(queries)
        group = len(queries) // len(keys)
        return [
            replace(self, query_BHND=query_BND[:, None], key_BKND=keys[head // group][:, None], sinks_H=sinks[head])
            for head, query_BND in enumerate(queries)
        ]


def _as_slice(position_T: slice | Tensor) -> slice | Tensor:
    """Return consecutive positions as a slice, so that indexing copies nothing."""
    if isinstance(position_T, slice):
        return position_T
    if not len(position_T):
        return slice(0, 0)
    first, last = int(position_T[0]), int(position_T[-1])
    return slice(first, last + 1) if last - first == len(position_T) - 1 else position_T


@dataclass(frozen=True)
class Scores:
    """One role's forward of one rollout."""

    hidden_TE: Tensor
    """Final hidden states at the positions that predict the rollout's tokens."""
    layers: tuple[LayerAttention, ...]
    """The captured attention layers; empty if no attention was captured."""


@dataclass(frozen=True)
class ScoreBatch:
    """One role's forward of some rollouts; `batch[i]` are the `Scores` of one of them."""

    hidden_BNE: Tensor
    layers: tuple[LayerBatch, ...]
    """They may be of another forward than the hidden states: the same rollouts after another context."""
    head: OutputHead
    """The role's output head; without a gradient if the role was scored without one."""
    spans: tuple[Span, ...]
    """The span of each rollout's sequence."""
    starts: tuple[int, ...]
    """The position of each rollout's first token in its sequence."""
    query: Query
    """Which positions' attention rows belong to a token."""

    @property
    def lengths(self) -> list[int]:
        """The number of tokens of each rollout."""
        return [end - begin - start for (_, begin, end), start in zip(self.spans, self.starts, strict=True)]

    @property
    def hidden_TE(self) -> Tensor:
        """The hidden states that predict all rollouts' tokens, one rollout after another."""
        width = self.hidden_BNE.shape[1]
        rows = [
            torch.arange(row * width + begin + start - 1, row * width + end - 1)
            for (row, begin, end), start in zip(self.spans, self.starts, strict=True)
        ]
        index_T = torch.cat(rows) if rows else torch.empty(0, dtype=torch.long)
        return self.hidden_BNE.flatten(0, 1).index_select(0, send(index_T, self.hidden_BNE.device))

    def __len__(self) -> int:
        return len(self.spans)

    def __iter__(self) -> Iterator[Scores]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> Scores:
        (row, begin, end), start = self.spans[index], self.starts[index]
        num_tokens, lag = end - begin - start, 1 if self.query == "predicting" else 0
        layers = []
        for layer in self.layers:
            _, first, last = layer.spans[index]
            stop = last - first - lag
            layers.append(layer.sequence(index, slice(stop - num_tokens, stop)))
        return Scores(self.hidden_BNE[row, begin:end][start - 1 : -1], tuple(layers))
