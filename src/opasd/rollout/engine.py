"""What every rollout engine promises: token ids in, token ids out, each sequence drawn with a seed of its own.

A sequence's random numbers depend on its seed alone, not on what else is in the batch, so a resumed run samples what
the uninterrupted one would have.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from opasd.choices import FinishReason
from opasd.config import SamplingConfig


@dataclass(frozen=True)
class Completion:
    """What was sampled after a prompt; the token that ended it is part of it.

    After `error` the last token stands for none: it was not drawn, but makes the loss look at the bad position.
    """

    ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None = None
    """Of the model's own distribution, at temperature 1 with every token kept; only where they were asked for."""


class RolloutEngine(Protocol):
    """Samples completions from the student's current weights."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion for each prompt, in order; `seeds` belong to the prompts one by one."""
        ...


def derive_seed(*parts: int | str) -> int:
    """A seed of 63 bits from what a sample is: run seed, step, problem, number of the sample."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
