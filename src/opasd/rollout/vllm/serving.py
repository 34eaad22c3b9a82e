"""What both vLLM engines share: the base model they serve, the form of a request, and a copy of the weights.

The student's weights are handed over before every batch, so no caller can forget it. Each adapter gets a new name, id
and folder, because vLLM answers from its caches for a name that it knows, even if the files have changed.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.errors import ConfigError
from opasd.model.checks import context
from opasd.model.loading import model_source
from opasd.model.unwrap import unwrap
from opasd.rollout.engine import AdapterEngine, Completion, Prompts
from opasd.rollout.stops import stop_ids, stop_ids_of_files

HALF_PRECISION = ("bfloat16", "float16")
LOWEST_TEMPERATURE = 0.01
"""vLLM silently raises a temperature between 0 and this to this."""


@dataclass(frozen=True)
class ServedBase:
    """The base model that vLLM serves."""

    source: str
    """Folder or hub name; empty for a model that was not loaded from one."""
    config: PreTrainedConfig
    stop: frozenset[int]
    loading: dict[str, Any]
    """Arguments that load the same model again."""

    @classmethod
    def of_student(cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase, engine: str) -> Self:
        """Describe the base of a model that is loaded; `engine` is named in the error about a quantized one."""
        base = unwrap(model)
        if getattr(base.config, "quantization_config", None) is not None:
            raise ConfigError(
                f"rollout.engine: {engine} samples from the whole base, but the student's is quantized; use "
                "model.adaptation: lora or full, or rollout.engine: transformers"
            )
        loading = {
            "revision": getattr(base.config, "_commit_hash", None),
            "trust_remote_code": type(base).__module__.startswith("transformers_modules"),
        }
        return cls(base.name_or_path or "", base.config, stop_ids(model, tokenizer), loading)

    @classmethod
    def of_files(cls, model: ModelConfig, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Describe a base that is not loaded here."""
        source = model_source(model)
        loading = {"revision": model.revision, "trust_remote_code": model.trust_remote_code}
        config = AutoConfig.from_pretrained(source, **loading)
        return cls(source, config, stop_ids_of_files(source, config, tokenizer, model.revision), loading)


class ServingEngine(AdapterEngine):
    """An engine with a copy of the weights.

    A prompt with its completion has at most `longest` tokens, or `rollout.max_model_len` if that is set.
    """

    runs_student = False

    def __init__(self, config: RolloutConfig, base: ServedBase, longest: int) -> None:
        self.config = config
        self.stop = base.stop
        self.longest = min(longest, context(base.config)) if config.max_model_len is None else config.max_model_len

    def generate(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        requests = self.requests(prompts, sampling, seeds, measured)
        self.hand_over()
        return self._complete([list(prompt) for prompt in prompts], requests)

    def requests(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], measured: int
    ) -> list[dict[str, Any]]:
        """Return the requests of a batch; the first `measured` ask for log-probabilities."""
        return [
            self.request(prompt, sampling, seed) | ({"logprobs": 0} if index < measured else {})
            for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]

    @abstractmethod
    def _complete(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]:
        """Return one completion for each prompt, in order."""

    def request(self, prompt: Sequence[int], sampling: SamplingConfig, seed: int) -> dict[str, Any]:
        """Return every sampling setting in vLLM's words; a setting left out would come from the model's defaults."""
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            raise ConfigError(
                f"temperature: got {sampling.temperature}, which vLLM would raise to {LOWEST_TEMPERATURE}; use 0 for "
                "the likeliest token"
            )
        room = self.longest - len(prompt)
        if not prompt or room < 1:
            raise ConfigError(
                f"a prompt of {len(prompt)} tokens leaves no room for a completion within {self.longest} tokens; "
                "set a larger rollout.max_model_len or a smaller prompts.max_student_tokens"
            )
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "max_tokens": min(sampling.max_new_tokens, room),
            "seed": seed,
            # Exactly these tokens end a completion, whatever vLLM reads from the model's files.
            "stop_token_ids": sorted(self.stop),
            "ignore_eos": True,
        }
