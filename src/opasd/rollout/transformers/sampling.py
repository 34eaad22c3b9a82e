"""One token for each row, from logits and one uniform number a row.

temperature, then top-k, top-p and min-p on what is left, as in transformers (vLLM takes min-p before top-p); then the
inverse of the cumulative distribution at the uniform number, over tokens from the likeliest down.

Shapes: B rows, V vocabulary, K tokens kept.
"""

import torch
from torch import Tensor

from opasd.config import SamplingConfig


def sample(logits_BV: Tensor, uniform_B: Tensor, sampling: SamplingConfig) -> Tensor:
    """Token ids [B]; the same logits and uniform numbers in [0, 1) give the same tokens, whatever the batch.

    A row with NaN or +inf has no distribution: its token is some id, and the caller's to discard.
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
    """Probabilities [B, K], 0 where a token is not kept, and token ids [B, K], likeliest first."""
    kept = min(sampling.top_k or logits_BV.shape[-1], logits_BV.shape[-1])
    logits_BK, token_BK = logits_BV.topk(kept, -1)
    probability_BK = (logits_BK.float() / sampling.temperature).softmax(-1)
    if sampling.top_p < 1:
        before_BK = probability_BK.cumsum(-1) - probability_BK
        # The likeliest token is kept whatever its probability.
        outside_BK = before_BK >= sampling.top_p
        outside_BK[:, 0] = False
        probability_BK = probability_BK.masked_fill(outside_BK, 0)
    if sampling.min_p > 0:
        probability_BK = probability_BK.masked_fill(probability_BK < sampling.min_p * probability_BK[:, :1], 0)
    return probability_BK, token_BK
