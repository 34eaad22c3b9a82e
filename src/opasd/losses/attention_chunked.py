"""The attention loss a few steps at a time in plain PyTorch, with its own backward; and what the definition shares.

`opasd.losses.attention` has the formulas. Shapes as there; C queries of a chunk.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opasd.choices import Divergence, Handling
from opasd.losses import projection
from opasd.losses.divergence import entropy, slope, terms
from opasd.losses.inputs import LayerAttention
from opasd.losses.precision import wide
from opasd.prompts.alignment import Alignment


class AttentionComparison(NamedTuple):
    """How a student's row is compared with a teacher's, both restricted to the support."""

    divergence: Divergence
    jsd_beta: float
    handling: Handling
    permutation_J: Tensor | None

    def target(self, teacher_CJ: Tensor, solution_C: Tensor, in_prompt_J: Tensor) -> Tensor:
        permutation_J = None if self.permutation_J is None else self.permutation_J[: in_prompt_J.numel()]
        return projection.target(teacher_CJ, solution_C, in_prompt_J, self.handling, permutation_J)


def visible(query_position_T: Tensor, key_position_J: Tensor, window: int | None) -> Tensor:
    """[T, J]: causal, and within the sliding window where there is one."""
    distance_TJ = query_position_T[:, None] - key_position_J
    visible_TJ = distance_TJ >= 0
    return visible_TJ if window is None else visible_TJ & (distance_TJ < window)


def make_readings(
    divergence_C: Tensor, student_CJ: Tensor, target_CJ: Tensor, visible_C: Tensor, solution_C: Tensor
) -> Tensor:
    solution_mass_C = solution_C / (solution_C + visible_C).clamp_min(projection.LEAST_MASS)
    columns = (divergence_C, solution_mass_C, visible_C, entropy(student_CJ), entropy(target_CJ))
    return torch.stack(columns, -1)


def usable(student_mass_T: Tensor, teacher_mass_T: Tensor) -> Tensor:
    """Steps at which both roles look at the support at all; NaN counts as usable, so that it shows."""
    return ~((student_mass_T < projection.LEAST_MASS) | (teacher_mass_T < projection.LEAST_MASS))


def chunked(
    student: LayerAttention,
    teacher: LayerAttention,
    alignment: Alignment,
    compare: AttentionComparison,
    weights_T: Tensor,
    chunk_queries: int,
) -> tuple[Tensor, Tensor]:
    """The weighted loss of one rollout, and its readings [T, 5]; the alignment is on the CPU."""
    return _ChunkedAttentionLoss.apply(
        student.query_HTD,
        student.key_KSD,
        student.sinks_H,
        student.detach(),
        teacher,
        alignment,
        compare,
        weights_T,
        chunk_queries,
    )


class _ChunkedAttentionLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        query_HTD: Tensor,
        key_KSD: Tensor,
        sinks_H: Tensor | None,
        student: LayerAttention,
        teacher: LayerAttention,
        alignment: Alignment,
        compare: AttentionComparison,
        weights_T: Tensor,
        chunk_queries: int,
    ) -> tuple[Tensor, Tensor]:
        device, dtype = query_HTD.device, wide(query_HTD.dtype)
        gradients = _Gradients.zeros(student) if any(ctx.needs_input_grad[:3]) else None
        readings_T5 = torch.zeros(alignment.num_tokens, 5, dtype=dtype, device=device)
        # Weights relative to the largest keep float16 products in range; the largest comes back in `backward`.
        largest = weights_T.abs().max() if weights_T.numel() else weights_T.new_ones(())
        relative_T = weights_T / torch.where(largest > 0, largest, 1)
        on_device = alignment.to(device)
        for start in range(0, alignment.num_tokens, chunk_queries):
            chunk = _Chunk.of(slice(start, start + chunk_queries), student, teacher, alignment, on_device)
            attention, readings_T5[chunk.rows], centred_CS, step_C = chunk.compare(student, teacher, compare)
            if gradients is not None:
                gradients.add(chunk, student, attention, centred_CS, step_C, relative_T)
            del attention, centred_CS  # before the next chunk needs their place
        ctx.save_for_backward(*(gradients or (None, None, None)), weights_T, largest)
        ctx.dtypes = (query_HTD.dtype, key_KSD.dtype, None if sinks_H is None else sinks_H.dtype)
        ctx.mark_non_differentiable(readings_T5)
        return (weights_T * readings_T5[:, 0]).sum(), readings_T5

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query_HTD, key_KSD, sinks_H, weights_T, largest = ctx.saved_tensors
        factors = (grad_outputs[0] * weights_T[:, None], grad_outputs[0] * largest, grad_outputs[0] * largest)
        gradients = [
            None if gradient is None else (gradient * factor).to(dtype)
            for gradient, factor, dtype in zip((query_HTD, key_KSD, sinks_H), factors, ctx.dtypes, strict=True)
        ]
        return *gradients, *(None,) * 6


class _Gradients(NamedTuple):
    """Of a step's unweighted loss with respect to its query; of the relatively weighted loss to keys and sinks."""

    query_HTD: Tensor
    key_KSD: Tensor
    sinks_H: Tensor | None

    @classmethod
    def zeros(cls, student: LayerAttention) -> "_Gradients":
        def zeros(tensor: Tensor) -> Tensor:
            return torch.zeros_like(tensor, dtype=wide(tensor.dtype))

        sinks_H = None if student.sinks_H is None else zeros(student.sinks_H)
        return cls(zeros(student.query_HTD), zeros(student.key_KSD), sinks_H)

    def add(
        self,
        chunk: "_Chunk",
        student: LayerAttention,
        attention: "_SoftmaxRows",
        centred_CS: Tensor,
        step_C: Tensor,
        relative_T: Tensor,
    ) -> None:
        """Add a chunk's part; the attention's buffer is consumed."""
        grad_score_HCS, grad_sink_HC = _softmax_backward(attention, centred_CS, step_C)
        num_heads, num_key_heads = student.query_HTD.shape[0], student.key_KSD.shape[0]
        grad_grouped = _group_heads(grad_score_HCS.mul_(student.scaling), num_key_heads)
        span = slice(*chunk.student_span)
        self.query_HTD[:, chunk.rows] = _bmm(grad_grouped, student.key_KSD[:, span]).view(
            num_heads, -1, student.query_HTD.shape[2]
        )
        weighted_HCD = student.query_HTD[:, chunk.rows] * relative_T[chunk.rows, None]
        weighted = _group_heads(weighted_HCD.to(student.query_HTD.dtype), num_key_heads)
        self.key_KSD[:, span] += _bmm(grad_grouped.transpose(1, 2), weighted)
        if self.sinks_H is not None and grad_sink_HC is not None:
            self.sinks_H.add_(grad_sink_HC @ relative_T[chunk.rows])


class _Chunk(NamedTuple):
    """A few consecutive steps, and what they can see."""

    rows: slice
    student_span: "_KeyRange"
    teacher_span: "_KeyRange"
    student_query_C: Tensor
    teacher_query_C: Tensor
    student_shared_J: Tensor
    teacher_shared_J: Tensor
    in_prompt_J: Tensor
    solution: Tensor

    @classmethod
    def of(
        cls, rows: slice, student: LayerAttention, teacher: LayerAttention, alignment: Alignment, on_device: Alignment
    ) -> "_Chunk":
        """`alignment` is read on the host, `on_device` holds the same indices beside the model's tensors."""
        student_span = _KeyRange.of(alignment.student_query[rows], student.sliding_window)
        teacher_span = _KeyRange.of(alignment.teacher_query[rows], teacher.sliding_window)
        # Positions increase, so what no row of this chunk can see yet is a tail of the shared list.
        reach = int(torch.searchsorted(alignment.student_shared, student_span.stop))
        return cls(
            rows,
            student_span,
            teacher_span,
            on_device.student_query[rows],
            on_device.teacher_query[rows],
            on_device.student_shared[:reach],
            on_device.teacher_shared[:reach],
            on_device.in_prompt[:reach],
            on_device.solution,
        )

    def compare(
        self, student: LayerAttention, teacher: LayerAttention, compare: AttentionComparison
    ) -> tuple["_SoftmaxRows", Tensor, Tensor, Tensor]:
        """The student's attention, the readings [C, 5], and of the module's formula c [C, S] and 1/(H·m) [C]."""
        seen_CJ = visible(self.student_query_C, self.student_shared_J, student.sliding_window)
        seen_CJ &= visible(self.teacher_query_C, self.teacher_shared_J, teacher.sliding_window)
        teacher_rows = _softmax_rows(teacher, self.rows, self.teacher_query_C, self.teacher_span)
        teacher_CS = teacher_rows.probability_HCS.mean(0)
        del teacher_rows
        teacher_CJ = self.teacher_span.gather(teacher_CS, self.teacher_shared_J) * seen_CJ
        solution_C, visible_C = self.teacher_span.gather(teacher_CS, self.solution).sum(-1), teacher_CJ.sum(-1)
        target_CJ = compare.target(teacher_CJ, solution_C, self.in_prompt_J)

        attention = _softmax_rows(student, self.rows, self.student_query_C, self.student_span)
        student_CS = attention.probability_HCS.mean(0)
        student_CJ, mass_C = projection.normalise(self.student_span.gather(student_CS, self.student_shared_J) * seen_CJ)
        usable_C = usable(mass_C, visible_C)
        divergence_C = terms(target_CJ, student_CJ, compare.divergence, compare.jsd_beta).sum(-1)
        divergence_C = torch.where(usable_C, divergence_C, 0)
        readings_C5 = make_readings(divergence_C, student_CJ, target_CJ, visible_C, solution_C)

        slope_CJ = slope(target_CJ, student_CJ, compare.divergence, compare.jsd_beta)
        centred_CJ = (slope_CJ - (slope_CJ * student_CJ).sum(-1, keepdim=True)) * seen_CJ
        num_heads = attention.probability_HCS.shape[0]
        step_C = torch.where(usable_C, 1 / (num_heads * mass_C.clamp_min(projection.LEAST_MASS)), 0)
        return attention, readings_C5, self.student_span.scatter(centred_CJ, self.student_shared_J), step_C


class _KeyRange(NamedTuple):
    """The keys [start, stop) that a chunk's queries can see at all."""

    start: int
    stop: int

    @classmethod
    def of(cls, query_C: Tensor, window: int | None) -> "_KeyRange":
        first, last = int(query_C[0]), int(query_C[-1])
        return cls(0 if window is None else max(0, first - window + 1), last + 1)

    def gather(self, row_CS: Tensor, position_J: Tensor) -> Tensor:
        """Entries at absolute positions; 0 outside the span."""
        local_J = position_J - self.start
        inside_J = (local_J >= 0) & (local_J < self.stop - self.start)
        return row_CS[:, torch.where(inside_J, local_J, 0)] * inside_J

    def scatter(self, value_CJ: Tensor, position_J: Tensor) -> Tensor:
        """The transpose of `gather`; positions are distinct."""
        local_J = position_J - self.start
        inside_J = (local_J >= 0) & (local_J < self.stop - self.start)
        row_CS = value_CJ.new_zeros(value_CJ.shape[0], self.stop - self.start)
        return row_CS.index_add_(1, torch.where(inside_J, local_J, 0), value_CJ * inside_J)


class _SoftmaxRows(NamedTuple):
    probability_HCS: Tensor
    sink_HC: Tensor | None
    tanh_HCS: Tensor | None


def _softmax_rows(role: LayerAttention, rows: slice, query_position_C: Tensor, span: _KeyRange) -> _SoftmaxRows:
    """Every head's attention over the span, in one buffer."""
    num_heads, num_key_heads = role.query_HTD.shape[0], role.key_KSD.shape[0]
    query_grouped = _group_heads(role.query_HTD[:, rows], num_key_heads)
    key_KDS = role.key_KSD[:, span.start : span.stop].transpose(1, 2)
    score_HCS = _bmm(query_grouped, key_KDS).view(num_heads, -1, span.stop - span.start).mul_(role.scaling)
    tanh_HCS = None
    if role.softcap is not None:
        tanh_HCS = score_HCS.div_(role.softcap).tanh_()
        score_HCS = tanh_HCS * role.softcap
    key_position_S = torch.arange(span.start, span.stop, device=score_HCS.device)
    visible_CS = visible(query_position_C, key_position_S, role.sliding_window)
    score_HCS.masked_fill_(~visible_CS, -torch.inf)
    largest_HC1 = score_HCS.amax(-1, keepdim=True)
    if role.sinks_H is None:
        score_HCS.sub_(largest_HC1).exp_()
        return _SoftmaxRows(score_HCS.div_(score_HCS.sum(-1, keepdim=True)), None, tanh_HCS)
    sinks_H11 = role.sinks_H.to(score_HCS.dtype)[:, None, None]
    largest_HC1 = torch.maximum(largest_HC1, sinks_H11)
    sink_HC1 = (sinks_H11 - largest_HC1).exp()
    score_HCS.sub_(largest_HC1).exp_()
    total_HC1 = score_HCS.sum(-1, keepdim=True) + sink_HC1
    return _SoftmaxRows(score_HCS.div_(total_HC1), (sink_HC1 / total_HC1)[..., 0], tanh_HCS)


def _softmax_backward(attention: _SoftmaxRows, centred_CS: Tensor, step_C: Tensor) -> tuple[Tensor, Tensor | None]:
    """d ℓ / d (raw scores) [H, C, S], in the attention's own buffer, and d ℓ / d (sink logits) [H, C]."""
    probability_HCS = attention.probability_HCS
    pull_HC = torch.einsum("hcs,cs->hc", probability_HCS, centred_CS)
    grad_sink_HC = None if attention.sink_HC is None else -attention.sink_HC * pull_HC * step_C
    grad_score_HCS = probability_HCS.mul_(centred_CS - pull_HC[..., None]).mul_(step_C[:, None])
    if attention.tanh_HCS is not None:
        grad_score_HCS.mul_(1 - attention.tanh_HCS.square())
    return grad_score_HCS, grad_sink_HC


def _group_heads(heads_HCX: Tensor, num_key_heads: int) -> Tensor:
    """[H, C, X] → [K, (H/K)·C, X]: the query heads of one key head as more rows of one matrix product."""
    return heads_HCX.reshape(num_key_heads, -1, heads_HCX.shape[-1])


def _bmm(left: Tensor, right: Tensor) -> Tensor:
    """Batched matrix product in at least float32; on a GPU with operands of `right`'s or `left`'s low precision."""
    low = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
    dtype = wide(low)
    if left.is_cuda and low != dtype:
        return torch.bmm(left.to(low), right.to(low), out_dtype=dtype)
    return torch.bmm(left.to(dtype), right.to(dtype))
