"""Rollouts with the training model itself, through transformers.

Prompts are sorted by length and generated side by side; rows that have finished leave the batch, so the last long
answers do not pay for the short ones. Adapters stay as they are: nothing is merged into the base.

Shapes: B rows, P prompt positions, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from opasd.capture import unwrap
from opasd.config import SamplingConfig
from opasd.rollout.engine import Completion
from opasd.rollout.sampling import sample

COMPACT_BELOW = 0.75
"""Finished rows leave the batch when fewer than this share of its rows are still going."""


def stop_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> frozenset[int]:
    """Every token that the model or its tokenizer declares to end a completion."""
    base = unwrap(model)
    declared: list[int] = []
    sources = [base.generation_config, base.config.get_text_config(), tokenizer]
    for value in (getattr(source, "eos_token_id", None) for source in sources if source is not None):
        declared += value if isinstance(value, list) else [value] if isinstance(value, int) else []
    return frozenset(declared)


class TransformersEngine:
    """Samples from `model` as it is at the moment of the call."""

    def __init__(self, model: nn.Module, stop: frozenset[int], max_batch: int = 256) -> None:
        self.model = model
        self.stop = stop
        self.max_batch = max_batch

    @torch.no_grad()
    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: SamplingConfig, seeds: Sequence[int]
    ) -> list[Completion]:
        """One completion for each prompt, in order."""
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]), reverse=True)
        completions: dict[int, Completion] = {}
        was_training = self.model.training
        self.model.eval()
        try:
            for start in range(0, len(order), self.max_batch):
                part = order[start : start + self.max_batch]
                found = self._batch([prompts[i] for i in part], sampling, [seeds[i] for i in part])
                completions.update(zip(part, found, strict=True))
        finally:
            self.model.train(was_training)
        return [completions[index] for index in range(len(prompts))]

    def _batch(self, prompts: list[Sequence[int]], sampling: SamplingConfig, seeds: list[int]) -> list[Completion]:
        device = unwrap(self.model).device
        limit = sampling.max_new_tokens
        ids_BP, mask_BP = _left_pad(prompts, device)
        uniform_TB = _uniform(seeds, limit).to(device)
        stop = torch.tensor(sorted(self.stop), device=device)
        cache = DynamicCache(config=unwrap(self.model).config)
        rows = torch.arange(len(prompts), device=device)
        position_B = mask_BP.sum(-1)
        inputs, positions_BP = ids_BP, (mask_BP.cumsum(-1) - 1).clamp_min(0)
        drawn: list[tuple[Tensor, Tensor]] = []
        done_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
        for step in range(limit):
            output = self.model(
                input_ids=inputs,
                attention_mask=mask_BP,
                position_ids=positions_BP,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            token_B = sample(output.logits[:, -1], uniform_TB[step, rows], sampling)
            drawn.append((rows[~done_B], token_B[~done_B]))
            done_B = done_B | torch.isin(token_B, stop)
            going = int((~done_B).sum())
            if going == 0 or step + 1 == limit:
                break
            if going < COMPACT_BELOW * len(done_B):
                keep = (~done_B).nonzero().flatten()
                cache.batch_select_indices(keep)
                rows, token_B, mask_BP, position_B = rows[keep], token_B[keep], mask_BP[keep], position_B[keep]
                done_B = done_B[keep]
            inputs, positions_BP = token_B[:, None], position_B[:, None]
            position_B = position_B + 1
            mask_BP = torch.nn.functional.pad(mask_BP, (0, 1), value=1)
        return self._collect(len(prompts), drawn)

    def _collect(self, count: int, drawn: list[tuple[Tensor, Tensor]]) -> list[Completion]:
        tokens: list[list[int]] = [[] for _ in range(count)]
        for rows, token in drawn:
            for row, value in zip(rows.tolist(), token.tolist(), strict=True):
                tokens[row].append(value)
        return [Completion(tuple(ids), "stop" if ids and ids[-1] in self.stop else "length") for ids in tokens]


def _left_pad(prompts: list[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[*(0 for _ in range(longest - len(prompt))), *prompt] for prompt in prompts], device=device)
    lengths_B1 = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    return ids, (torch.arange(longest, device=device) >= longest - lengths_B1).long()


def _uniform(seeds: Sequence[int], steps: int) -> Tensor:
    """[steps, B]: each column from a generator of its own."""
    columns = [torch.rand(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(columns, -1)
