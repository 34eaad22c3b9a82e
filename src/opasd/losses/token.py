"""The token loss: the student's next-token distribution against the teacher's, over the full vocabulary.

    z   = head(hidden),   log p = log_softmax(z / temperature)
    D_t = Σ_v f_v,        f from `divergence` on (p_T, p_S)
    ℓ_t = D_t  |  min(D_t, c) (per_token)  |  Σ_v min(f_v, c) (pointwise)

With `top_k`, the teacher's k likeliest tokens are compared one by one and all others as a single event: a divergence
between two proper distributions, never larger than the full one, and equal to it at k = V − 1 or more.

`reference` is that, written down; `chunked` is the same numbers and gradients for a few tokens at a time: logits
[T, V] never exist. The gradient to the hidden states is formed while a chunk's logits are there: three matrix
products in all instead of five. With u_v = df_v / d log p_S(v), 0 where clipped:  dz = (u − p_S Σ_v u_v) / temperature.

`fused` is that again with everything between the matrix products in one kernel (`fused/token.py`), for CUDA devices.

Extra memory of `chunked`: at most WORKSPACE_BUFFERS · chunk_tokens · V float32 numbers (with `chunk_tokens` unset, at
most WORKSPACE_BYTES for any length), plus the gradients: hidden states [T, E], and [V, E] if the head is trained.
Of `fused`: two buffers [C, V] in the hidden states' own precision, three with `top_k`, plus the same gradients; with
`chunk_tokens` unset, 1 GiB for buffers and the hidden states' gradient, as long as that alone is under 3/4 of it.

Shapes: T tokens, E hidden size, V vocabulary; C tokens of a chunk.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opasd.choices import Clip, Divergence, Impl, check_choice, check_positive
from opasd.errors import ConfigError
from opasd.losses import fused
from opasd.losses.divergence import LOG_SMALLEST, SMALLEST, entropy, log_terms, terms
from opasd.losses.inputs import OutputHead
from opasd.losses.precision import own_precision, wide

__all__ = ["OutputHead", "TokenLossOutput", "log_probabilities", "token_loss"]

WORKSPACE_BUFFERS = 10
WORKSPACE_BYTES = 512 * 2**20
VOCABULARY_TILE = 16_384
"""Rows of a low-precision head converted to float32 at a time where the device has no mixed-precision product."""


class TokenLossOutput(NamedTuple):
    """`loss` = Σ_t weight_t ℓ_t, differentiable; the rest are per-token readings without gradient."""

    loss: Tensor
    loss_T: Tensor
    """ℓ_t, after clipping."""
    divergence_T: Tensor
    """D_t, before clipping."""
    clipped_T: Tensor
    """The share of what can be clipped that was: 0 or 1 per token, or the share of vocabulary entries."""
    student_entropy_T: Tensor
    """Entropy of the student's distribution at the loss's temperature, in nats."""


class TokenComparison(NamedTuple):
    """How two distributions become one number; `top_k` is None where it would change nothing."""

    divergence: Divergence
    jsd_beta: float
    temperature: float
    clip: Clip
    clip_threshold: float
    top_k: int | None

    def judge(self, teacher_log_CV: Tensor, student_log_CV: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """From floored log-probabilities: loss, divergence and clipped share [C]; d term / d log student [C, V].

        The slopes of a token that is clipped as a whole are left: its gradient is multiplied by 0 later.
        """
        term_CV, slope_CV = log_terms(teacher_log_CV, student_log_CV, self.divergence, self.jsd_beta)
        divergence_C = term_CV.sum(-1)
        loss_C, clipped_C = divergence_C, torch.zeros_like(divergence_C)
        if self.clip == "per_token":
            loss_C = divergence_C.clamp(max=self.clip_threshold)
            clipped_C = (divergence_C > self.clip_threshold).to(divergence_C)
        elif self.clip == "pointwise":
            over_CV = term_CV > self.clip_threshold
            loss_C = term_CV.clamp_(max=self.clip_threshold).sum(-1)
            clipped_C = over_CV.sum(-1).to(divergence_C) / over_CV.shape[-1]
            slope_CV.masked_fill_(over_CV, 0)
        return loss_C, divergence_C, clipped_C, slope_CV


@own_precision
def token_loss(
    student_hidden_TE: Tensor,
    student_head: OutputHead,
    teacher_hidden_TE: Tensor,
    teacher_head: OutputHead,
    *,
    divergence: Divergence = "forward_kl",
    jsd_beta: float = 0.5,
    temperature: float = 1.0,
    clip: Clip = "none",
    clip_threshold: float = 0.05,
    top_k: int | None = None,
    weights_T: Tensor | None = None,
    impl: Impl = "auto",
    chunk_tokens: int | None = None,
) -> TokenLossOutput:
    """Token loss of the hidden states that predict T tokens; `weights_T` defaults to 1/T, their mean."""
    check_choice("divergence", divergence, Divergence)
    check_positive("jsd_beta", jsd_beta, below=1)
    check_positive("temperature", temperature)
    check_choice("clip", clip, Clip)
    check_positive("clip_threshold", clip_threshold)
    check_positive("top_k", top_k, whole=True, optional=True)
    check_choice("impl", impl, Impl)
    check_positive("chunk_tokens", chunk_tokens, whole=True, optional=True)
    num_tokens = student_hidden_TE.shape[0]
    dtype = wide(student_hidden_TE.dtype)
    if weights_T is None:
        weights_T = torch.full((num_tokens,), 1 / max(num_tokens, 1), dtype=dtype, device=student_hidden_TE.device)
    weights_T = weights_T.to(student_hidden_TE.device, dtype)
    vocabulary = student_head.weight_VE.shape[0]
    compare = TokenComparison(
        divergence,
        jsd_beta,
        temperature,
        clip,
        clip_threshold,
        top_k if top_k is not None and top_k < vocabulary - 1 else None,
    )
    teacher_hidden_TE, teacher_head = teacher_hidden_TE.detach(), teacher_head.detach()
    if impl == "reference":
        return _reference(student_hidden_TE, student_head, teacher_hidden_TE, teacher_head, compare, weights_T)
    loss, readings_T4 = _TokenLoss.apply(
        student_hidden_TE,
        student_head.weight_VE,
        student_head.bias_V,
        student_head.detach(),
        teacher_hidden_TE,
        teacher_head,
        compare,
        weights_T,
        _method(impl, student_hidden_TE, student_head, teacher_hidden_TE, teacher_head, compare, chunk_tokens),
    )
    return TokenLossOutput(loss, *readings_T4.unbind(-1))


@own_precision
@torch.no_grad()
def log_probabilities(
    hidden_TE: Tensor, head: OutputHead, token_T: Tensor, *, chunk_tokens: int | None = None
) -> Tensor:
    """log p of the T tokens that the hidden states predict, at temperature 1; chunks as in the loss."""
    chunk = chunk_tokens or default_chunk_tokens(head.weight_VE.shape[0])
    found_T = torch.empty(hidden_TE.shape[0], dtype=wide(hidden_TE.dtype), device=hidden_TE.device)
    for start in range(0, hidden_TE.shape[0], chunk):
        rows = slice(start, start + chunk)
        logits_CV = _logits(hidden_TE[rows], head)
        found_T[rows] = logits_CV.gather(-1, token_T[rows, None])[:, 0] - logits_CV.logsumexp(-1)
    return found_T


def default_chunk_tokens(vocabulary: int) -> int:
    """As many tokens as keep the workspace within WORKSPACE_BYTES, and at least one."""
    return max(1, WORKSPACE_BYTES // (4 * WORKSPACE_BUFFERS * vocabulary))


def _reference(
    student_hidden_TE: Tensor,
    student_head: OutputHead,
    teacher_hidden_TE: Tensor,
    teacher_head: OutputHead,
    compare: TokenComparison,
    weights_T: Tensor,
) -> TokenLossOutput:
    """The definition: all logits at once, gradients by autograd."""
    student_TV = (student_head.logits(student_hidden_TE) / compare.temperature).softmax(-1)
    teacher_TV = (teacher_head.logits(teacher_hidden_TE) / compare.temperature).softmax(-1)
    entropy_T = entropy(student_TV.detach())
    if compare.top_k is not None:
        top_TK = teacher_TV.topk(compare.top_k, -1).indices
        student_TV, teacher_TV = _lump(student_TV, top_TK), _lump(teacher_TV, top_TK)
    term_TV = terms(teacher_TV, student_TV, compare.divergence, compare.jsd_beta)
    divergence_T = term_TV.sum(-1)
    loss_T, clipped_T = divergence_T, torch.zeros_like(divergence_T)
    if compare.clip == "per_token":
        loss_T = divergence_T.clamp(max=compare.clip_threshold)
        clipped_T = (divergence_T > compare.clip_threshold).to(divergence_T)
    elif compare.clip == "pointwise":
        loss_T = term_TV.clamp(max=compare.clip_threshold).sum(-1)
        clipped_T = (term_TV > compare.clip_threshold).to(divergence_T).mean(-1)
    loss = (weights_T * loss_T).sum()
    return TokenLossOutput(loss, loss_T.detach(), divergence_T.detach(), clipped_T, entropy_T)


def _lump(probability_TV: Tensor, top_TK: Tensor) -> Tensor:
    """[T, K + 1]: the chosen entries, and the sum of all others."""
    rest_TV = probability_TV.scatter(-1, top_TK, 0)
    return torch.cat([probability_TV.gather(-1, top_TK), rest_TV.sum(-1, keepdim=True)], -1)


class _Method(NamedTuple):
    """How a chunk is judged: `step(hidden, student_head, teacher_hidden, teacher_head, compare, needs_grad)`.

    It gives readings [C, 4] and d D / d (hidden Wᵀ + bias) [C, V] (None without `needs_grad`).
    """

    step: Callable[[Tensor, OutputHead, Tensor, OutputHead, TokenComparison, bool], tuple[Tensor, Tensor | None]]
    chunk_tokens: int
    grad_dtype: torch.dtype
    """In which the gradient of the hidden states is held until the backward pass."""


def _method(
    impl: Impl,
    student_hidden_TE: Tensor,
    student_head: OutputHead,
    teacher_hidden_TE: Tensor,
    teacher_head: OutputHead,
    compare: TokenComparison,
    chunk_tokens: int | None,
) -> _Method:
    vocabulary, dtype = student_head.weight_VE.shape[0], student_hidden_TE.dtype
    refusal = _fused_refusal(student_hidden_TE, student_head, teacher_hidden_TE, teacher_head)
    if impl == "fused" and refusal is not None:
        raise ConfigError(f"impl: fused {refusal}; use impl: auto, or chunked")
    if impl == "fused" or (impl == "auto" and student_hidden_TE.is_cuda and refusal is None):
        from opasd.losses.fused import token as kernels

        chunk_tokens = chunk_tokens or kernels.default_chunk_tokens(student_hidden_TE, vocabulary, compare.top_k)
        return _Method(kernels.judge, chunk_tokens, dtype)
    if impl == "auto" and student_hidden_TE.is_cuda:
        fused.say_once(f"the token loss {refusal} for its kernels; impl: chunked computes it")
    return _Method(_chunk, chunk_tokens or default_chunk_tokens(vocabulary), wide(dtype))


def _fused_refusal(student_hidden_TE: Tensor, student_head: OutputHead, *teacher: Tensor | OutputHead) -> str | None:
    """Why the kernels cannot be used, or None."""
    device = student_hidden_TE.device
    if not fused.available(device):
        missing = "" if fused.installed() else ", and Triton is not installed"
        return f"needs Triton and a CUDA device, and these tensors are on {device.type}{missing}"
    found = [student_hidden_TE, student_head, *teacher]
    dtypes = {(item.weight_VE if isinstance(item, OutputHead) else item).dtype for item in found}
    if len(dtypes) > 1 or not dtypes <= {torch.bfloat16, torch.float16, torch.float32}:
        names = ", ".join(sorted(str(dtype).removeprefix("torch.") for dtype in dtypes))
        return f"needs hidden states and output heads all in bfloat16, all in float16 or all in float32, got {names}"
    return None


class _TokenLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_TE: Tensor,
        weight_VE: Tensor,
        bias_V: Tensor | None,
        student_head: OutputHead,
        teacher_hidden_TE: Tensor,
        teacher_head: OutputHead,
        compare: TokenComparison,
        weights_T: Tensor,
        method: _Method,
    ) -> tuple[Tensor, Tensor]:
        dtype = wide(hidden_TE.dtype)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        needs_grad = any(ctx.needs_input_grad)
        grad_hidden_TE = torch.empty_like(hidden_TE, dtype=method.grad_dtype) if needs_hidden else None
        grad_weight_VE = torch.zeros_like(weight_VE, dtype=dtype) if needs_weight else None
        grad_bias_V = torch.zeros_like(bias_V, dtype=dtype) if needs_bias and bias_V is not None else None
        readings_T4 = torch.empty(hidden_TE.shape[0], 4, dtype=dtype, device=hidden_TE.device)
        # The head's gradient is summed in units of the largest weight: 1/T is too small a number for float16.
        unit = weights_T.abs().amax(0, keepdim=True).clamp_min(SMALLEST) if len(weights_T) else weights_T.new_ones(1)
        for start in range(0, hidden_TE.shape[0], method.chunk_tokens):
            rows = slice(start, start + method.chunk_tokens)
            readings_T4[rows], grad_CV = method.step(
                hidden_TE[rows], student_head, teacher_hidden_TE[rows], teacher_head, compare, needs_grad
            )
            if grad_CV is None:
                continue
            if grad_hidden_TE is not None:
                grad_hidden_TE[rows] = _product(grad_CV, weight_VE)
            factor_C1 = _factor(weights_T[rows] / unit, readings_T4[rows], compare)[:, None]
            if grad_bias_V is not None:
                _add_product_(grad_bias_V[:, None], grad_CV.T, factor_C1)
            if grad_weight_VE is not None:
                _add_product_(grad_weight_VE, grad_CV.T, factor_C1 * hidden_TE[rows])
            del grad_CV  # before the next chunk needs its place
        factor_T = _factor(weights_T, readings_T4, compare)
        ctx.save_for_backward(grad_hidden_TE, grad_weight_VE, grad_bias_V, factor_T, unit)
        ctx.dtypes = (hidden_TE.dtype, weight_VE.dtype, None if bias_V is None else bias_V.dtype)
        ctx.mark_non_differentiable(readings_T4)
        return (weights_T * readings_T4[:, 0]).sum(), readings_T4

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grad_loss = grad_outputs[0]
        # Rows are weighted only here, so that float16 does not lose what a loss scale is about to save.
        *gradients, factor_T, unit = ctx.saved_tensors
        factors = (grad_loss * factor_T[:, None], grad_loss * unit, grad_loss * unit)
        scaled = (
            None if gradient is None else torch.mul(gradient, factor, out=torch.empty_like(gradient, dtype=dtype))
            for gradient, factor, dtype in zip(gradients, factors, ctx.dtypes, strict=True)
        )
        return *scaled, *(None,) * 6


def _factor(weights_T: Tensor, readings_T4: Tensor, compare: TokenComparison) -> Tensor:
    """By what each token's gradient is multiplied: its weight, or 0 where the token was clipped as a whole."""
    return weights_T * (1 - readings_T4[:, 2]) if compare.clip == "per_token" else weights_T


def _chunk(
    hidden_CE: Tensor,
    student_head: OutputHead,
    teacher_hidden_CE: Tensor,
    teacher_head: OutputHead,
    compare: TokenComparison,
    needs_grad: bool,
) -> tuple[Tensor, Tensor | None]:
    """`_Method.step` in plain PyTorch."""
    student_CV = _logits(hidden_CE, student_head)
    # What the soft cap does to a gradient is needed after the logits are gone.
    cap_CV = None if student_head.softcap is None else 1 - (student_CV / student_head.softcap).square()
    readings_C4, grad_CV = _compare(student_CV, _logits(teacher_hidden_CE, teacher_head), compare, needs_grad)
    if grad_CV is not None:
        grad_CV.mul_(student_head.scale / compare.temperature)
        if cap_CV is not None:
            grad_CV.mul_(cap_CV)
    return readings_C4, grad_CV


def _compare(
    student_CV: Tensor, teacher_CV: Tensor, compare: TokenComparison, needs_grad: bool
) -> tuple[Tensor, Tensor | None]:
    """Readings [C, 4] and d D / d (student logits / temperature) [C, V]; both logits are consumed."""
    student_log_CV = _log_softmax_(student_CV, compare.temperature)
    teacher_log_CV = _log_softmax_(teacher_CV, compare.temperature)
    top_CK, lumped = None, None
    if compare.top_k is not None:
        top_CK = teacher_log_CV.topk(compare.top_k, -1).indices
        lumped = _lump_log(teacher_log_CV, top_CK), _lump_log(student_log_CV, top_CK)
    student_CV = student_log_CV.exp()
    entropy_C = -torch.linalg.vecdot(student_CV, student_log_CV.clamp_min_(LOG_SMALLEST))
    teacher_log_CV, student_log_CV = lumped or (teacher_log_CV.clamp_min_(LOG_SMALLEST), student_log_CV)
    *values_C, slope_CV = compare.judge(teacher_log_CV, student_log_CV)
    readings_C4 = torch.stack([*values_C, entropy_C], -1)
    if not needs_grad:
        return readings_C4, None
    total_C1 = slope_CV.sum(-1, keepdim=True)
    if top_CK is not None:
        # What all others share goes to each by its part of their probability.
        part_C1 = slope_CV[:, -1:] / student_log_CV[:, -1:].exp()
        slope_CV = (student_CV * part_C1).scatter_(-1, top_CK, slope_CV[:, :-1])
    return readings_C4, slope_CV.sub_(student_CV.mul_(total_C1))


def _log_softmax_(logits_CV: Tensor, temperature: float) -> Tensor:
    """log_softmax(logits / temperature), in place."""
    logits_CV.div_(temperature)
    return logits_CV.sub_(logits_CV.logsumexp(-1, keepdim=True))


def _lump_log(log_CV: Tensor, top_CK: Tensor) -> Tensor:
    """`_lump` on log-probabilities, without the cancellation of 1 − Σ; floored, after the sum."""
    rest_log_C1 = log_CV.scatter(-1, top_CK, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_CV.gather(-1, top_CK), rest_log_C1], -1).clamp_min_(LOG_SMALLEST)


def _logits(hidden_CE: Tensor, head: OutputHead) -> Tensor:
    """z [C, V] as `OutputHead.logits` defines it, in a fresh buffer and without a float32 copy of the head."""
    weight_VE = head.weight_VE
    dtype = wide(hidden_CE.dtype)
    if hidden_CE.dtype == weight_VE.dtype == dtype:
        logits_CV = hidden_CE @ weight_VE.T
    elif hidden_CE.is_cuda and hidden_CE.dtype == weight_VE.dtype:
        logits_CV = torch.mm(hidden_CE, weight_VE.T, out_dtype=dtype)
    else:
        hidden_CE = hidden_CE.to(dtype)
        logits_CV = hidden_CE.new_empty(hidden_CE.shape[0], weight_VE.shape[0])
        for start in range(0, weight_VE.shape[0], VOCABULARY_TILE):
            tile = slice(start, start + VOCABULARY_TILE)
            torch.mm(hidden_CE, weight_VE[tile].to(dtype).T, out=logits_CV[:, tile])
    if head.bias_V is not None:
        logits_CV += head.bias_V
    if head.scale != 1.0:
        logits_CV *= head.scale
    return logits_CV if head.softcap is None else logits_CV.div_(head.softcap).tanh_().mul_(head.softcap)


def _product(grad_CV: Tensor, weight_VE: Tensor) -> Tensor:
    """grad [C, V] · W [V, E], accumulated in at least float32."""
    dtype = wide(grad_CV.dtype)
    if grad_CV.dtype == weight_VE.dtype == dtype:
        return grad_CV @ weight_VE
    if grad_CV.is_cuda:
        return torch.mm(grad_CV.to(weight_VE.dtype), weight_VE, out_dtype=dtype)
    grad_CE = grad_CV.new_zeros(grad_CV.shape[0], weight_VE.shape[1], dtype=dtype)
    for start in range(0, weight_VE.shape[0], VOCABULARY_TILE):
        tile = slice(start, start + VOCABULARY_TILE)
        grad_CE.addmm_(grad_CV[:, tile].to(dtype), weight_VE[tile].to(dtype))
    return grad_CE


def _add_product_(sum_VE: Tensor, grad_VC: Tensor, factor_CE: Tensor) -> None:
    """sum [V, E] += grad [V, C] · factor [C, E], accumulated in the sum's precision."""
    if grad_VC.dtype == sum_VE.dtype:
        sum_VE.addmm_(grad_VC, factor_CE.to(sum_VE.dtype))
    elif grad_VC.is_cuda:
        torch.addmm(sum_VE, grad_VC, factor_CE.to(grad_VC.dtype), out_dtype=sum_VE.dtype, out=sum_VE)
    else:
        sum_VE.addmm_(grad_VC.to(sum_VE.dtype), factor_CE.to(sum_VE.dtype))
