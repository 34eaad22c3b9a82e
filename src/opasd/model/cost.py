"""An explained estimate of a step's floating-point operations.

A forward of one token through N parameters is 2N operations, plus 4·L·h·d for each position it attends to (L layers, h
heads of size d: scores and values). A backward through weights that are not trained is one forward's worth (the
gradient to activations), through trained ones two; recomputation under gradient checkpointing is one more.

    rollout    every prompt and generated token, forward
    teacher    every token of its sequences, forward
    student    every token of its sequences, forward
    update     the student's backward

All experts of a mixture count, and every layer as full attention: for such models the estimate is an upper bound.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from torch import nn

from opasd.model.unwrap import unwrap


@dataclass(frozen=True)
class CostModel:
    """What a token costs in a model."""

    parameters: int
    attention: int
    """Operations for each position that a token attends to."""
    backward: float
    """Cost of a backward in forwards."""

    @classmethod
    def of(cls, model: nn.Module, *, checkpointing: bool) -> "CostModel":
        base = unwrap(model)
        config = base.config.get_text_config()
        heads = getattr(config, "num_attention_heads", None) or 0  # a recurrent model has none
        head_size = config.hidden_size // max(1, heads)
        with suppress(AttributeError, RuntimeError):  # none, or another one for each layer
            head_size = config.head_dim or head_size
        # Looking a token up costs nothing; a tied table is paid for as the output head.
        tied = bool(getattr(base.config, "tie_word_embeddings", False))
        embeddings = 0 if tied else sum(p.numel() for p in base.get_input_embeddings().parameters())
        counts = [(p.numel(), p.requires_grad) for p in model.parameters()]
        trained = sum(count for count, requires_grad in counts if requires_grad)
        total = sum(count for count, _ in counts)
        return cls(
            total - embeddings,
            4 * config.num_hidden_layers * heads * head_size,
            1 + trained / total + checkpointing,
        )

    def forward(self, lengths: Iterable[int]) -> float:
        """Return the operations of a forward over sequences of these lengths."""
        return float(sum(2 * self.parameters * n + self.attention * n * (n + 1) / 2 for n in lengths))

    def step(self, student: list[int], teacher: list[int]) -> dict[str, float]:
        """Return the operations of a step over sequences of these lengths in the two roles."""
        forward = self.forward(student)
        return {
            "rollout": forward,
            "teacher": self.forward(teacher),
            "student": forward,
            "update": forward * self.backward,
        }
