"""Draw one token for each row, from its logits and one uniform number.

Sampling applies the temperature, then top-k, top-p and min-p to the tokens that are left, as transformers does (vLLM
applies min-p before top-p). It then inverts the cumulative distribution at the uniform number, over tokens from the
likeliest down.

Shapes: B rows, V vocabulary, K tokens kept.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from opasd.config import SamplingConfig


def uniform_numbers(seeds: Sequence[int], steps: int) -> Tensor:
    """Return numbers in [0, 1) of shape [steps, B]; each column comes from a generator with its own seed."""
    columns = [torch.rand(steps, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    return torch.stack(columns, -1)


def sample(logits_BV: Tensor, uniform_B: Tensor, sampling: SamplingConfig) -> Tensor:
    """Return token ids [B]; equal logits and uniform numbers give equal tokens, whatever else is in the batch.

    A row with NaN or +inf has no distribution: its token is arbitrary, and the caller must discard it.
    """
    if sampling.temperature == 0:
        return logits_BV.argmax(-1)
    probability_BK, token_BK = kept_tokens(logits_BV, sampling)
    cumulative_BK = probability_BK.cumsum(-1)
    threshold_B1 = uniform_B.to(cumulative_BK)[:, None] * cumulative_BK[:, -1:]
    choice_B1 = torch.searchsorted(cumulative_BK, threshold_B1, right=True)
    # Rounding may put the threshold on the total, past the last token that can be drawn.
    last_B1 = ((probability_BK > 0).sum(-1, keepdim=True) - 1).clamp_min(0)
    return token_BK.gather(-1, torch.minimum(choice_B1, last_B1))[:, 0]


def kept_tokens(logits_BV: Tensor, sampling: SamplingConfig) -> tuple[Tensor, Tensor]:
    """Return probabilities [B, K], which are 0 for dropped tokens, and token ids [B, K], likeliest first."""
    count = min(sampling.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
    logits_BK, token_BK = logits_BV.topk(count, -1)
    probability_BK = (logits_BK.float() / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        before_BK = probability_BK.cumsum(-1) - probability_BK
        outside_BK = before_BK >= sampling.top_p
        outside_BK[:, 0] = False  # the likeliest token stays, whatever its probability
        probability_BK = probability_BK.masked_fill(outside_BK, 0)
    if sampling.min_p > 0:
        probability_BK = probability_BK.masked_fill(probability_BK < sampling.min_p * probability_BK[:, :1], 0)
    return probability_BK, token_BK
