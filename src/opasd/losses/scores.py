"""What one role says of rollouts: the hidden states that predict their tokens, its attention and its output head.

Shapes: B rows of a forward, N positions of a row, T tokens of a rollout, E hidden size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch
from torch import Tensor

from opasd.choices import Query
from opasd.device import send
from opasd.losses.inputs import LayerAttention, LayerBatch, OutputHead, Span


@dataclass(frozen=True)
class Scores:
    """What one role says of one rollout."""

    hidden_TE: Tensor
    """Final hidden states at the positions that predict the rollout's tokens."""
    layers: tuple[LayerAttention, ...]
    """The captured attention layers; empty if no attention was captured."""


@dataclass(frozen=True)
class ScoreBatch(Sequence[Scores]):
    """What one role says of the rollouts of one forward: a sequence of `Scores`, and all of them at once."""

    hidden_BNE: Tensor
    layers: tuple[LayerBatch, ...]
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

    @overload
    def __getitem__(self, index: int) -> Scores: ...
    @overload
    def __getitem__(self, index: slice) -> list[Scores]: ...
    def __getitem__(self, index: int | slice) -> Scores | list[Scores]:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        index = range(len(self))[index]
        (row, begin, end), start = self.spans[index], self.starts[index]
        predicting = slice(start - 1, end - begin - 1)
        queries = predicting if self.query == "predicting" else slice(start, end - begin)
        layers = tuple(layer.sequence(index, queries) for layer in self.layers)
        return Scores(self.hidden_BNE[row, begin:end][predicting], layers)
