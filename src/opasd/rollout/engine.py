"""The interface of every rollout engine: token ids in, token ids out, and a seed for each sequence.

The random numbers of a sequence depend on its seed alone and not on the rest of the batch, so a resumed run samples the
same tokens as an uninterrupted one.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from opasd.choices import FinishReason
from opasd.config import SamplingConfig


@dataclass(frozen=True)
class Completion:
    """The tokens sampled after a prompt, including the token that ended the completion.

    After `error` the last token was not drawn: it is a placeholder that makes the loss look at the bad position.
    """

    ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None = None
    """Log-probabilities under the model's own distribution, at temperature 1 with every token kept; only on request."""


class Sampler(Protocol):
    """The least that an object must have to sample rollouts; `as_engine` adds the rest."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Completion]:
        """Return one completion for each prompt, in order; `seeds` has one seed for each prompt."""
        ...


class RolloutEngine(ABC):
    """Samples completions from the student's current weights. Only `generate` must be written."""

    @abstractmethod
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        """Return one completion for each prompt, in order; `seeds` has one seed for each prompt.

        An engine with a copy of the weights calls `hand_over` first, and returns the log-probabilities of the first
        `measured` completions for the drift check. An engine that runs the student itself ignores `measured`.
        """

    def hand_over(self) -> None:  # noqa: B027 (an engine that runs the student itself has no copy)
        """Bring the engine's copy of the weights up to date with the student."""

    def close(self) -> None:  # noqa: B027
        """Release files and memory; the engine is not used afterwards."""


class AdapterEngine(RolloutEngine):
    """An engine over one base model, with one adapter or none at a time."""

    @abstractmethod
    def use_adapter(self, path: Path | None) -> None:
        """Answer with the adapter in `path` from now on, or with the base alone."""


class _PlainEngine(RolloutEngine):
    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        return self.sampler.generate(prompts, sampling, seeds)


def as_engine(sampler: Sampler) -> RolloutEngine:
    """Return the engine itself, or an engine around an object that can only `generate(prompts, sampling, seeds)`."""
    return sampler if isinstance(sampler, RolloutEngine) else _PlainEngine(sampler)


def derive_seed(*parts: int | str) -> int:
    """Return a seed of 63 bits for a sample, from its run seed, step, problem and number."""
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
