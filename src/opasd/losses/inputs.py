"""The inputs of the losses: an attention layer's queries and keys, and an output head.

Shapes: B rows of a forward, H query heads, K key heads, N positions of a row, D head size; T queries and S keys of one
rollout; C tokens, E hidden size, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from opasd.losses.precision import wide

Span = tuple[int, int, int]
"""(row, begin, end): a sequence fills positions begin … end − 1 of a row of the forward."""


@dataclass(frozen=True)
class OutputHead:
    """How hidden states become logits: z = softcap(scale · (hidden Wᵀ + bias))."""

    weight_VE: Tensor
    bias_V: Tensor | None = None
    scale: float = 1.0
    softcap: float | None = None

    def detach(self) -> Self:
        bias_V = None if self.bias_V is None else self.bias_V.detach()
        return replace(self, weight_VE=self.weight_VE.detach(), bias_V=bias_V)

    def logits(self, hidden_CE: Tensor) -> Tensor:
        """The definition of z [C, V], in at least float32."""
        dtype = wide(hidden_CE.dtype)
        logits_CV = hidden_CE.to(dtype) @ self.weight_VE.to(dtype).T
        if self.bias_V is not None:
            logits_CV = logits_CV + self.bias_V.to(dtype)
        logits_CV = logits_CV * self.scale
        return logits_CV if self.softcap is None else self.softcap * torch.tanh(logits_CV / self.softcap)


@dataclass(frozen=True)
class LayerAttention:
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

    def detach(self) -> Self:
        sinks_H = None if self.sinks_H is None else self.sinks_H.detach()
        return replace(self, query_HTD=self.query_HTD.detach(), key_KSD=self.key_KSD.detach(), sinks_H=sinks_H)

    def batch(self) -> "LayerBatch":
        """The same rollout as a forward of its own."""
        span = (0, 0, self.key_KSD.shape[1])
        options = (self.scaling, self.sliding_window, self.softcap, self.sinks_H)
        return LayerBatch(self.query_HTD[None], self.key_KSD[None], (span,), *options, only_queries=True)


@dataclass(frozen=True)
class LayerBatch:
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

    def detach(self) -> Self:
        sinks_H = None if self.sinks_H is None else self.sinks_H.detach()
        return replace(self, query_BHND=self.query_BHND.detach(), key_BKND=self.key_BKND.detach(), sinks_H=sinks_H)

    def sequence(self, index: int, queries: slice | Tensor) -> LayerAttention:
        """The layer's attention for one sequence; `queries` are positions counted from the sequence's begin."""
        row, begin, end = self.spans[index]
        if self.only_queries:
            query_HTD = self.query_BHND[row]
        else:
            query_HTD = self.query_BHND[row, :, begin:end][:, _as_slice(queries)]
        options = (self.scaling, self.sliding_window, self.softcap, self.sinks_H)
        return LayerAttention(query_HTD, self.key_BKND[row, :, begin:end], *options)


def _as_slice(position_T: slice | Tensor) -> slice | Tensor:
    """Positions as a slice if they are consecutive, so that indexing copies nothing."""
    if isinstance(position_T, slice):
        return position_T
    if not len(position_T):
        return slice(0, 0)
    first, last = int(position_T[0]), int(position_T[-1])
    return slice(first, last + 1) if last - first == len(position_T) - 1 else position_T
