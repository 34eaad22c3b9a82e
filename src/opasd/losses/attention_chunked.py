"""The attention loss of one rollout, a few steps at a time in plain PyTorch, with its gradient.

`opasd.losses.attention` has the formulas and the shapes. The functions without underscore serve the definition too.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from opasd.choices import Handling, check_choice, check_positive
from opasd.losses import projection
from opasd.losses.divergence import DivergenceFormulas, entropy
from opasd.losses.inputs import LayerAttention
from opasd.losses.numerics import needs_gradient, relative_weights, weighted_loss, wide
from opasd.prompts.alignment import Alignment

Pair = tuple[Tensor, Tensor]
"""The student's and the teacher's."""


@dataclass(frozen=True)
class AttentionComparison:
    """How a student's attention row is compared with a teacher's, both restricted to the support."""

    formulas: DivergenceFormulas
    jsd_beta: float
    handling: Handling
    permutation_J: Tensor | None = None
    """The rollout's own permutation of the shared positions, if `handling` is shuffle."""

    def __post_init__(self) -> None:
        check_positive("jsd_beta", self.jsd_beta, below=1)
        check_choice("handling", self.handling, Handling)


def visible(query_position_T: Tensor, key_position_J: Tensor, window: int | None) -> Tensor:
    """Return which keys a query sees [T, J]: earlier ones, within the sliding window if there is one."""
    distance_TJ = query_position_T[:, None] - key_position_J
    visible_TJ = distance_TJ >= 0
    return visible_TJ if window is None else visible_TJ & (distance_TJ < window)


def seen_by_both(queries: Pair, keys: Pair | Tensor, windows: tuple[int | None, int | None]) -> Tensor:
    """Return which positions both roles' queries of a step see [T, J]; their sliding windows end at other ones."""
    student_TJ, teacher_TJ = map(visible, queries, keys, windows)
    return student_TJ & teacher_TJ


def usable(student_mass_T: Tensor, teacher_mass_T: Tensor) -> Tensor:
    """Return at which steps both roles look at the support at all; NaN counts as usable, so that it shows."""
    return ~((student_mass_T < projection.LEAST_MASS) | (teacher_mass_T < projection.LEAST_MASS))


def make_readings(
    divergence_C: Tensor, student_CJ: Tensor, target_CJ: Tensor, visible_C: Tensor, solution_C: Tensor, parts_C2: Tensor
) -> Tensor:
    """Return the fields of `AttentionLossOutput` after the loss, in their order [C, 7]; `parts_C2` are the last two."""
    solution_mass_C = solution_C / (solution_C + visible_C).clamp_min(projection.LEAST_MASS)
    columns = (divergence_C, solution_mass_C, visible_C, entropy(student_CJ), entropy(target_CJ))
    return torch.cat([torch.stack(columns, -1), parts_C2], -1)


def template_and_first(alignment: Alignment, compared_CJ: Tensor, left_out_CX: Tensor) -> Tensor:
    """Return which share of its attention on all shared positions a role gives template tokens and the first [C, 2].

    Its attention on those that are compared, or the first J of them, and on those left out is not normalised.
    """
    mass_CM = torch.cat([compared_CJ, left_out_CX], -1)
    position_M = torch.cat([alignment.student_shared[: compared_CJ.shape[1]], alignment.left_out[0]])
    kinds_M2 = torch.stack([torch.isin(position_M, alignment.template), position_M == 0], -1).to(mass_CM.dtype)
    return (mass_CM @ kinds_M2) / mass_CM.sum(-1, keepdim=True).clamp_min(projection.LEAST_MASS)


def chunked_loss(
    student: LayerAttention,
    teacher: LayerAttention,
    alignment: Alignment,
    comparison: AttentionComparison,
    weights_T: Tensor,
    chunk_queries: int,
) -> tuple[Tensor, Tensor]:
    """Return the weighted loss of one rollout, and its readings [T, 7]; the alignment is on the CPU."""
    inputs = (student.query_HTD, student.key_KSD, student.sinks_H)
    gradients = _Gradients.zeros(student) if any(map(needs_gradient, inputs)) else None
    student, formulas, beta = student.detach(), comparison.formulas, comparison.jsd_beta
    on_device = alignment.to(weights_T.device)
    relative_T, unit = relative_weights(weights_T)
    readings_T7 = weights_T.new_zeros(alignment.num_tokens, 7)
    with torch.no_grad():
        for start in range(0, alignment.num_tokens, chunk_queries):
            chunk = _Chunk(slice(start, start + chunk_queries), student, teacher, alignment, on_device)
            target_CJ, visible_C, solution_C, parts_C2 = chunk.target(teacher, comparison)
            attention = _softmax_rows(student, chunk.rows, chunk.student_query_C, chunk.student_keys)
            student_CJ = chunk.student_keys.gather(attention.probability_HCS.mean(0), chunk.student_shared_J)
            student_CJ, mass_C = projection.normalise(student_CJ * chunk.seen_CJ)
            usable_C = usable(mass_C, visible_C)
            divergence_C = torch.where(usable_C, formulas.terms(target_CJ, student_CJ, beta).sum(-1), 0)
            readings_T7[chunk.rows] = make_readings(
                divergence_C, student_CJ, target_CJ, visible_C, solution_C, parts_C2
            )
            if gradients is not None:
                slope_CJ = formulas.slope(target_CJ, student_CJ, beta)
                centred_CJ = (slope_CJ - (slope_CJ * student_CJ).sum(-1, keepdim=True)) * chunk.seen_CJ
                centred_CS = chunk.student_keys.scatter(centred_CJ, chunk.student_shared_J)
                num_heads = len(student.query_HTD)
                step_C = torch.where(usable_C, 1 / (num_heads * mass_C.clamp_min(projection.LEAST_MASS)), 0)
                gradients.add(chunk, student, attention, centred_CS, step_C, relative_T)
            del attention  # before the next chunk allocates its own
    factors = (weights_T[:, None], unit, unit)
    loss = weighted_loss(weights_T, readings_T7[:, 0], inputs, gradients or (None, None, None), factors)
    return loss, readings_T7


class _Gradients(NamedTuple):
    """Gradients of each step's own loss to its query, and of the relatively weighted loss to keys and sinks."""

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
        """Add a chunk's part, with c and 1/(H·m) of the formula; this overwrites the attention's buffer."""
        grad_score_HCS, grad_sink_HC = _softmax_backward(attention, centred_CS, step_C)
        num_heads, num_key_heads = student.query_HTD.shape[0], student.key_KSD.shape[0]
        grad_grouped = _group_heads(grad_score_HCS.mul_(student.scaling), num_key_heads)
        keys = slice(*chunk.student_keys)
        self.query_HTD[:, chunk.rows] = _bmm(grad_grouped, student.key_KSD[:, keys]).view(
            num_heads, -1, student.query_HTD.shape[2]
        )
        weighted_HCD = student.query_HTD[:, chunk.rows] * relative_T[chunk.rows, None]
        weighted = _group_heads(weighted_HCD.to(student.query_HTD.dtype), num_key_heads)
        self.key_KSD[:, keys] += _bmm(grad_grouped.transpose(1, 2), weighted)
        if self.sinks_H is not None:
            self.sinks_H.add_(grad_sink_HC @ relative_T[chunk.rows])


class _Chunk:
    """A few consecutive steps, and the positions they can see."""

    def __init__(
        self, rows: slice, student: LayerAttention, teacher: LayerAttention, alignment: Alignment, on_device: Alignment
    ) -> None:
        """`alignment` is read on the host, `on_device` holds the same indices beside the model's tensors."""
        self.rows = rows
        self.student_keys = _KeyRange.of(alignment.student_query[rows], student.sliding_window)
        self.teacher_keys = _KeyRange.of(alignment.teacher_query[rows], teacher.sliding_window)
        # Positions increase, so the positions that no row of this chunk sees are a tail of the shared list.
        reach = int(torch.searchsorted(alignment.student_shared, self.student_keys.stop))
        self.student_query_C, self.teacher_query_C = on_device.student_query[rows], on_device.teacher_query[rows]
        self.student_shared_J = on_device.student_shared[:reach]
        self.teacher_shared_J = on_device.teacher_shared[:reach]
        self.alignment, self.in_prompt_J = on_device, on_device.in_prompt[:reach]
        queries = self.student_query_C, self.teacher_query_C
        windows = student.sliding_window, teacher.sliding_window
        self.seen_CJ = seen_by_both(queries, (self.student_shared_J, self.teacher_shared_J), windows)
        self.seen_CX = seen_by_both(queries, on_device.left_out, windows)

    def target(self, teacher: LayerAttention, comparison: AttentionComparison) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the teacher's target [C, J], its attention on the support and on the solution [C], and the shares of
        template tokens and of the first [C, 2]."""
        attention = _softmax_rows(teacher, self.rows, self.teacher_query_C, self.teacher_keys)
        teacher_CS = attention.probability_HCS.mean(0)
        del attention
        teacher_CJ = self.teacher_keys.gather(teacher_CS, self.teacher_shared_J) * self.seen_CJ
        left_out_CX = self.teacher_keys.gather(teacher_CS, self.alignment.left_out[1]) * self.seen_CX
        solution_C = self.teacher_keys.gather(teacher_CS, self.alignment.solution).sum(-1)
        target_CJ = projection.target(
            teacher_CJ, solution_C, self.in_prompt_J, comparison.handling, comparison.permutation_J
        )
        parts_C2 = template_and_first(self.alignment, teacher_CJ, left_out_CX)
        return target_CJ, teacher_CJ.sum(-1), solution_C, parts_C2


class _KeyRange(NamedTuple):
    """The keys start … stop − 1: those that some query of a chunk sees."""

    start: int
    stop: int

    @classmethod
    def of(cls, query_C: Tensor, window: int | None) -> "_KeyRange":
        first, last = int(query_C[0]), int(query_C[-1])
        return cls(0 if window is None else max(0, first - window + 1), last + 1)

    def gather(self, row_CS: Tensor, position_J: Tensor) -> Tensor:
        """Return the entries at absolute positions; 0 outside the range."""
        index_J, inside_J = self._index(position_J)
        return row_CS[:, index_J] * inside_J

    def scatter(self, value_CJ: Tensor, position_J: Tensor) -> Tensor:
        """Return the transpose of `gather`; positions are distinct."""
        index_J, inside_J = self._index(position_J)
        row_CS = value_CJ.new_zeros(value_CJ.shape[0], self.stop - self.start)
        return row_CS.index_add_(1, index_J, value_CJ * inside_J)

    def _index(self, position_J: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions counted from the start, 0 for those outside; and whether each is inside."""
        index_J = position_J - self.start
        inside_J = (index_J >= 0) & (index_J < self.stop - self.start)
        return torch.where(inside_J, index_J, 0), inside_J


class _SoftmaxRows(NamedTuple):
    """Every head's attention over a range of keys, and what its backward pass needs."""

    probability_HCS: Tensor
    sink_HC: Tensor
    tanh_HCS: Tensor | None


def _softmax_rows(role: LayerAttention, rows: slice, query_position_C: Tensor, keys: _KeyRange) -> _SoftmaxRows:
    """Return every head's attention over the keys, in one buffer."""
    num_heads, num_key_heads = role.query_HTD.shape[0], role.key_KSD.shape[0]
    query_grouped = _group_heads(role.query_HTD[:, rows], num_key_heads)
    key_KDS = role.key_KSD[:, keys.start : keys.stop].transpose(1, 2)
    score_HCS = _bmm(query_grouped, key_KDS).view(num_heads, -1, keys.stop - keys.start).mul_(role.scaling)
    tanh_HCS = None
    if role.softcap is not None:
        tanh_HCS = score_HCS.div_(role.softcap).tanh_()
        score_HCS = tanh_HCS * role.softcap
    key_position_S = torch.arange(keys.start, keys.stop, device=score_HCS.device)
    visible_CS = visible(query_position_C, key_position_S, role.sliding_window)
    score_HCS.masked_fill_(~visible_CS, -torch.inf)
    # Without a sink, its logit is −∞ and its share exactly 0.
    sinks_H11 = score_HCS.new_full((1,), -torch.inf) if role.sinks_H is None else role.sinks_H.to(score_HCS.dtype)
    sinks_H11 = sinks_H11[:, None, None]
    largest_HC1 = torch.maximum(score_HCS.amax(-1, keepdim=True), sinks_H11)
    sink_HC1 = (sinks_H11 - largest_HC1).exp()
    score_HCS.sub_(largest_HC1).exp_()
    total_HC1 = score_HCS.sum(-1, keepdim=True) + sink_HC1
    return _SoftmaxRows(score_HCS.div_(total_HC1), (sink_HC1 / total_HC1)[..., 0], tanh_HCS)


def _softmax_backward(attention: _SoftmaxRows, centred_CS: Tensor, step_C: Tensor) -> tuple[Tensor, Tensor]:
    """Return d ℓ / d (raw scores) [H, C, S], in the attention's own buffer, and d ℓ / d (sink logits) [H, C]."""
    probability_HCS = attention.probability_HCS
    pull_HC = torch.einsum("hcs,cs->hc", probability_HCS, centred_CS)
    grad_sink_HC = -attention.sink_HC * pull_HC * step_C
    grad_score_HCS = probability_HCS.mul_(centred_CS - pull_HC[..., None]).mul_(step_C[:, None])
    if attention.tanh_HCS is not None:
        grad_score_HCS.mul_(1 - attention.tanh_HCS.square())
    return grad_score_HCS, grad_sink_HC


def _group_heads(heads_HCX: Tensor, num_key_heads: int) -> Tensor:
    """[H, C, X] → [K, (H/K)·C, X]: the query heads of one key head as more rows of one matrix product."""
    return heads_HCX.reshape(num_key_heads, -1, heads_HCX.shape[-1])


def _bmm(left: Tensor, right: Tensor) -> Tensor:
    """Return a batched product in at least float32; a GPU multiplies operands of the lower of both precisions."""
    low = min(left.dtype, right.dtype, key=lambda dtype: dtype.itemsize)
    dtype = wide(low)
    if left.is_cuda and low != dtype:
        return torch.bmm(left.to(low), right.to(low), out_dtype=dtype)
    return torch.bmm(left.to(dtype), right.to(dtype))
