"""What the attention loss reads of a captured layer: one rollout's queries and keys, or a whole forward's.

Shapes: B rows of a forward, H query heads, K key heads, N positions of a row, D head size; of one rollout T queries
and S keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from torch import Tensor

from opasd.prompts.alignment import Alignment


@dataclass(frozen=True)
class LayerAttention:
    """What one attention layer of one role needs to give its attention rows for one rollout."""

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
        place = (0, 0, self.key_KSD.shape[1])
        rest = (self.scaling, self.sliding_window, self.softcap, self.sinks_H)
        return LayerBatch(self.query_HTD[None], self.key_KSD[None], (place,), *rest, only_queries=True)


@dataclass(frozen=True)
class LayerBatch:
    """One attention layer of a whole forward: rows of sequences, padded or packed, whatever their strides."""

    query_BHND: Tensor
    key_BKND: Tensor
    places: tuple[tuple[int, int, int], ...]
    """Sequence i stands at positions begin … end − 1 of a row: (row, begin, end)."""
    scaling: float
    sliding_window: int | None = None
    softcap: float | None = None
    sinks_H: Tensor | None = None
    only_queries: bool = False
    """`query_BHND` holds the queries of one rollout alone and not those at all positions."""

    def detach(self) -> Self:
        sinks_H = None if self.sinks_H is None else self.sinks_H.detach()
        return replace(self, query_BHND=self.query_BHND.detach(), key_BKND=self.key_BKND.detach(), sinks_H=sinks_H)

    def sequence(self, index: int, queries: slice | Tensor) -> LayerAttention:
        """The layer's attention for one sequence; `queries` are positions counted from its begin."""
        row, begin, end = self.places[index]
        query_HTD = self.query_BHND[row] if self.only_queries else self.query_BHND[row, :, begin:end][:, queries]
        rest = (self.scaling, self.sliding_window, self.softcap, self.sinks_H)
        return LayerAttention(query_HTD, self.key_BKND[row, :, begin:end], *rest)


def rollout_layers(
    student: LayerBatch, teacher: LayerBatch, alignments: Sequence[Alignment]
) -> list[tuple[LayerAttention, LayerAttention]]:
    """Each rollout's two layers, at the queries its alignment names."""
    return [
        (
            student.sequence(index, queries_of(alignment.student_query)),
            teacher.sequence(index, queries_of(alignment.teacher_query)),
        )
        for index, alignment in enumerate(alignments)
    ]


def queries_of(position_T: Tensor) -> slice | Tensor:
    """Positions as a slice where they are consecutive, so that taking them copies nothing."""
    if not len(position_T):
        return slice(0, 0)
    first, last = int(position_T[0]), int(position_T[-1])
    return slice(first, last + 1) if last - first == len(position_T) - 1 else position_T
