"""The attention loss: the student's attention against the teacher's, on what both can see.

For step t, with a role's query q_t and the keys k_j it may look at (softmax over all of them, in every head):

    A_t(j)  = mean_h softmax_j(scaling · q_{t,h} · k_{j,h})                    head average first
    Ã_t^T   = target(A_t^T on the shared positions), A_t^S likewise restricted and renormalised, once
    ℓ_t     = D(Ã_t^T, A_t^S)

With `heads: each`, every head has such a loss of its own, without a mean before it, and ℓ_t is the mean of these.

`reference` is that definition. `chunked` (`attention_chunked.py`) gives the same numbers and gradients, a few query
rows at a time: it never holds [H, T, S], and forms the gradients while a chunk's attention is there (the backward pass
needs only dq and dk). `fused` (`fused/attention.py`) does the same in kernels on a GPU, for all rollouts of a forward.

With p = softmax rows of one step, m the student's mass on the support V, g = dD/dA_t^S (up to a constant), and
c_j = g_j − Σ_V A^S g on V, 0 elsewhere:      ds_hj = p_hj (c_j − Σ_i p_hi c_i) / (H·m).

Shapes: H query heads, K key heads, T queries, S keys, D head size, J shared positions; C queries of a chunk.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from opasd.choices import Handling, Heads, Impl, check_choice, check_positive
from opasd.losses import fused, projection
from opasd.losses.attention_chunked import (
    AttentionComparison,
    chunked_loss,
    make_readings,
    seen_by_both,
    template_and_first,
    usable,
    visible,
)
from opasd.losses.divergence import formulas_of
from opasd.losses.inputs import LayerAttention, LayerBatch
from opasd.losses.numerics import wide, without_autocast
from opasd.prompts.alignment import Alignment

__all__ = [
    "AttentionLossOutput",
    "LayerAttention",
    "LayerBatch",
    "attention_heads",
    "attention_loss",
    "attention_losses",
    "attention_rows",
]


class AttentionLossOutput(NamedTuple):
    """`loss` = Σ_t weight_t ℓ_t, differentiable; the rest are per-step readings without gradient."""

    loss: Tensor
    divergence_T: Tensor
    solution_mass_T: Tensor
    """ρ_t: the solution's share of the teacher's attention on the solution and the support together."""
    visible_mass_T: Tensor
    """The teacher's attention on the support before renormalising."""
    student_entropy_T: Tensor
    teacher_entropy_T: Tensor
    template_mass_T: Tensor
    """The share of the chat template's tokens in the teacher's attention on the shared positions, left out or not."""
    first_token_mass_T: Tensor
    """The share of the first token in it."""


def attention_loss(
    student: LayerAttention,
    teacher: LayerAttention,
    alignment: Alignment,
    *,
    divergence: str = "jsd",
    jsd_beta: float = 0.5,
    heads: Heads = "mean",
    handling: Handling = "project",
    shuffle_seed: int = 0,
    weights_T: Tensor | None = None,
    impl: Impl = "auto",
    chunk_queries: int = 128,
) -> AttentionLossOutput:
    """Return the attention loss of one layer and one rollout; `weights_T` defaults to 1/T, the rollout's mean."""
    return attention_losses(
        student.batch(),
        teacher.batch(),
        [alignment],
        divergence=divergence,
        jsd_beta=jsd_beta,
        heads=heads,
        handling=handling,
        shuffle_seeds=[shuffle_seed],
        weights_T=weights_T,
        impl=impl,
        chunk_queries=chunk_queries,
    )


def attention_losses(
    student: LayerBatch,
    teacher: LayerBatch,
    alignments: Sequence[Alignment],
    *,
    divergence: str = "jsd",
    jsd_beta: float = 0.5,
    heads: Heads = "mean",
    handling: Handling = "project",
    shuffle_seeds: Sequence[int] | None = None,
    weights_T: Tensor | None = None,
    impl: Impl = "auto",
    chunk_queries: int = 128,
) -> AttentionLossOutput:
    """Return the attention loss of one layer and all rollouts of a forward, summed; the readings are concatenated.

    `weights_T` are those of all rollouts' steps, concatenated; by default 1/T of each rollout. `shuffle_seeds` has one
    seed for each rollout. Positions of an alignment count from its sequence's begin.
    """
    if not len(alignments) == len(student.spans) == len(teacher.spans):
        raise ValueError(
            f"{len(alignments)} alignments for {len(student.spans)} and {len(teacher.spans)} sequences; give one each"
        )
    comparison = AttentionComparison(formulas_of(divergence), jsd_beta, handling)
    check_choice("impl", impl, Impl)
    check_choice("heads", heads, Heads)
    check_positive("chunk_queries", chunk_queries, whole=True)
    if heads == "each":
        options = {"divergence": divergence, "jsd_beta": jsd_beta, "handling": handling, "impl": impl}
        options |= {"shuffle_seeds": shuffle_seeds, "weights_T": weights_T, "chunk_queries": chunk_queries}
        pairs = zip(student.heads(), teacher.heads(), strict=True)
        outputs = [attention_losses(*pair, alignments, **options) for pair in pairs]
        return AttentionLossOutput(*(torch.stack(column).mean(0) for column in zip(*outputs, strict=True)))
    seeds = shuffle_seeds or [0] * len(alignments)
    with without_autocast():
        if fused.chosen("attention", impl, student.query_BHND, comparison.formulas):
            from opasd.losses.fused import attention as kernels

            output = kernels.attention_losses(student, teacher, alignments, comparison, seeds, weights_T)
            if output is not None:
                loss, readings_7T = output
                return AttentionLossOutput(loss, *readings_7T.unbind())
        outputs: list[AttentionLossOutput] = []
        for parts in _rollouts(student, teacher, alignments, comparison, seeds, weights_T):
            if impl == "reference":
                outputs.append(_reference(*parts))
            else:
                loss, readings_T7 = chunked_loss(*parts, chunk_queries)
                outputs.append(AttentionLossOutput(loss, *readings_T7.unbind(-1)))
        if not outputs:
            zero = student.query_BHND.sum(dtype=wide(student.query_BHND.dtype)) * 0
            return AttentionLossOutput(zero, *(zero.detach().new_zeros(0) for _ in AttentionLossOutput._fields[1:]))
        losses, *readings = zip(*outputs, strict=True)
        return AttentionLossOutput(torch.stack(losses).sum(), *map(torch.cat, readings))


def _rollouts(
    student: LayerBatch,
    teacher: LayerBatch,
    alignments: Sequence[Alignment],
    comparison: AttentionComparison,
    seeds: Sequence[int],
    weights_T: Tensor | None,
) -> Iterator[tuple[LayerAttention, LayerAttention, Alignment, AttentionComparison, Tensor]]:
    """Yield what the loss of one rollout after another needs."""
    device, dtype = student.query_BHND.device, wide(student.query_BHND.dtype)
    alignments = [alignment.to("cpu") for alignment in alignments]
    lengths = [alignment.num_tokens for alignment in alignments]
    if weights_T is None:
        means = [torch.full((length,), 1 / max(length, 1), dtype=dtype) for length in lengths]
        weights_T = torch.cat([*means, torch.zeros(0, dtype=dtype)])
    weights = weights_T.to(device, dtype).split(lengths)
    for index, alignment in enumerate(alignments):
        student_layer = student.sequence(index, alignment.student_query)
        teacher_layer = teacher.sequence(index, alignment.teacher_query).detach()
        if comparison.handling == "shuffle":
            permutation_J = projection.shuffle_permutation(alignment.in_prompt, seeds[index]).to(device)
            comparison = replace(comparison, permutation_J=permutation_J)
        yield student_layer, teacher_layer, alignment, comparison, weights[index]


def attention_rows(role: LayerAttention, query_position_T: Tensor) -> Tensor:
    """Return A [T, S] by its definition: head-averaged attention of causal queries at these positions."""
    return attention_heads(role, query_position_T).mean(0)


def attention_heads(role: LayerAttention, query_position_T: Tensor) -> Tensor:
    """Return each head's attention [H, T, S]; a row sums to one, minus the share of a sink."""
    dtype = wide(role.query_HTD.dtype)
    num_heads, num_keys = role.query_HTD.shape[0], role.key_KSD.shape[1]
    key_HSD = role.key_KSD.to(dtype).repeat_interleave(num_heads // role.key_KSD.shape[0], 0)
    score_HTS = role.scaling * role.query_HTD.to(dtype) @ key_HSD.transpose(1, 2)
    if role.softcap is not None:
        score_HTS = role.softcap * torch.tanh(score_HTS / role.softcap)
    visible_TS = visible(query_position_T, torch.arange(num_keys, device=score_HTS.device), role.sliding_window)
    score_HTS = score_HTS.masked_fill(~visible_TS, -torch.inf)
    if role.sinks_H is not None:
        sink_HT1 = role.sinks_H.to(dtype)[:, None, None].expand(-1, score_HTS.shape[1], 1)
        score_HTS = torch.cat([score_HTS, sink_HT1], -1)
    return score_HTS.softmax(-1)[..., :num_keys]


def _reference(
    student: LayerAttention,
    teacher: LayerAttention,
    alignment: Alignment,
    comparison: AttentionComparison,
    weights_T: Tensor,
) -> AttentionLossOutput:
    """Return the loss by its definition: everything at once, gradients by autograd."""
    alignment = alignment.to(weights_T.device)
    queries = alignment.student_query, alignment.teacher_query
    windows = student.sliding_window, teacher.sliding_window
    seen_TJ = seen_by_both(queries, (alignment.student_shared, alignment.teacher_shared), windows)
    student_TS = attention_rows(student, alignment.student_query)
    teacher_TS = attention_rows(teacher, alignment.teacher_query)
    teacher_TJ = teacher_TS[:, alignment.teacher_shared] * seen_TJ
    solution_T = teacher_TS[:, alignment.solution].sum(-1)
    target_TJ = projection.target(
        teacher_TJ, solution_T, alignment.in_prompt, comparison.handling, comparison.permutation_J
    )
    student_TJ, student_mass_T = projection.normalise(student_TS[:, alignment.student_shared] * seen_TJ)
    usable_T = usable(student_mass_T, teacher_TJ.sum(-1))
    divergence_T = comparison.formulas.terms(target_TJ, student_TJ, comparison.jsd_beta).sum(-1)
    divergence_T = torch.where(usable_T, divergence_T, 0)
    with torch.no_grad():
        left_out_TX = teacher_TS[:, alignment.left_out[1]] * seen_by_both(queries, alignment.left_out, windows)
        parts_T2 = template_and_first(alignment, teacher_TJ, left_out_TX)
        readings_T7 = make_readings(divergence_T, student_TJ, target_TJ, teacher_TJ.sum(-1), solution_T, parts_T2)
    return AttentionLossOutput((weights_T * divergence_T).sum(), *readings_T7.unbind(-1))
