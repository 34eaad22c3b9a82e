"""Rollouts with the training model itself, through transformers.

On a GPU a model with a plain cache is decoded in slots (see `decoding`). Otherwise prompts are sorted by length, padded
on the left and generated side by side; rows that have finished leave the batch, so the last long answers do not pay for
the short ones. Padding is exact in hybrid stacks too: what a recurrent layer reads at a padded position is 0 and leaves
its state at 0. Adapters stay as they are: nothing is merged into the base.

Shapes: B rows, P prompt positions, T new tokens, V vocabulary.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import DynamicCache, PreTrainedModel, PreTrainedTokenizerBase

from opasd.config import SamplingConfig
from opasd.device import short_of_memory
from opasd.errors import ConfigError
from opasd.model.unwrap import model_type, unwrap
from opasd.rollout.engine import Completion, RolloutEngine
from opasd.rollout.transformers.decoding import NOT_FINITE, Plan, completion, decode, make_plan, uniform_numbers
from opasd.rollout.transformers.sampling import sample
from opasd.rollout.transformers.slots import fits

_log = logging.getLogger(__name__)

COMPACT_BELOW = 0.75
"""Finished rows leave the batch when fewer than this share of its rows are still going."""
_NOTHING = -1
"""Stands where a row has no token."""


def stop_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> frozenset[int]:
    """Every token that the model or its tokenizer declares to end a completion."""
    base = unwrap(model)
    sources = [base.generation_config, base.config.get_text_config(), tokenizer]
    declared = [getattr(source, "eos_token_id", None) for source in sources]
    several = [value if isinstance(value, list | tuple) else [value] for value in declared]
    return frozenset(token for tokens in several for token in tokens if token is not None)


class TransformersEngine(RolloutEngine):
    """Samples from `model` as it is at the moment of the call, in at most `max_batch` rows; memory may allow fewer."""

    def __init__(
        self,
        model: nn.Module,
        stop: frozenset[int],
        max_batch: int = 256,
        decoding: Literal["auto", "slots", "padded"] = "auto",
    ) -> None:
        if "past_key_values" not in signature(unwrap(model).forward).parameters:
            raise ConfigError(
                f"{model_type(model)} keeps no key-value cache, so the transformers engine cannot sample from it; use "
                "a model with attention layers, or another rollout.engine"
            )
        self.model = model
        self.stop = stop
        self.max_batch = max_batch
        self.decoding = decoding
        self._plans: dict[object, Plan | str] = {}

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int], *, measured: int = 0
    ) -> list[Completion]:
        assert len(prompts) == len(seeds)
        assert all(len(prompt) > 0 for prompt in prompts)
        completions: dict[int, Completion] = {}
        rows = self.max_batch
        was_training, device = self.model.training, unwrap(self.model).device
        self.model.eval()
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                plan = self._plan() if prompts else ""
                while missing := [index for index in range(len(prompts)) if index not in completions]:
                    asked, drawn = [prompts[i] for i in missing], [seeds[i] for i in missing]
                    try:
                        if isinstance(plan, Plan):
                            found = decode(unwrap(self.model), plan, asked, sampling, drawn, self.stop, rows)
                        else:
                            found = self._batches(asked, sampling, drawn, rows)
                        completions.update((missing[place], completion) for place, completion in found)
                    except RuntimeError as error:
                        if rows == 1 or not short_of_memory(error):
                            raise
                    else:
                        continue
                    torch.cuda.empty_cache()  # what PyTorch only caches is no memory to cuDNN and cuBLAS
                    rows = -(-min(rows, len(missing)) // 2)
        finally:
            self.model.train(was_training)
        return [completions[index] for index in range(len(prompts))]

    def _plan(self) -> Plan | str:
        """How to decode in slots, or why not; found out once for each way the model's forward can go."""
        reason = self._outside()
        if reason and self.decoding != "slots":
            return reason
        base = unwrap(self.model)
        state = tuple(getattr(module, "disable_adapters", None) for module in base.modules())
        key = (base.dtype, base.config._attn_implementation, state)
        if key not in self._plans:
            plan = make_plan(base) if fits(base.config) else "its cache is not plain keys and values"
            if isinstance(plan, str):
                _log.info("%s is decoded in padded batches: %s", model_type(self.model), plan)
            if plan == NOT_FINITE:  # that is these weights' fault
                return plan
            self._plans[key] = plan
        plan = self._plans[key]
        assert self.decoding != "slots" or isinstance(plan, Plan), plan
        return plan

    def _outside(self) -> str:
        """Why slots are not even tried, if they are not."""
        from peft import PeftModel

        base = unwrap(self.model)
        device = base.device
        if not isinstance(self.model, PreTrainedModel | PeftModel) or base.config.is_encoder_decoder:
            return "it is wrapped, or has an encoder"
        if isinstance(self.model, PeftModel) and self.model.active_peft_config.is_prompt_learning:
            return "its adapter is a prompt"
        if any(parameter.device != device or isinstance(parameter, DTensor) for parameter in base.parameters()):
            return "it is spread over several devices"
        if torch.is_autocast_enabled(device.type):
            return "autocast is on"
        if self.decoding == "padded" or device.type != "cuda":
            return "padded batches are wanted, or there is no GPU"
        return ""

    def _batches(
        self, prompts: list[Sequence[int]], sampling: SamplingConfig, seeds: list[int], rows: int
    ) -> Iterator[tuple[int, Completion]]:
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]), reverse=True)
        for start in range(0, len(order), rows):
            part = order[start : start + rows]
            found = self._batch([prompts[i] for i in part], sampling, [seeds[i] for i in part])
            yield from zip(part, found, strict=True)

    def _batch(self, prompts: list[Sequence[int]], sampling: SamplingConfig, seeds: list[int]) -> list[Completion]:
        device, limit = unwrap(self.model).device, sampling.max_new_tokens
        ids_BP, mask_BP = _left_pad(prompts, device)
        uniform_TB = uniform_numbers(seeds, limit).to(device)
        stop = torch.tensor(sorted(self.stop), dtype=torch.long, device=device)
        cache = DynamicCache(config=unwrap(self.model).config)
        drawn_BT = torch.full((len(prompts), limit), _NOTHING, device=device)
        failed_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        # From here on B are the rows still in the batch, and `rows` says which they are.
        rows = torch.arange(len(prompts), device=device)
        done_B = torch.zeros_like(failed_B)
        inputs, positions_BP, position_B = ids_BP, (mask_BP.cumsum(-1) - 1).clamp_min(0), mask_BP.sum(-1)
        for step in range(limit):
            output = self.model(
                input_ids=inputs,
                attention_mask=mask_BP,
                position_ids=positions_BP,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            logits_BV = output.logits[:, -1]
            token_B = sample(logits_BV, uniform_TB[step, rows], sampling)
            drawn_BT[rows, step] = token_B.masked_fill(done_B, _NOTHING)
            bad_B = ~logits_BV.amax(-1).isfinite() & ~done_B
            failed_B[rows] |= bad_B
            done_B = done_B | bad_B | torch.isin(token_B, stop)
            going = int((~done_B).sum())
            if going == 0 or step + 1 == limit:
                break
            if going < COMPACT_BELOW * len(done_B):
                keep = (~done_B).nonzero().flatten()
                cache.reorder_cache(keep)
                rows, token_B, mask_BP, position_B = rows[keep], token_B[keep], mask_BP[keep], position_B[keep]
                done_B = done_B[keep]
            inputs, positions_BP = token_B[:, None], position_B[:, None]
            position_B = position_B + 1
            mask_BP = torch.nn.functional.pad(mask_BP, (0, 1), value=1)
        return [
            completion(tuple(row_T[row_T != _NOTHING].tolist()), failed, self.stop)
            for row_T, failed in zip(drawn_BT.cpu(), failed_B.tolist(), strict=True)
        ]


def _left_pad(prompts: list[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[*(0 for _ in range(longest - len(prompt))), *prompt] for prompt in prompts], device=device)
    lengths_B1 = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    return ids, (torch.arange(longest, device=device) >= longest - lengths_B1).long()
