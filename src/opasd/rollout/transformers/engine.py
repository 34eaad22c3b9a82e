"""Sample rollouts from the training model itself, through transformers.

On a GPU, a model with a plain cache is decoded in slots (`decoding`); any other is decoded in padded batches
(`padded`), or without a cache if it takes none (`whole`). Adapters stay adapters: nothing is merged into the base.
"""

import logging
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opasd.config import ModelConfig, RolloutConfig, SamplingConfig
from opasd.device import short_of_memory
from opasd.model.scoring import evaluating
from opasd.model.sharding import divided
from opasd.model.unwrap import model_type, unwrap
from opasd.rollout.engine import AdapterEngine, Completion, Prompts, RolloutEngine
from opasd.rollout.stops import stop_ids
from opasd.rollout.transformers.decoding import SlotPlan, decode_in_slots
from opasd.rollout.transformers.padded import decode_padded
from opasd.rollout.transformers.slots import fits
from opasd.rollout.transformers.trial import NOT_FINITE, make_slot_plan
from opasd.rollout.transformers.whole import cache_obstacle, decode_whole

_log = logging.getLogger(__name__)


class TransformersEngine(RolloutEngine):
    """Samples from `model` with its weights at the time of the call, in at most `max_batch` rows.

    When the device runs out of memory, it continues with half the rows.
    """

    def __init__(
        self,
        model: nn.Module,
        stop: frozenset[int],
        max_batch: int = 256,
        decoding: Literal["auto", "slots", "padded"] = "auto",
    ) -> None:
        self.model = model
        self.stop = stop
        self.max_batch = max_batch
        self.decoding = decoding
        self._plans: dict[object, SlotPlan | str] = {}
        self._cache_obstacle: str | None = None

    @classmethod
    def for_training(
        cls, config: RolloutConfig, model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, longest: int
    ) -> RolloutEngine:
        return cls(model, stop_ids(model, tokenizer), config.max_batch)

    @classmethod
    def for_evaluation(
        cls, config: RolloutConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, *,
        longest: int, adapters: Sequence[Path],
    ) -> AdapterEngine:  # fmt: skip
        from opasd.rollout.transformers.swapping import SwappingEngine

        return SwappingEngine(model, tokenizer, config.max_batch)

    @torch.no_grad()
    def generate(
        self, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        assert len(prompts) == len(seeds)
        assert all(len(prompt) > 0 for prompt in prompts)
        completions: dict[int, Completion] = {}
        rows = self.max_batch
        device = unwrap(self.model).device
        with evaluating(self.model), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
            plan = self.slot_plan() if prompts else ""
            while missing := [index for index in range(len(prompts)) if index not in completions]:
                rest = [prompts[i] for i in missing], sampling, [seeds[i] for i in missing], self.stop, rows
                try:
                    if isinstance(plan, SlotPlan):
                        decoded = decode_in_slots(unwrap(self.model), plan, *rest)
                    else:
                        decode = decode_whole if self.cache_obstacle() else decode_padded
                        decoded = decode(self.model, *rest)
                    completions.update((missing[index], completion) for index, completion in decoded)
                    continue
                except RuntimeError as error:
                    if rows == 1 or not short_of_memory(error):
                        raise
                torch.cuda.empty_cache()  # cuDNN and cuBLAS cannot use memory that PyTorch only caches
                rows = -(-min(rows, len(missing)) // 2)
        return [completions[index] for index in range(len(prompts))]

    def cache_obstacle(self) -> str:
        """Return why the model is decoded without a cache, or nothing; the log says once that this is slow."""
        if self._cache_obstacle is None:
            self._cache_obstacle = cache_obstacle(self.model)
            if self._cache_obstacle:
                _log.warning("rollouts are slow: %s, so every token reads its whole sequence", self._cache_obstacle)
        return self._cache_obstacle

    def slot_plan(self) -> SlotPlan | str:
        """Return how to decode in slots, or the reason for padded batches; tried once for each form of the forward."""
        reason = self._excluded()
        if reason and self.decoding != "slots":
            return reason
        base = unwrap(self.model)
        adapters = tuple(getattr(module, "disable_adapters", None) for module in base.modules())
        key = (base.dtype, base.config._attn_implementation, adapters)
        if key not in self._plans:
            plan = make_slot_plan(base) if fits(base.config) else "its cache is not plain keys and values"
            if isinstance(plan, str):
                _log.info("%s is decoded in padded batches: %s", model_type(self.model), plan)
            if plan == NOT_FINITE:  # other weights may be finite
                return plan
            self._plans[key] = plan
        plan = self._plans[key]
        assert self.decoding != "slots" or isinstance(plan, SlotPlan), plan
        return plan

    def _excluded(self) -> str:
        """Return the reason not to try slots at all, or nothing."""
        from peft import PeftModel

        base = unwrap(self.model)
        device = base.device
        if not isinstance(self.model, PreTrainedModel | PeftModel) or base.config.is_encoder_decoder:
            return "it is wrapped, or has an encoder"
        if isinstance(self.model, PeftModel) and self.model.active_peft_config.is_prompt_learning:
            return "its adapter is a prompt"
        if divided(self.model) or any(parameter.device != device for parameter in base.parameters()):
            return "it is spread over several devices"
        if torch.is_autocast_enabled(device.type):
            return "autocast is on"
        if self.decoding == "padded" or device.type != "cuda":
            return "padded batches are wanted, or there is no GPU"
        return ""
