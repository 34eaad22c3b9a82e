"""The objective of a minibatch: λ_tok · token loss + λ_attn · attention loss (Algorithm 1).

A rollout's loss is the mean over its tokens; the minibatch's is the mean over its rollouts. A rollout without tokens is
not counted. A loss with weight 0 is not computed.

With `queries`, a rollout's attention loss is the mean over its chosen steps: those at which the student's next-token
entropy, at the token loss's temperature, or the layer's ρ is at least the threshold. A rollout without such a step
counts 0. ρ is known only after a forward of the attention loss, which runs twice then.

Shapes: T tokens of all rollouts, one after another; R rollouts.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opasd.choices import Queries
from opasd.device import send
from opasd.errors import NonFiniteError
from opasd.losses.attention import attention_losses
from opasd.losses.inputs import ScoreBatch
from opasd.losses.token import TokenLossOutput, entropies, token_loss
from opasd.prompts.alignment import Alignment

TOKEN_READINGS = (
    "loss", "divergence", "clipped", "student_entropy", "reversed", "clip_inner", "gradient_square",
)  # fmt: skip
"""`reversed` with point-wise clipping alone, the last two with clipping outside the kernels."""
ATTENTION_READINGS = (
    "divergence", "solution_mass", "visible_mass", "student_entropy", "teacher_entropy", "template_mass",
    "first_token_mass",
)  # fmt: skip
QUERY_READINGS = ("loss", "queries", "no_queries")
"""With chosen steps: a step's part of the mean over them, whether it is one, whether its rollout has none."""


@dataclass(frozen=True)
class LossOutput:
    """The loss of some rollouts, and what was measured on the way."""

    loss: Tensor
    """What to differentiate."""
    metrics: dict[str, float]
    """`loss`, and means of the readings over tokens, then rollouts."""
    readings: list[dict[str, Tensor]]
    """Each rollout's values per token [T], without gradient: `token/…` and `attention/…` of the losses computed."""


def objective_loss(
    student: ScoreBatch,
    teacher: ScoreBatch,
    *,
    ids: Sequence[str],
    alignments: Sequence[Alignment],
    token_weight: float,
    attention_weight: float,
    token: Mapping[str, Any],
    attention: Mapping[str, Any],
    queries: Queries = "all",
    query_threshold: float | None = None,
    shuffle_seed: int = 0,
    num_rollouts: float | None = None,
) -> LossOutput:
    """Return the loss of some rollouts of a minibatch.

    `ids` name the rollouts in errors and readings. `token` and `attention` are the options of `token_loss` and
    `attention_losses`; `queries` and `query_threshold` choose steps for the latter, which alone needs `alignments`.
    `num_rollouts` is the divisor if these rollouts are a part of the minibatch (micro-batches, many processes): the
    parts' losses then add up to the minibatch's. By default these rollouts are the minibatch.
    """
    lengths = student.lengths
    share = 1 / (num_rollouts or max(sum(length > 0 for length in lengths), 1))
    # Every rollout's mean over its tokens, times its share of the minibatch's mean.
    weights_T = torch.cat([torch.full((n,), share / max(n, 1), dtype=torch.float64) for n in lengths])
    weights_T = send(weights_T, student.hidden_BNE.device)
    _refuse_non_finite(ids, student, teacher)  # waits for the device, so the host's part is done before it
    # 0, with every parameter behind the hidden states in its graph: distributed training needs them there.
    loss = student.hidden_BNE[:, :1].sum(dtype=torch.float32) * 0
    columns: dict[str, Tensor] = {}
    if token_weight > 0 and any(lengths):
        output = token_loss(
            student.hidden_TE, student.head, teacher.hidden_TE, teacher.head, weights_T=weights_T, **token
        )
        loss = loss + token_weight * output.loss
        columns |= _token_columns(output, token.get("clip", "none"))
    if attention_weight > 0 and any(lengths):
        options = {"alignments": alignments, "shuffle_seeds": _seeds(ids, shuffle_seed), **attention}
        value_T = None
        if queries == "entropy":
            value_T = columns["token/student_entropy"] if token_weight > 0 else _entropy(student, token)
        losses, readings_by_layer = [], []
        for layers in zip(student.layers, teacher.layers, strict=True):
            if queries == "solution_mass":
                with torch.no_grad():
                    value_T = attention_losses(*layers, **options).solution_mass_T
            steps = _Steps.of(lengths, weights_T, value_T, query_threshold)
            output = attention_losses(*layers, weights_T=steps.weights_T, **options)
            losses.append(output.loss)
            readings_by_layer.append((*output[1:], *steps.readings(output.divergence_T, weights_T)))
        loss = loss + attention_weight * torch.stack(losses).mean()
        means = (torch.stack(layers).mean(0) for layers in zip(*readings_by_layer, strict=True))
        names = (*ATTENTION_READINGS, *QUERY_READINGS)
        columns |= {f"attention/{name}": values_T for name, values_T in zip(names, means, strict=False)}
    split = {name: values_T.split(lengths) for name, values_T in columns.items()}
    readings = [{name: values[index] for name, values in split.items()} for index in range(len(ids))]
    return LossOutput(loss, _metrics(ids, loss, columns, weights_T, readings), readings)


def _token_columns(output: TokenLossOutput, clip: str) -> dict[str, Tensor]:
    """Return the readings that this clip has, as `token/…`."""
    left_out = {"none": TOKEN_READINGS[4:], "per_token": ("reversed",)}.get(clip, ())
    named = zip(TOKEN_READINGS, output[1:], strict=True)
    return {f"token/{name}": T for name, T in named if T is not None and name not in left_out}


def _seeds(ids: Sequence[str], shuffle_seed: int) -> list[int]:
    """Return each rollout's seed of a permutation, which depends on the rollout alone, not on the batch it is in."""
    return [shuffle_seed + zlib.crc32(rollout_id.encode()) for rollout_id in ids]


class _Steps(NamedTuple):
    """The weights of the steps in the attention loss, and if some were chosen, which, and whose rollout has none."""

    weights_T: Tensor
    chosen_T: Tensor | None = None
    none_T: Tensor | None = None

    @classmethod
    def of(cls, lengths: Sequence[int], all_T: Tensor, value_T: Tensor | None, threshold: float | None) -> "_Steps":
        """Choose the steps whose value reaches the threshold, NaN too, so that it shows; they share the weight of their
        rollout. Without a value, all are chosen."""
        if value_T is None:
            return cls(all_T)
        assert threshold is not None, "queries needs a query_threshold"
        length_R = torch.tensor(lengths)
        rollout_T = send(torch.repeat_interleave(length_R), all_T.device)
        chosen_T = (~(value_T < threshold)).to(all_T)
        count_R = all_T.new_zeros(len(lengths)).index_add_(0, rollout_T, chosen_T)
        factor_R = send(length_R.to(all_T.dtype), all_T.device) / count_R.clamp_min(1)
        return cls(all_T * chosen_T * factor_R[rollout_T], chosen_T, (count_R == 0).to(all_T)[rollout_T])

    def readings(self, divergence_T: Tensor, all_T: Tensor) -> tuple[Tensor, ...]:
        """Return the columns of QUERY_READINGS, if steps were chosen."""
        if self.chosen_T is None or self.none_T is None:
            return ()
        return divergence_T * (self.weights_T / all_T), self.chosen_T, self.none_T


def _entropy(student: ScoreBatch, token: Mapping[str, Any]) -> Tensor:
    """Return the student's next-token entropies at the token loss's temperature, where that loss is not computed."""
    temperature, chunk = token.get("temperature", 1.0), token.get("chunk_tokens")
    return entropies(student.hidden_TE, student.head, temperature=temperature, chunk_tokens=chunk)


def _refuse_non_finite(ids: Sequence[str], student: ScoreBatch, teacher: ScoreBatch) -> None:
    """Look once at everything the models gave; on NaN or infinity, name the first rollout that has it."""
    batches = {"student": student, "teacher": teacher}
    tensors = [batch.hidden_BNE for batch in batches.values()]
    for layer in (*student.layers, *teacher.layers):
        tensors += layer.query_BHND, layer.key_BKND
    if all(torch.stack([tensor.detach().isfinite().all() for tensor in tensors]).tolist()):
        return
    bad: list[tuple[str, str]] = []
    for index, rollout_id in enumerate(ids):
        for role, batch in batches.items():
            scores = batch[index]
            named = [("hidden states", scores.hidden_TE)]
            for layer in scores.layers:
                named += [("attention queries", layer.query_HTD), ("attention keys", layer.key_KSD)]
            bad += [(rollout_id, f"{role}'s {name}") for name, tensor in named if not bool(tensor.isfinite().all())]
    if bad:  # else it is in padding, which no loss reads
        rollout_id, name = bad[0]
        others = sorted({other for other, _ in bad} - {rollout_id})
        also = f" (and in {', '.join(others[:5])})" if others else ""
        raise NonFiniteError(
            f"NaN or infinity in the {name} of rollout {rollout_id}{also}; lower the learning rate, or train in "
            "bfloat16 or float32 if this is float16"
        )


def _metrics(
    ids: Sequence[str],
    loss: Tensor,
    columns: dict[str, Tensor],
    weights_T: Tensor,
    readings: Sequence[dict[str, Tensor]],
) -> dict[str, float]:
    """Return means over tokens, then rollouts, named as they are logged; one transfer from the device."""
    sums = [loss.detach().to(torch.float64).reshape(1)]
    if columns:
        columns_TC = torch.stack([values_T.to(torch.float64) for values_T in columns.values()], -1)
        sums.append(weights_T @ columns_TC)
    numbers = torch.cat(sums).tolist()
    if not all(map(math.isfinite, numbers[1:])):
        for rollout_id, reading in zip(ids, readings, strict=True):
            if bad := [name for name, values_T in reading.items() if not bool(values_T.isfinite().all())]:
                raise NonFiniteError(
                    f"NaN or infinity in the {bad[0]} of rollout {rollout_id}; check that the output head is finite"
                )
    return dict(zip(("loss", *columns), numbers, strict=True))
