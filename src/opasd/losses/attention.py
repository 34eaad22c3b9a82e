"""The attention loss: the student's head-averaged attention against the teacher's, on what both can see.

For step t, with a role's query q_t and the keys k_j it may look at (softmax over all of them, in every head):

    A_t(j)  = mean_h softmax_j(scaling · q_{t,h} · k_{j,h})                    head average first
    Ã_t^T   = target(A_t^T on the shared positions), A_t^S likewise restricted and renormalised, once
    ℓ_t     = D(Ã_t^T, A_t^S)

`reference` is that, written down; `chunked` is the same numbers and gradients a few query rows at a time: it never
holds [H, T, S], and forms the gradient while a chunk's attention is there (saved for the backward pass: dq and dk);
`fused` (`opasd.losses.fused.attention`) is the same in kernels for a GPU, for a whole forward's rollouts at once.

With p = softmax rows of one step, m the student's mass on the support V, g = dD/dA_t^S (see `slope`), and
c_j = g_j − Σ_V A^S g on V, 0 elsewhere:      ds_hj = p_hj (c_j − Σ_i p_hi c_i) / (H·m).

Shapes: H query heads, K key heads, T queries, S keys, D head size, J shared positions; C queries of a chunk.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from opasd.choices import Divergence, Handling, Impl, check_choice, check_positive
from opasd.errors import ConfigError
from opasd.losses import fused, projection
from opasd.losses.attention_chunked import AttentionComparison, chunked, make_readings, usable, visible
from opasd.losses.divergence import divergence as divergence_of
from opasd.losses.inputs import LayerAttention, LayerBatch
from opasd.losses.precision import own_precision, wide
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
    """ρ_t: the teacher's attention on the solution, of what it pays to the solution and the support together."""
    visible_mass_T: Tensor
    """The teacher's attention on the support before renormalising."""
    student_entropy_T: Tensor
    teacher_entropy_T: Tensor


def attention_loss(
    student: LayerAttention,
    teacher: LayerAttention,
    alignment: Alignment,
    *,
    divergence: Divergence = "jsd",
    jsd_beta: float = 0.5,
    handling: Handling = "project",
    shuffle_seed: int = 0,
    weights_T: Tensor | None = None,
    impl: Impl = "auto",
    chunk_queries: int = 128,
) -> AttentionLossOutput:
    """Attention loss of one layer and one rollout; `weights_T` defaults to 1/T, the rollout's mean."""
    return attention_losses(
        student.batch(),
        teacher.batch(),
        [alignment],
        divergence=divergence,
        jsd_beta=jsd_beta,
        handling=handling,
        shuffle_seeds=[shuffle_seed],
        weights_T=weights_T,
        impl=impl,
        chunk_queries=chunk_queries,
    )


@own_precision
def attention_losses(
    student: LayerBatch,
    teacher: LayerBatch,
    alignments: Sequence[Alignment],
    *,
    divergence: Divergence = "jsd",
    jsd_beta: float = 0.5,
    handling: Handling = "project",
    shuffle_seeds: Sequence[int] | None = None,
    weights_T: Tensor | None = None,
    impl: Impl = "auto",
    chunk_queries: int = 128,
) -> AttentionLossOutput:
    """Attention loss of one layer and many rollouts of one forward, summed; the readings stand one after another.

    `weights_T` are those of all rollouts' steps, one after another; 1/T of each rollout unless given. `shuffle_seeds`
    has one seed for each rollout. Positions of an alignment count from its sequence's begin.
    """
    if not len(alignments) == len(student.spans) == len(teacher.spans):
        raise ValueError(
            f"{len(alignments)} alignments for {len(student.spans)} and {len(teacher.spans)} sequences; give one each"
        )
    check_choice("divergence", divergence, Divergence)
    check_positive("jsd_beta", jsd_beta, below=1)
    check_choice("handling", handling, Handling)
    check_choice("impl", impl, Impl)
    check_positive("chunk_queries", chunk_queries, whole=True)
    seeds = shuffle_seeds or [0] * len(alignments)
    if _wants_kernels(impl, student.query_BHND.device):
        from opasd.losses.fused import attention as kernels
        from opasd.losses.fused.attention_plan import read

        rollouts = read(alignments)
        reason = kernels.unsupported(student, teacher, rollouts)
        if reason is None:
            options = {"divergence": divergence, "jsd_beta": jsd_beta, "handling": handling}
            loss, readings_5T = kernels.attention_losses(
                student, teacher, rollouts, seeds=seeds, weights_T=weights_T, **options
            )  # fmt: skip
            return AttentionLossOutput(loss, *readings_5T.unbind())
        fused.say_once(f"the attention loss has no kernel for {reason}; impl: chunked computes it")
    device, dtype = student.query_BHND.device, wide(student.query_BHND.dtype)
    alignments = [alignment.to("cpu") for alignment in alignments]
    if weights_T is None:
        means = [torch.full((n,), 1 / max(n, 1), dtype=dtype) for n in _lengths(alignments)]
        weights_T = torch.cat([*means, torch.zeros(0, dtype=dtype)])
    weights_T = weights_T.to(device, dtype)
    outputs: list[AttentionLossOutput] = []
    rollouts = zip(alignments, seeds, weights_T.split(_lengths(alignments)), strict=True)
    for index, (alignment, seed, rollout_weights_T) in enumerate(rollouts):
        student_layer = student.sequence(index, alignment.student_query)
        teacher_layer = teacher.sequence(index, alignment.teacher_query).detach()
        permutation_J = None
        if handling == "shuffle":
            permutation_J = projection.shuffle_permutation(alignment.in_prompt, seed).to(device)
        compare = AttentionComparison(divergence, jsd_beta, handling, permutation_J)
        if impl == "reference":
            outputs.append(_reference(student_layer, teacher_layer, alignment.to(device), compare, rollout_weights_T))
        else:
            loss, readings_T5 = chunked(
                student_layer, teacher_layer, alignment, compare, rollout_weights_T, chunk_queries
            )
            outputs.append(AttentionLossOutput(loss, *readings_T5.unbind(-1)))
    return _joined(outputs, student)


def _lengths(alignments: Sequence[Alignment]) -> list[int]:
    return [alignment.num_tokens for alignment in alignments]


def _joined(outputs: Sequence[AttentionLossOutput], student: LayerBatch) -> AttentionLossOutput:
    if len(outputs) == 1:
        return outputs[0]
    if not outputs:
        zero = student.query_BHND.sum(dtype=wide(student.query_BHND.dtype)) * 0
        return AttentionLossOutput(zero, *(zero.detach().new_zeros(0) for _ in range(5)))
    loss = torch.stack([output.loss for output in outputs]).sum()
    return AttentionLossOutput(loss, *(torch.cat(columns) for columns in zip(*(o[1:] for o in outputs), strict=True)))


def _wants_kernels(impl: Impl, device: torch.device) -> bool:
    """On a GPU unless told otherwise, and in Triton's interpreter if told so."""
    if impl not in ("auto", "fused") or (impl == "auto" and device.type != "cuda"):
        return False
    if impl == "fused" and not fused.available(device):
        missing = "" if fused.installed() else " and Triton is not installed"
        raise ConfigError(
            f"impl: fused needs Triton and a CUDA GPU; the tensors are on {device.type}{missing}; use impl: auto, "
            "which takes the fastest implementation that can run"
        )
    return fused.available(device)


def attention_rows(role: LayerAttention, query_position_T: Tensor) -> Tensor:
    """The definition of A [T, S]: head-averaged attention of causal queries at the given positions."""
    return attention_heads(role, query_position_T).mean(0)


def attention_heads(role: LayerAttention, query_position_T: Tensor) -> Tensor:
    """Each head's attention [H, T, S]; a row sums to one, less what a sink takes."""
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


def _seen_by_both(student: LayerAttention, teacher: LayerAttention, alignment: Alignment) -> Tensor:
    """[T, J]: shared positions within reach of both queries; under a sliding window the reaches differ."""
    student_TJ = visible(alignment.student_query, alignment.student_shared, student.sliding_window)
    return student_TJ & visible(alignment.teacher_query, alignment.teacher_shared, teacher.sliding_window)


def _reference(
    student: LayerAttention,
    teacher: LayerAttention,
    alignment: Alignment,
    compare: AttentionComparison,
    weights_T: Tensor,
) -> AttentionLossOutput:
    """The definition: everything at once, gradients by autograd."""
    seen_TJ = _seen_by_both(student, teacher, alignment)
    student_TS = attention_rows(student, alignment.student_query)
    teacher_TS = attention_rows(teacher, alignment.teacher_query)
    teacher_TJ = teacher_TS[:, alignment.teacher_shared] * seen_TJ
    solution_T = teacher_TS[:, alignment.solution].sum(-1)
    target_TJ = compare.target(teacher_TJ, solution_T, alignment.in_prompt)
    student_TJ, student_mass_T = projection.normalise(student_TS[:, alignment.student_shared] * seen_TJ)
    usable_T = usable(student_mass_T, teacher_TJ.sum(-1))
    divergence_T = divergence_of(target_TJ, student_TJ, compare.divergence, compare.jsd_beta)
    divergence_T = torch.where(usable_T, divergence_T, 0)
    with torch.no_grad():
        readings_T5 = make_readings(divergence_T, student_TJ, target_TJ, teacher_TJ.sum(-1), solution_T)
    return AttentionLossOutput((weights_T * divergence_T).sum(), *readings_T5.unbind(-1))
