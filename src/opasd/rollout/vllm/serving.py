"""What the vLLM engines share: a copy of the weights of their own, and how a request is put.

Before every batch the student's weights are handed over, so no caller can forget to. Adapters get a new name, id and
folder each time: vLLM answers from its caches for a name that it knows, whatever the files say by then.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from opasd.choices import FinishReason
from opasd.config import SamplingConfig
from opasd.errors import ConfigError
from opasd.rollout.engine import AdapterEngine, Completion

LOWEST_TEMPERATURE = 0.01
"""vLLM silently raises what is between 0 and this."""


class ServingEngine(AdapterEngine):
    """An engine with a copy of the weights of its own; `longest` is the most tokens of a prompt and its completion."""

    def __init__(self, stop: frozenset[int], longest: int) -> None:
        self.stop = stop
        self.longest = longest

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        assert len(prompts) == len(seeds)
        requests = [
            self._request(prompt, sampling, seed) | ({"logprobs": 0} if index < measured else {})
            for index, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True))
        ]
        self.hand_over()
        return self._complete([list(prompt) for prompt in prompts], requests)

    @abstractmethod
    def _complete(self, prompts: list[list[int]], requests: list[dict[str, Any]]) -> list[Completion]: ...

    def _completion(self, ids: Sequence[int], logprobs: Sequence[float] | None) -> Completion:
        finish: FinishReason = "stop" if ids[-1] in self.stop else "length"
        return Completion(tuple(ids), finish, None if logprobs is None else tuple(logprobs))

    def _request(self, prompt: Sequence[int], sampling: SamplingConfig, seed: int) -> dict[str, Any]:
        """Every setting that counts, in vLLM's words: what is left out would come from the model's own defaults."""
        if 0 < sampling.temperature < LOWEST_TEMPERATURE:
            raise ConfigError(
                f"temperature: got {sampling.temperature}, which vLLM would take for {LOWEST_TEMPERATURE}; use 0 for "
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
            # Exactly these end a completion, whatever vLLM makes of the model's files.
            "stop_token_ids": sorted(self.stop),
            "ignore_eos": True,
        }
