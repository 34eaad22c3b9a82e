"""The objective of a minibatch: λ_tok · token loss + λ_attn · attention loss (Algorithm 1).

A rollout's loss is the mean over its tokens; the minibatch's is the mean over its rollouts. A rollout of no tokens is
not counted. A loss whose weight is 0 is not computed.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from opasd.config import AttentionLossConfig, ObjectiveConfig, TokenLossConfig
from opasd.device import send
from opasd.errors import ConfigError, NonFiniteError
from opasd.losses import fused
from opasd.losses.attention import AttentionLossOutput, attention_loss, attention_losses
from opasd.losses.inputs import LayerBatch
from opasd.losses.token import OutputHead, token_loss
from opasd.model.scoring import ScoreBatch, Scores
from opasd.prompts.alignment import Alignment, align
from opasd.prompts.rollout import Rollout


@dataclass(frozen=True)
class Readings:
    """What was measured on one rollout, per token, without gradient; empty where a loss was not computed."""

    rollout_id: str
    token: dict[str, Tensor]
    """`loss` (after clipping), `divergence`, `clipped`, `student_entropy`; each [T]."""
    attention: dict[str, Tensor]
    """`divergence`, `solution_mass`, `visible_mass`, `student_entropy`, `teacher_entropy`; each [T]."""


@dataclass(frozen=True)
class LossOutput:
    """`loss` is what to differentiate; `metrics` are means over tokens, then rollouts."""

    loss: Tensor
    metrics: dict[str, float]
    readings: list[Readings]


def opasd_loss(
    rollouts: Sequence[Rollout],
    student: Sequence[Scores],
    teacher: Sequence[Scores],
    student_head: OutputHead,
    teacher_head: OutputHead,
    config: ObjectiveConfig,
    *,
    num_rollouts: float | None = None,
) -> LossOutput:
    """The loss of some rollouts of a minibatch.

    `num_rollouts` is what to divide by where these are one part of the minibatch (gradient accumulation, many
    processes): the parts' losses then add up to the minibatch's. By default these are all of it.
    """
    _refuse_mismatch([*_forwards(student), *_forwards(teacher)], config)
    counted = [index for index, rollout in enumerate(rollouts) if rollout.num_tokens > 0]
    share = 1 / (num_rollouts or max(len(counted), 1))
    lengths = [rollout.num_tokens for rollout in rollouts]
    # Every rollout's mean over its tokens, and their share of the minibatch's mean.
    weights_T = torch.cat([torch.full((n,), share / max(n, 1), dtype=torch.float64) for n in lengths or [0]])
    loss = _connected_zero(student)
    weights_T = send(weights_T, loss.device)
    alignments: list[Alignment] = []
    if config.attention_weight > 0:
        support, query = config.attention.support, config.attention.query
        alignments = [align(rollout.pair, rollout.num_tokens, support=support, query=query) for rollout in rollouts]
    _refuse_non_finite(rollouts, student, teacher)  # waits for the device: the host's part is done before it
    columns: dict[str, Tensor] = {}
    if config.token_weight > 0 and counted:
        part, found = _token_part(student, teacher, student_head, teacher_head, config.token, weights_T)
        loss = loss + config.token_weight * part
        columns |= {f"token/{name}": values_T for name, values_T in found.items()}
    if config.attention_weight > 0 and counted:
        part, found = _attention_part(rollouts, student, teacher, alignments, config.attention, weights_T)
        loss = loss + config.attention_weight * part
        columns |= {f"attention/{name}": values_T for name, values_T in found.items()}
    metrics = _metrics(rollouts, loss, columns, weights_T)
    return LossOutput(loss, metrics, _readings(rollouts, columns))


def check_kernels(config: ObjectiveConfig, device: torch.device) -> None:
    """Refuse a loss whose `impl: fused` cannot run on `device`."""
    for name, weight, loss in (
        ("token", config.token_weight, config.token),
        ("attention", config.attention_weight, config.attention),
    ):
        if weight > 0 and loss.impl == "fused" and not fused.available(device):
            missing = "" if fused.installed() else ", and Triton is not installed"
            raise ConfigError(
                f"objective.{name}.impl: fused needs Triton and a CUDA device, and the model is on {device.type}"
                f"{missing}; use auto, which takes the fastest that can run"
            )


def _token_part(
    student: Sequence[Scores],
    teacher: Sequence[Scores],
    student_head: OutputHead,
    teacher_head: OutputHead,
    config: TokenLossConfig,
    weights_T: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """All rollouts' tokens in one call: chunks are filled whatever the rollouts' lengths."""
    output = token_loss(
        _hidden(student), student_head, _hidden(teacher), teacher_head, weights_T=weights_T, **config.model_dump()
    )
    names = ("loss", "divergence", "clipped", "student_entropy")
    return output.loss, dict(zip(names, output[1:], strict=True))


def _hidden(scores: Sequence[Scores]) -> Tensor:
    return scores.hidden_TE if isinstance(scores, ScoreBatch) else torch.cat([score.hidden_TE for score in scores])


def _attention_part(
    rollouts: Sequence[Rollout],
    student: Sequence[Scores],
    teacher: Sequence[Scores],
    alignments: Sequence[Alignment],
    config: AttentionLossConfig,
    weights_T: Tensor,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean of the layers' losses, and of their readings."""
    options = config.model_dump(exclude={"layers", "support", "query", "shuffle_seed"})
    # A permutation of the rollout's own, whatever batch it is in.
    options["shuffle_seeds"] = [config.shuffle_seed + zlib.crc32(rollout.id.encode()) for rollout in rollouts]
    if isinstance(student, ScoreBatch) and isinstance(teacher, ScoreBatch):
        layers = zip(student.layers, teacher.layers, strict=True)
        outputs = [
            attention_losses(mine, theirs, alignments, weights_T=weights_T, **options) for mine, theirs in layers
        ]
        loss = torch.stack([output.loss for output in outputs]).mean()
        readings = [output[1:] for output in outputs]
    else:
        loss, readings = _attention_one_by_one(student, teacher, alignments, weights_T, options)
    names = ("divergence", "solution_mass", "visible_mass", "student_entropy", "teacher_entropy")
    means = (torch.stack(columns).mean(0) for columns in zip(*readings, strict=True))
    return loss, dict(zip(names, means, strict=True))


def _attention_one_by_one(
    student: Sequence[Scores],
    teacher: Sequence[Scores],
    alignments: Sequence[Alignment],
    weights_T: Tensor,
    options: dict[str, Any],
) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """The mean of the layers' losses and each layer's readings, of rollouts that did not share a forward."""
    seeds = options.pop("shuffle_seeds")
    weights = weights_T.split([alignment.num_tokens for alignment in alignments])
    by_layer: list[list[AttentionLossOutput]] = [[] for _ in student[0].layers]
    for mine, theirs, alignment, part_T, seed in zip(student, teacher, alignments, weights, seeds, strict=True):
        for outputs, left, right in zip(by_layer, mine.layers, theirs.layers, strict=True):
            outputs.append(attention_loss(left, right, alignment, weights_T=part_T, shuffle_seed=seed, **options))
    loss = torch.stack([torch.stack([output.loss for output in outputs]).sum() for outputs in by_layer]).mean()
    return loss, [
        tuple(torch.cat(column) for column in zip(*(output[1:] for output in outputs), strict=True))
        for outputs in by_layer
    ]


def _connected_zero(student: Sequence[Scores]) -> Tensor:
    """0, with every parameter behind the hidden states in its graph: distributed training needs them there."""
    if isinstance(student, ScoreBatch):
        return student.hidden_BNE[:, :1].sum(dtype=torch.float32) * 0
    sums = [scores.hidden_TE.sum(dtype=torch.float32) for scores in student]
    return torch.stack(sums).sum() * 0 if sums else torch.zeros(())


def _forwards(scores: Sequence[Scores]) -> Sequence[Scores | ScoreBatch]:
    """What has layers and queries of its own: one forward for all rollouts, or each rollout's scores."""
    return [scores] if isinstance(scores, ScoreBatch) else scores


def _refuse_mismatch(scores: Sequence[Scores | ScoreBatch], config: ObjectiveConfig) -> None:
    """Scores that were taken for another objective."""
    if config.attention_weight == 0:
        return
    if any(len(score.layers) != config.attention.layers for score in scores):
        raise ConfigError(
            f"the attention loss needs {config.attention.layers} captured layers; make the Scorer with that many"
        )
    if any(score.query != config.attention.query for score in scores):
        raise ConfigError(
            f"the scores' attention rows are not those of attention.query: {config.attention.query}; score with it"
        )


def _refuse_non_finite(rollouts: Sequence[Rollout], student: Sequence[Scores], teacher: Sequence[Scores]) -> None:
    """One look at everything the models gave, before anything is made of it."""
    batches = [scores for scores in (student, teacher) if isinstance(scores, ScoreBatch)]
    if len(batches) == 2:
        tensors = [tensor for batch in batches for tensor in (batch.hidden_BNE, *_queries_and_keys(batch.layers))]
        if all(torch.stack([tensor.detach().isfinite().all() for tensor in tensors]).tolist()):
            return
    places: list[tuple[str, str]] = []
    flags: list[Tensor] = []
    for rollout, mine, theirs in zip(rollouts, student, teacher, strict=True):
        for role, scores in (("student", mine), ("teacher", theirs)):
            found = [("hidden states", scores.hidden_TE)]
            for layer in scores.layers:
                found += [("attention queries", layer.query_HTD), ("attention keys", layer.key_KSD)]
            for what, tensor in found:
                places.append((rollout.id, f"{role}'s {what}"))
                flags.append(tensor.detach().isfinite().all())
    if not flags:
        return
    bad = [place for place, finite in zip(places, torch.stack(flags).tolist(), strict=True) if not finite]
    if bad:
        rollout_id, what = bad[0]
        others = sorted({other for other, _ in bad} - {rollout_id})
        also = f" (and in {', '.join(others[:5])})" if others else ""
        raise NonFiniteError(
            f"NaN or infinity in the {what} of rollout {rollout_id}{also}; lower the learning rate, or train in "
            "bfloat16 or float32 if this is float16"
        )


def _queries_and_keys(layers: Sequence[LayerBatch]) -> list[Tensor]:
    return [tensor for layer in layers for tensor in (layer.query_BHND, layer.key_BKND)]


def _metrics(
    rollouts: Sequence[Rollout], loss: Tensor, columns: dict[str, Tensor], weights_T: Tensor
) -> dict[str, float]:
    """Means over tokens, then rollouts, named as they are logged; one transfer from the device."""
    sums = [loss.detach().to(torch.float64).reshape(1)]
    if columns:
        columns_TC = torch.stack([values_T.to(torch.float64) for values_T in columns.values()], -1)
        sums.append(weights_T @ columns_TC)
    numbers = torch.cat(sums).tolist()
    if not all(map(math.isfinite, numbers[1:])):
        for rollout, part in zip(rollouts, _readings(rollouts, columns), strict=True):
            for group, values in (("token", part.token), ("attention", part.attention)):
                for name, values_T in values.items():
                    if not bool(values_T.isfinite().all()):
                        raise NonFiniteError(
                            f"NaN or infinity in the {group}/{name} of rollout {rollout.id}; is the output head finite?"
                        )
    return dict(zip(("loss", *columns), numbers, strict=True))


def _readings(rollouts: Sequence[Rollout], columns: dict[str, Tensor]) -> list[Readings]:
    """Each rollout's part of the columns."""
    lengths = [rollout.num_tokens for rollout in rollouts]
    split = {name: values_T.split(lengths) for name, values_T in columns.items()}
    found = []
    for index, rollout in enumerate(rollouts):
        groups: dict[str, dict[str, Tensor]] = {"token": {}, "attention": {}}
        for name, parts in split.items():
            group, _, reading = name.partition("/")
            groups[group][reading] = parts[index]
        found.append(Readings(rollout.id, **groups))
    return found
