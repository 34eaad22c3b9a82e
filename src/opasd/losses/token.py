"""The token loss: the student's next-token distribution against the teacher's, over the full vocabulary.

    z   = head(hidden),   log p = log_softmax(z / temperature)
    D_t = Σ_v f_v,        f the terms of the divergence of p_T and p_S
    ℓ_t = D_t  |  min(D_t, c) (per_token)  |  Σ_v min(f_v, c) (pointwise)  |  the same, 0 where ⟨g_clip, g⟩ < 0 (masked)

With `top_k`, the teacher's k likeliest tokens are compared one by one and all others as a single event: a divergence
between two proper distributions, never larger than the full one, and equal to it at k = V − 1 or more.

`reference` is that definition. `chunked` (`token_chunked.py`) gives the same numbers and gradients, a few tokens at a
time: logits [T, V] never exist. It forms the gradient to the hidden states while a chunk's logits are there, with three
matrix products instead of five. With u_v = df_v / d log p_S(v), 0 where clipped:  dz = (u − p_S Σ_v u_v) / temperature.
`fused` (`fused/token.py`) does the same on a CUDA device with one kernel between the matrix products.

Memory beside the gradients ([T, E], and [V, E] if the head is trained): `chunked` needs WORKSPACE_BUFFERS · C · V
float32 numbers, by default at most WORKSPACE_BYTES; `fused` two buffers [C, V] in the hidden states' own precision,
three with `top_k`, by default 1 GiB with the hidden states' gradient if that leaves a quarter.

Shapes: T tokens, E hidden size, V vocabulary; C tokens of a chunk.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from opasd.choices import Clip, Impl, check_choice, check_positive
from opasd.losses import fused
from opasd.losses.divergence import LOG_FLOOR, entropy, formulas_of
from opasd.losses.inputs import OutputHead
from opasd.losses.numerics import relative_weights, weighted_loss, wide, without_autocast
from opasd.losses.token_chunked import (
    TokenComparison,
    TokenGradients,
    TokenRole,
    compare_chunk,
    default_chunk_tokens,
    head_logits,
)

__all__ = ["OutputHead", "TokenLossOutput", "entropies", "log_probabilities", "token_loss"]


class TokenLossOutput(NamedTuple):
    """`loss` = Σ_t weight_t ℓ_t, differentiable; the rest are per-token readings without gradient."""

    loss: Tensor
    loss_T: Tensor
    """ℓ_t, after clipping."""
    divergence_T: Tensor
    """D_t, before clipping."""
    clipped_T: Tensor
    """The clipped share of what can be clipped: 0 or 1 per token, or the share of vocabulary entries."""
    student_entropy_T: Tensor
    """Entropy of the student's distribution at the loss's temperature, in nats."""
    reversed_T: Tensor
    """1 where point-wise clipping turns the gradient to the logits against the unclipped one: ⟨g_clip, g⟩ < 0. With
    `top_k`, the logits are those of the events that are compared."""
    clip_inner_T: Tensor | None = None
    """⟨g_clip, g⟩, of logits over the temperature; 0 without clipping, None from the kernels."""
    gradient_square_T: Tensor | None = None
    """|g|², likewise."""


def token_loss(
    student_hidden_TE: Tensor,
    student_head: OutputHead,
    teacher_hidden_TE: Tensor,
    teacher_head: OutputHead,
    *,
    divergence: str = "forward_kl",
    jsd_beta: float = 0.5,
    temperature: float = 1.0,
    clip: Clip = "none",
    clip_threshold: float = 0.05,
    top_k: int | None = None,
    weights_T: Tensor | None = None,
    impl: Impl = "auto",
    chunk_tokens: int | None = None,
) -> TokenLossOutput:
    """Return the token loss of the hidden states that predict T tokens; `weights_T` defaults to 1/T, their mean."""
    comparison = TokenComparison(formulas_of(divergence), jsd_beta, temperature, clip, clip_threshold, top_k)
    check_choice("impl", impl, Impl)
    check_positive("chunk_tokens", chunk_tokens, whole=True, optional=True)
    if top_k is not None and top_k >= student_head.weight_VE.shape[0] - 1:  # all entries are compared one by one
        comparison = replace(comparison, top_k=None)
    num_tokens, device, dtype = len(student_hidden_TE), student_hidden_TE.device, wide(student_hidden_TE.dtype)
    if weights_T is None:
        weights_T = torch.full((num_tokens,), 1 / max(num_tokens, 1), dtype=dtype, device=device)
    weights_T = weights_T.to(device, dtype)
    student = TokenRole(student_hidden_TE, student_head)
    teacher = TokenRole(teacher_hidden_TE.detach(), teacher_head.detach())
    with without_autocast():
        if impl == "reference":
            return _reference(student, teacher, comparison, weights_T)
        vocabulary = student_head.weight_VE.shape[0]
        compare, gradient_dtype, width = compare_chunk, dtype, 7
        if fused.chosen("token", impl, student_hidden_TE, comparison.formulas, _obstacle(student, teacher, clip)):
            from opasd.losses.fused import token as kernels

            compare, gradient_dtype, width = kernels.compare_chunk, student_hidden_TE.dtype, 5
            chunk_tokens = chunk_tokens or kernels.default_chunk_tokens(student_hidden_TE, vocabulary, comparison.top_k)
        chunk_tokens = chunk_tokens or default_chunk_tokens(vocabulary)
        gradients = TokenGradients.empty(student, gradient_dtype)
        needs_grad = any(gradient is not None for gradient in gradients)
        relative_T, unit = relative_weights(weights_T)
        readings_TR = torch.empty(num_tokens, width, dtype=dtype, device=device)
        with torch.no_grad():
            for start in range(0, num_tokens, chunk_tokens):
                rows = slice(start, start + chunk_tokens)
                chunk = student.rows(rows)
                readings_TR[rows], grad_CV = compare(chunk, teacher.rows(rows), comparison, needs_grad)
                if grad_CV is not None:
                    factor_C = comparison.factor(relative_T[rows], readings_TR[rows])
                    gradients.add(rows, chunk, grad_CV, factor_C[:, None])
                del grad_CV  # before the next chunk allocates its own
            factor_T = comparison.factor(weights_T, readings_TR)
        inputs = (student_hidden_TE, student_head.weight_VE, student_head.bias_V)
        loss = weighted_loss(weights_T, readings_TR[:, 0], inputs, gradients, (factor_T[:, None], unit, unit))
        return TokenLossOutput(loss, *readings_TR.unbind(-1))


def log_probabilities(
    hidden_TE: Tensor, head: OutputHead, token_T: Tensor, *, chunk_tokens: int | None = None
) -> Tensor:
    """Return log p of the T tokens that the hidden states predict, at temperature 1; chunks as in the loss."""

    def of(logits_CV: Tensor, rows: slice) -> Tensor:
        return logits_CV.gather(-1, token_T[rows, None])[:, 0] - logits_CV.logsumexp(-1)

    return _by_chunks(of, hidden_TE, head, chunk_tokens)


def entropies(
    hidden_TE: Tensor, head: OutputHead, *, temperature: float = 1.0, chunk_tokens: int | None = None
) -> Tensor:
    """Return the entropy of the next-token distributions, in nats [T]; chunks as in the loss."""

    def of(logits_CV: Tensor, _rows: slice) -> Tensor:
        return entropy(logits_CV.div_(temperature).softmax(-1))

    return _by_chunks(of, hidden_TE, head, chunk_tokens)


@torch.no_grad()
def _by_chunks(
    of: Callable[[Tensor, slice], Tensor], hidden_TE: Tensor, head: OutputHead, chunk_tokens: int | None
) -> Tensor:
    """Return a number of each token [T], computed from the logits of a chunk of them, which `of` may overwrite."""
    chunk_tokens = chunk_tokens or default_chunk_tokens(head.weight_VE.shape[0])
    value_T = torch.empty(hidden_TE.shape[0], dtype=wide(hidden_TE.dtype), device=hidden_TE.device)
    with without_autocast():
        for start in range(0, hidden_TE.shape[0], chunk_tokens):
            rows = slice(start, start + chunk_tokens)
            value_T[rows] = of(head_logits(hidden_TE[rows], head), rows)
    return value_T


def _reference(
    student: TokenRole, teacher: TokenRole, comparison: TokenComparison, weights_T: Tensor
) -> TokenLossOutput:
    """Return the loss by its definition: all logits at once, gradients by autograd."""
    student_log_TV, teacher_log_TV = (
        (role.head.logits(role.hidden_TE) / comparison.temperature).log_softmax(-1) for role in (student, teacher)
    )
    entropy_T = entropy(student_log_TV.detach().exp())
    if comparison.top_k is not None:
        top_TK = teacher_log_TV.topk(comparison.top_k, -1).indices
        student_log_TV, teacher_log_TV = _lump(student_log_TV, top_TK), _lump(teacher_log_TV, top_TK)
    term_TV = comparison.formulas.terms_of_logs(
        teacher_log_TV.clamp_min(LOG_FLOOR), student_log_TV.clamp_min(LOG_FLOOR), comparison.jsd_beta
    )
    divergence_T = term_TV.sum(-1)
    loss_T, clipped_T = divergence_T, torch.zeros_like(divergence_T)
    if comparison.clip == "per_token":
        loss_T = divergence_T.clamp(max=comparison.clip_threshold)
        clipped_T = (divergence_T > comparison.clip_threshold).to(divergence_T)
    elif comparison.clip != "none":
        loss_T = term_TV.clamp(max=comparison.clip_threshold).sum(-1)
        clipped_T = (term_TV > comparison.clip_threshold).to(divergence_T).mean(-1)
    reversed_T = inner_T = square_T = torch.zeros_like(entropy_T)
    if comparison.clip != "none":
        inner_T, square_T = _products(teacher_log_TV.detach(), student_log_TV.detach(), comparison)
    if comparison.clip in ("pointwise", "pointwise_masked"):
        reversed_T = (inner_T < 0).to(entropy_T)
    if comparison.clip == "pointwise_masked":
        loss_T, inner_T = loss_T * (1 - reversed_T), inner_T * (1 - reversed_T)
    readings = (loss_T.detach(), divergence_T.detach(), clipped_T, entropy_T, reversed_T, inner_T, square_T)
    return TokenLossOutput((weights_T * loss_T).sum(), *readings)


def _products(teacher_log_TV: Tensor, student_log_TV: Tensor, comparison: TokenComparison) -> tuple[Tensor, Tensor]:
    """Return ⟨g_clip, g⟩ and |g|² of the gradients to the logits with and without clipping, both by autograd."""
    with torch.inference_mode(False), torch.enable_grad():
        logit_TV = student_log_TV.clone().requires_grad_()
        log_TV = logit_TV.log_softmax(-1).clamp_min(LOG_FLOOR)
        term_TV = comparison.formulas.terms_of_logs(
            teacher_log_TV.clone().clamp_min(LOG_FLOOR), log_TV, comparison.jsd_beta
        )
        summed = term_TV.sum(-1) if comparison.clip == "per_token" else term_TV
        losses = term_TV.sum(), summed.clamp(max=comparison.clip_threshold).sum()
        whole_TV, clipped_TV = (torch.autograd.grad(loss, logit_TV, retain_graph=True)[0] for loss in losses)
    return (whole_TV * clipped_TV).sum(-1), whole_TV.square().sum(-1)


def _lump(log_TV: Tensor, top_TK: Tensor) -> Tensor:
    """Return log-probabilities [T, K + 1]: the chosen entries, and all others together."""
    # A sum of nothing but −∞ would have no gradient.
    rest_TV = log_TV.scatter(-1, top_TK, -torch.inf).clamp_min(2 * LOG_FLOOR)
    return torch.cat([log_TV.gather(-1, top_TK), rest_TV.logsumexp(-1, keepdim=True)], -1)


def _obstacle(student: TokenRole, teacher: TokenRole, clip: Clip) -> str | None:
    """Return why the kernels cannot compare these roles in this way, or None."""
    if clip == "pointwise_masked":
        return f"has no kernel for clip: {clip}"
    dtypes = {tensor.dtype for role in (student, teacher) for tensor in (role.hidden_TE, role.head.weight_VE)}
    if len(dtypes) == 1 and dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
        return None
    names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
    return f"needs hidden states and output heads all in bfloat16, all in float16 or all in float32, got {names}"
