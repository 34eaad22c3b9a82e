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
from typing import TYPE_CHECKING, Protocol, Self

from torch import nn

from opasd.choices import FinishReason
from opasd.config import ModelConfig, RolloutConfig, SamplingConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Prompts = Sequence[Sequence[int]]
"""Token ids of each prompt."""


@dataclass(frozen=True)
class Completion:
    """The tokens sampled after a prompt, including the token that ended the completion.

    After `error` the last token was not drawn: it is a placeholder that makes the loss look at the bad position.
    """

    ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None = None
    """Log-probabilities under the model's own distribution, at temperature 1 with every token kept; only on request."""

    @classmethod
    def ended(
        cls, ids: Sequence[int], stop: frozenset[int], *, failed: bool = False, logprobs: Sequence[float] | None = None
    ) -> Self:
        """Return a completion that failed, ended at a token of `stop`, or reached the limit."""
        reason: FinishReason = "error" if failed else "stop" if ids[-1] in stop else "length"
        return cls(tuple(ids), reason, None if logprobs is None else tuple(logprobs))


class Sampler(Protocol):
    """The least that an object must have to sample rollouts; `as_engine` adds the rest."""

    def generate(self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int]) -> list[Completion]:
        """Return one completion for each prompt, in order; `seeds` has one seed for each prompt."""
        ...


class RolloutEngine(ABC):
    """Samples completions from the student's current weights. A subclass must only define `generate`."""

    runs_student = True
    """Whether it computes with the student's own weights; an engine with a copy of them sets this to False."""
    half_precision = False
    """Whether a copy of the weights is in a 16-bit format; the drift check then allows for its rounding."""

    stops_alone = True
    """Whether one of the processes that train together may break off its sampling while the others go on."""
    runs_ahead = False
    """Whether it can sample while this process updates the weights: it has `begin`, `collect` and `abandon`."""

    @abstractmethod
    def generate(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        """Return one completion for each prompt, in order; `seeds` has one seed for each prompt.

        An engine with a copy of the weights calls `hand_over` first, and returns the log-probabilities of the first
        `measured` completions for the drift check. An engine that runs the student itself ignores `measured`.
        """

    def begin(self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0) -> None:
        """Begin to sample from the student's weights of this moment, as `generate` does, and return at once."""
        raise NotImplementedError

    def collect(self) -> list[Completion]:
        """Wait for the completions that were begun, and return them."""
        raise NotImplementedError

    def abandon(self) -> None:  # noqa: B027
        """Give up what was begun."""

    def hand_over(self) -> None:  # noqa: B027 (an engine that runs the student itself has no copy)
        """Bring the engine's copy of the weights up to date with the student."""

    def close(self) -> None:  # noqa: B027
        """Release files and memory; the engine is not used afterwards."""


class AdapterEngine(RolloutEngine):
    """An engine over one base model, with one adapter or none at a time."""

    @abstractmethod
    def use_adapter(self, path: Path | None) -> None:
        """Answer with the adapter in `path` from now on, or with the base alone."""


class EngineKind(Protocol):
    """How to make an engine that a configuration names: a class of `opasd.choices.ENGINES` with two class methods."""

    def for_training(
        self, config: RolloutConfig, model: nn.Module, tokenizer: "PreTrainedTokenizerBase", *, longest: int
    ) -> RolloutEngine:
        """Return an engine that samples from `model` with its weights at the time of each call.

        A prompt with its completion has at most `longest` tokens. Each process that trains makes its own engine.
        """
        ...

    def for_evaluation(
        self, config: RolloutConfig, model: ModelConfig, tokenizer: "PreTrainedTokenizerBase", *,
        longest: int, adapters: Sequence[Path],
    ) -> AdapterEngine:  # fmt: skip
        """Return an engine over the base `model`, for sequences of up to `longest` tokens and for these adapters."""
        ...


class _PlainEngine(RolloutEngine):
    def __init__(self, sampler: Sampler) -> None:
        self.sampler = sampler

    def generate(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        return self.sampler.generate(prompts, sampling, seeds)


def as_engine(sampler: Sampler) -> RolloutEngine:
    """Return the engine itself, or an engine around an object that can only `generate(prompts, sampling, seeds)`."""
    return sampler if isinstance(sampler, RolloutEngine) else _PlainEngine(sampler)


def derive_seed(*keys: int | str) -> int:
    """Return a seed of 63 bits for a sample, from its run seed, step, problem and number."""
    digest = hashlib.blake2b(json.dumps(keys).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
