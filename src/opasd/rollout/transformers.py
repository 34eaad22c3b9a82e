"""Rollouts with the training model itself, through transformers.

Prompts are sorted by length, padded on the left and generated side by side; rows that have finished leave the batch, so
the last long answers do not pay for the short ones. Padding is exact in hybrid stacks too: what a recurrent layer reads
at a padded position is 0 and leaves its state at 0. Adapters stay as they are: nothing is merged into the base.

Shapes: B rows, P prompt positions, T new tokens, V vocabulary.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedTokenizerBase

from opasd.config import SamplingConfig
from opasd.models import unwrap
from opasd.rollout.engine import Completion
from opasd.rollout.sampling import sample

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
        assert len(prompts) == len(seeds)
        assert all(len(prompt) > 0 for prompt in prompts)
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
        device, limit = unwrap(self.model).device, sampling.max_new_tokens
        ids_BP, mask_BP = _left_pad(prompts, device)
        uniform_TB = _uniform(seeds, limit).to(device)
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
            self._completion(tuple(row_T[row_T != _NOTHING].tolist()), failed)
            for row_T, failed in zip(drawn_BT.cpu(), failed_B.tolist(), strict=True)
        ]

    def _completion(self, ids: tuple[int, ...], failed: bool) -> Completion:
        return Completion(ids, "error" if failed else "stop" if ids[-1] in self.stop else "length")


def _left_pad(prompts: list[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, prompts))
    ids = torch.tensor([[*(0 for _ in range(longest - len(prompt))), *prompt] for prompt in prompts], device=device)
    lengths_B1 = torch.tensor([[len(prompt)] for prompt in prompts], device=device)
    return ids, (torch.arange(longest, device=device) >= longest - lengths_B1).long()


def _uniform(seeds: Sequence[int], steps: int) -> Tensor:
    """[steps, B]: each column from a generator of its own."""
    columns = [torch.rand(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(columns, -1)
