"""The objective of a minibatch: λ_tok · token loss + λ_attn · attention loss (Algorithm 1).

A rollout's loss is the mean over its tokens; the minibatch's is the mean over its rollouts. A rollout of no tokens is
not counted. A loss whose weight is 0 is not computed.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from opasd.alignment import Alignment, align
from opasd.config import AttentionLossConfig, ObjectiveConfig, TokenLossConfig
from opasd.errors import ConfigError, NonFiniteError
from opasd.losses.attention import attention_loss
from opasd.losses.token import OutputHead, token_loss
from opasd.rollout import Rollout
from opasd.scoring import Scores


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
    _refuse_mismatch([*student, *teacher], config)
    counted = [index for index, rollout in enumerate(rollouts) if rollout.num_tokens > 0]
    share = 1 / (num_rollouts or max(len(counted), 1))
    _refuse_non_finite(rollouts, student, teacher)
    loss = _connected_zero(student)
    token_readings: list[dict[str, Tensor]] = [{} for _ in rollouts]
    attention_readings: list[dict[str, Tensor]] = [{} for _ in rollouts]
    if config.token_weight > 0 and counted:
        part, token_readings = _token_part(rollouts, student, teacher, student_head, teacher_head, config.token, share)
        loss = loss + config.token_weight * part
    if config.attention_weight > 0:
        for index in counted:
            rollout, attention = rollouts[index], config.attention
            alignment = align(rollout.pair, rollout.num_tokens, support=attention.support, query=attention.query)
            part, attention_readings[index] = _attention_part(
                rollout, alignment, student[index], teacher[index], attention, share
            )
            loss = loss + config.attention_weight * part
    readings = [
        Readings(rollout.id, token, attention)
        for rollout, token, attention in zip(rollouts, token_readings, attention_readings, strict=True)
    ]
    return LossOutput(loss, _metrics(loss, readings, share), readings)


def _token_part(
    rollouts: Sequence[Rollout],
    student: Sequence[Scores],
    teacher: Sequence[Scores],
    student_head: OutputHead,
    teacher_head: OutputHead,
    config: TokenLossConfig,
    share: float,
) -> tuple[Tensor, list[dict[str, Tensor]]]:
    """All rollouts' tokens in one call: chunks are filled whatever the rollouts' lengths."""
    lengths = [rollout.num_tokens for rollout in rollouts]
    weights_T = torch.cat([torch.full((n,), share / max(n, 1), dtype=torch.float64) for n in lengths])
    output = token_loss(
        torch.cat([scores.hidden_TE for scores in student]),
        student_head,
        torch.cat([scores.hidden_TE for scores in teacher]),
        teacher_head,
        weights_T=weights_T,
        **config.model_dump(),
    )
    columns = {
        "loss": output.loss_T,
        "divergence": output.divergence_T,
        "clipped": output.clipped_T,
        "student_entropy": output.student_entropy_T,
    }
    split = {name: column.split(lengths) for name, column in columns.items()}
    return output.loss, [{name: parts[index] for name, parts in split.items()} for index in range(len(rollouts))]


def _attention_part(
    rollout: Rollout,
    alignment: Alignment,
    student: Scores,
    teacher: Scores,
    config: AttentionLossConfig,
    share: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The mean of the layers' losses, and of their readings."""
    options = config.model_dump(exclude={"layers", "support", "query", "shuffle_seed"})
    # A permutation of the rollout's own, whatever batch it is in.
    seed = config.shuffle_seed + zlib.crc32(rollout.id.encode())
    weights_T = torch.full((rollout.num_tokens,), share / rollout.num_tokens, dtype=torch.float64)
    outputs = [
        attention_loss(mine, theirs, alignment, weights_T=weights_T, shuffle_seed=seed, **options)
        for mine, theirs in zip(student.layers, teacher.layers, strict=True)
    ]
    loss = torch.stack([output.loss for output in outputs]).mean()
    names = ("divergence", "solution_mass", "visible_mass", "student_entropy", "teacher_entropy")
    means = (torch.stack(columns).mean(0) for columns in zip(*(output[1:] for output in outputs), strict=True))
    return loss, dict(zip(names, means, strict=True))


def _connected_zero(student: Sequence[Scores]) -> Tensor:
    """0, with every parameter behind the hidden states in its graph: distributed training needs them there."""
    sums = [scores.hidden_TE.sum(dtype=torch.float32) for scores in student]
    return torch.stack(sums).sum() * 0 if sums else torch.zeros(())


def _refuse_mismatch(scores: Sequence[Scores], config: ObjectiveConfig) -> None:
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


def _metrics(loss: Tensor, readings: Sequence[Readings], share: float) -> dict[str, float]:
    """Means over tokens, then rollouts, named as they are logged; one transfer from the device."""
    sums: dict[str, Tensor] = {"loss": loss.detach()}
    finite: dict[tuple[str, str], Tensor] = {}
    for reading in readings:
        for group in ("token", "attention"):
            for name, values_T in getattr(reading, group).items():
                if values_T.numel():
                    mean, key = values_T.mean(), f"{group}/{name}"
                    sums[key] = sums.get(key, torch.zeros_like(mean)) + mean * share
                    finite[reading.rollout_id, key] = mean.isfinite()
    numbers = torch.stack([value.to(torch.float64) for value in (*sums.values(), *finite.values())]).tolist()
    for (rollout_id, key), is_finite in zip(finite, numbers[len(sums) :], strict=True):
        if not is_finite:
            raise NonFiniteError(f"NaN or infinity in the {key} of rollout {rollout_id}; is the output head finite?")
    return dict(zip(sums, numbers, strict=False))
