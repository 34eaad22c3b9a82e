"""Decode without a cache: for models that keep a state of their own (Mamba, RWKV) or a cache of their own (MiniMax).

Every token reads its whole sequence again, so T tokens cost T forwards of growing length. Sequences are padded on the
right, which a causal model does not see.
"""

import inspect
from collections.abc import Iterator, Sequence

import torch
from torch import nn
from transformers import DynamicCache

from opasd.config import SamplingConfig
from opasd.model.capture import relative_error
from opasd.model.scoring import Scorer, evaluating
from opasd.model.unwrap import model_type, unwrap
from opasd.rollout.engine import Completion, Prompts
from opasd.rollout.transformers.sampling import sample, uniform_numbers

_LIMIT = {False: 1e-3, True: 0.3}
"""Largest relative difference of logits with and without a cache; True for formats of 16 bits."""


@torch.no_grad()
def cache_obstacle(model: nn.Module) -> str:
    """Return why `decode_padded` cannot be used, or nothing; a trial with two rows, one of them padded, decides."""
    base, name = unwrap(model), model_type(model)
    if "past_key_values" not in inspect.signature(base.forward).parameters:
        return f"the {name} model keeps no key-value cache"
    prompts, cache = [[1, 0, 1, 1, 0], [0, 1]], DynamicCache(config=base.config)
    mask = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 0, 1, 1]], device=base.device)
    ids = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 0, 0, 1]], device=base.device)
    first, last = slice(0, 4), slice(4, 5)
    try:
        with evaluating(model):
            for part in (first, last):
                positions = (mask.cumsum(-1) - 1).clamp_min(0)[:, part]
                output = model(
                    input_ids=ids[:, part], attention_mask=mask[:, : part.stop], position_ids=positions,
                    past_key_values=cache, use_cache=True,
                )  # fmt: skip
            alone = [model(input_ids=torch.tensor([row], device=base.device), use_cache=False) for row in prompts]
    except (ValueError, TypeError, AttributeError, IndexError, NotImplementedError):
        return f"the {name} model takes no plain key-value cache"
    limit = _LIMIT[base.dtype.itemsize < 4]
    reasons = ("continues from its cache with other logits than without one", "sees padding on the left")
    for row, reason in enumerate(reasons):
        if relative_error(output.logits[row, -1].float(), alone[row].logits[0, -1].float()) > limit:
            return f"the {name} model {reason}"
    return ""


def decode_whole(
    model: nn.Module, prompts: Prompts, sampling: SamplingConfig, seeds: Sequence[int], stop: frozenset[int],
    max_rows: int,
) -> Iterator[tuple[int, Completion]]:  # fmt: skip
    """Yield the index of each prompt and its completion, batch by batch."""
    scorer = Scorer(model, 0)
    for start in range(0, len(prompts), max_rows):
        batch = range(start, min(start + max_rows, len(prompts)))
        uniform_TB = uniform_numbers([seeds[index] for index in batch], sampling.max_new_tokens)
        drawn: dict[int, list[int]] = {index: [] for index in batch}
        active, failed = list(batch), set[int]()
        for step in range(sampling.max_new_tokens):
            logits_BV = scorer.next_logits([[*prompts[index], *drawn[index]] for index in active])
            uniform_B = uniform_TB[step, [index - start for index in active]].to(logits_BV.device)
            tokens = sample(logits_BV, uniform_B, sampling).tolist()
            finite = logits_BV.amax(-1).isfinite().tolist()
            for index, token in zip(active, tokens, strict=True):
                drawn[index].append(token)
            failed |= {index for index, good in zip(active, finite, strict=True) if not good}
            active = [index for index in active if drawn[index][-1] not in stop and index not in failed]
            if not active:
                break
        yield from ((index, Completion.ended(drawn[index], stop, failed=index in failed)) for index in batch)
