"""Decode in padded batches: any model with a cache, on any device.

Prompts are sorted by length, padded on the left and decoded side by side. Rows that have ended leave the batch, so the
last long answers do not pay for the short ones. Padding is exact in hybrid stacks too: a recurrent layer reads 0 at a
padded position, which leaves its state at 0.

Shapes: B rows, P prompt positions, T new tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from opasd.config import SamplingConfig
from opasd.model.unwrap import unwrap
from opasd.rollout.engine import Completion, Prompts
from opasd.rollout.transformers.growing import growing_cache
from opasd.rollout.transformers.sampling import sample, uniform_numbers

COMPACT_BELOW = 0.75
"""Rows that have ended leave the batch when fewer than this share of its rows still decode."""
_NO_TOKEN = -1


def decode_padded(
    model: nn.Module, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], stop: frozenset[int],
    max_rows: int,
) -> Iterator[tuple[int, Completion]]:  # fmt: skip
    """Yield the index of each prompt and its completion, batch by batch."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]), reverse=True)
    for start in range(0, len(order), max_rows):
        batch = order[start : start + max_rows]
        completions = _decode(model, [prompts[i] for i in batch], sampling, [seeds[i] for i in batch], stop)
        yield from zip(batch, completions, strict=True)


def _decode(
    model: nn.Module, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], stop: frozenset[int]
) -> list[Completion]:
    device, limit = unwrap(model).device, sampling.max_new_tokens
    ids = [torch.tensor(prompt) for prompt in prompts]
    masks = [torch.ones_like(row) for row in ids]
    ids_BP, mask_BP = (pad_sequence(rows, batch_first=True, padding_side="left").to(device) for rows in (ids, masks))
    uniform_TB = uniform_numbers(seeds, limit).to(device)
    stops = torch.tensor(sorted(stop), dtype=torch.long, device=device)
    cache = growing_cache(unwrap(model).config)
    drawn_BT = torch.full((len(prompts), limit), _NO_TOKEN, device=device)
    failed_B = torch.zeros(len(prompts), dtype=torch.bool, device=device)
    # From here on, B counts the rows still in the batch; `rows` holds their numbers.
    rows = torch.arange(len(prompts), device=device)
    done_B = torch.zeros_like(failed_B)
    inputs, positions_BP, position_B = ids_BP, (mask_BP.cumsum(-1) - 1).clamp_min(0), mask_BP.sum(-1)
    for step in range(limit):
        output = model(
            input_ids=inputs,
            attention_mask=mask_BP,
            position_ids=positions_BP,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits_BV = output.logits[:, -1]
        token_B = sample(logits_BV, uniform_TB[step, rows], sampling)
        drawn_BT[rows, step] = token_B.masked_fill(done_B, _NO_TOKEN)
        bad_B = ~logits_BV.amax(-1).isfinite() & ~done_B
        failed_B[rows] |= bad_B
        done_B = done_B | bad_B | torch.isin(token_B, stops)
        active = int((~done_B).sum())
        if active == 0 or step + 1 == limit:
            break
        if active < COMPACT_BELOW * len(done_B):
            keep = (~done_B).nonzero().flatten()
            cache.reorder_cache(keep)
            rows, token_B, mask_BP, position_B = rows[keep], token_B[keep], mask_BP[keep], position_B[keep]
            done_B = done_B[keep]
        inputs, positions_BP = token_B[:, None], position_B[:, None]
        position_B = position_B + 1
        mask_BP = nn.functional.pad(mask_BP, (0, 1), value=1)
    return [
        Completion.ended(row_T[row_T != _NO_TOKEN].tolist(), stop, failed=failed)
        for row_T, failed in zip(drawn_BT.cpu(), failed_B.tolist(), strict=True)
    ]
