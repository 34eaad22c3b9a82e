"""The plugin of head.yaml: the attention loss at one head, 4.1 or 5.2 (gates.py says why these).

The run captures the head's layer alone: `objective.attention.layers: [4]` or `[5]`. The divergence is logged as
`term/head_4_1` or `term/head_5_2`.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import opasd
from opasd.losses.attention import LayerAttention, attention_loss


def divergence_at(head: int) -> Callable[[opasd.MicroBatch], Tensor]:
    """Return the term that gives each rollout's mean divergence at a head of the captured layer."""

    def term(batch: opasd.MicroBatch) -> Tensor:
        pairs = zip(batch.student, batch.teacher, batch.alignments, strict=True)
        losses = [attention_loss(alone(own.layers[0]), alone(other.layers[0]), where) for own, other, where in pairs]
        return torch.stack([one.loss for one in losses])

    def alone(layer: LayerAttention) -> LayerAttention:
        """Return the head, with its keys, as a layer of its own."""
        keys = head * len(layer.key_KSD) // len(layer.query_HTD)
        return replace(layer, query_HTD=layer.query_HTD[head : head + 1], key_KSD=layer.key_KSD[keys : keys + 1])

    return term


opasd.register_loss_term("head_4_1", divergence_at(1))
opasd.register_loss_term("head_5_2", divergence_at(2))
