"""How likely the student finds given tokens, differentiable and a few tokens at a time.

    ℓ_t = −log softmax(head(hidden_t))[y_t]

Logits [T, V] never exist: a chunk's are computed again in the backward pass. Shapes: T tokens, E hidden size, V
vocabulary.
"""

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from opasd.losses.inputs import OutputHead
from opasd.losses.numerics import without_autocast
from opasd.losses.token_chunked import default_chunk_tokens


def negative_log_likelihood(
    hidden_TE: Tensor, head: OutputHead, token_T: Tensor, *, chunk_tokens: int | None = None
) -> Tensor:
    """Return ℓ [T] of the tokens that the hidden states predict, at temperature 1."""
    chunk_tokens = chunk_tokens or default_chunk_tokens(head.weight_VE.shape[0])

    def of_chunk(hidden_CE: Tensor, token_C: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(head.logits(hidden_CE), token_C, reduction="none")

    with without_autocast():
        chunks = zip(hidden_TE.split(chunk_tokens), token_T.split(chunk_tokens), strict=True)
        return torch.cat([checkpoint(of_chunk, *chunk, use_reentrant=False) for chunk in chunks])  # pyright: ignore[reportArgumentType]
