"""Loss terms from outside: one more number for each rollout, beside the token and the attention loss.

    def brevity(batch: MicroBatch) -> tuple[Tensor, dict[str, float]]:
        return loss_R, {"length": mean_length}

    OPASDTrainer(..., loss_terms=[LossTerm("brevity", brevity, weight=0.1)])

A term is differentiable with respect to whatever it reads of the student. Its values are weighted and divided as the
package's own losses are, so that micro-batches, layouts and numbers of processes change nothing.

Shapes: R rollouts of the micro-batch, T tokens of a rollout.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from opasd.choices import LOSS_TERMS
from opasd.errors import ConfigError
from opasd.losses.inputs import ScoreBatch
from opasd.losses.likelihood import negative_log_likelihood
from opasd.losses.objective import LossOutput
from opasd.prompts.alignment import Alignment
from opasd.prompts.rollout import Rollout


@dataclass(frozen=True)
class MicroBatch:
    """What a term sees: some rollouts of a step, as both roles judge them."""

    rollouts: Sequence[Rollout]
    """The problems with their two contexts, and the sampled tokens."""
    alignments: Sequence[Alignment]
    """For each rollout, which positions both contexts share."""
    student: ScoreBatch
    """The student's hidden states, captured attention layers and output head; `student[i]` is those of rollout i.
    Gradients flow through them."""
    teacher: ScoreBatch
    """The same of the teacher, without gradients."""
    readings: Sequence[Mapping[str, Tensor]]
    """What the package's losses measured on each rollout, per token [T]: `token/…` and `attention/…`, if computed."""


Measure = Callable[[MicroBatch], Tensor | tuple[Tensor, Mapping[str, float]]]
"""Returns a loss for each rollout [R], and metrics if there are any."""


@dataclass(frozen=True)
class LossTerm:
    """A named term and its weight in the loss."""

    name: str
    measure: Measure
    weight: float = 1.0


def likelihood(batch: MicroBatch) -> Tensor:
    """Return each rollout's mean of −log p_S of its tokens."""
    return torch.stack([_likelihood(batch, index) for index in range(len(batch.rollouts))])


def rejection(batch: MicroBatch) -> tuple[Tensor, dict[str, float]]:
    """Return the same of rollouts that are right; one that is wrong, or whose verdict is not known, counts 0."""
    right = [rollout.correct is True for rollout in batch.rollouts]
    zero = batch.student.hidden_BNE.sum(dtype=torch.float32) * 0
    values = [_likelihood(batch, index) if kept else zero for index, kept in enumerate(right)]
    return torch.stack(values), {"kept": sum(right) / len(right)}


def _likelihood(batch: MicroBatch, index: int) -> Tensor:
    scores, ids = batch.student[index], batch.rollouts[index].completion_ids
    if not ids:
        return scores.hidden_TE.sum(dtype=torch.float32)
    token_T = torch.tensor(ids, device=scores.hidden_TE.device)
    return negative_log_likelihood(scores.hidden_TE, batch.student.head, token_T).mean()


_MEASURES: dict[str, Measure] = {"likelihood": likelihood, "rejection": rejection}


def register_loss_term(name: str, measure: Measure) -> None:
    """Let recipes use a term: `objective.terms: {NAME: WEIGHT}`."""
    if name in _MEASURES:
        raise ConfigError(f"there is already a loss term named {name!r}; choose another name")
    _MEASURES[name] = measure
    LOSS_TERMS.append(name)


def terms_of(weights: Mapping[str, float]) -> list[LossTerm]:
    """Return the registered terms with the weights of a configuration."""
    return [LossTerm(name, _MEASURES[name], weight) for name, weight in weights.items() if weight]


def add_terms(
    output: LossOutput, terms: Sequence[LossTerm], batch: MicroBatch, num_rollouts: float | None = None
) -> LossOutput:
    """Return the output with the terms in its loss and its metrics, as `term/NAME` and `term/NAME/METRIC`.

    `num_rollouts` is what to divide by, as in `objective_loss`. A rollout without tokens counts nothing.
    """
    counted = [rollout.num_tokens > 0 for rollout in batch.rollouts]
    share = 1 / (num_rollouts or max(sum(counted), 1))
    loss, metrics = output.loss, dict(output.metrics)
    weights_R = torch.tensor(counted, dtype=loss.dtype, device=loss.device) * share
    for term in terms:
        values_R, measured = _measured(term, batch)
        # A rollout without tokens may have no value: 0 · NaN would spoil the sum.
        value = (torch.where(weights_R > 0, values_R.to(loss), 0) * weights_R).sum()
        loss = loss + term.weight * value
        metrics[f"term/{term.name}"] = float(value.detach())
        part = share * sum(counted)  # metrics of micro-batches are added up
        metrics |= {f"term/{term.name}/{name}": float(number) * part for name, number in measured.items()}
    if terms:
        metrics["loss"] = float(loss.detach())
    return replace(output, loss=loss, metrics=metrics)


def _measured(term: LossTerm, batch: MicroBatch) -> tuple[Tensor, Mapping[str, Any]]:
    result = term.measure(batch)
    values_R, measured = result if isinstance(result, tuple) else (result, {})
    if not isinstance(values_R, Tensor) or values_R.shape != (len(batch.rollouts),):
        shape = tuple(values_R.shape) if isinstance(values_R, Tensor) else type(values_R).__name__
        raise ConfigError(
            f"loss term {term.name!r} returned {shape}; it must return a tensor with one number for each of the "
            f"{len(batch.rollouts)} rollouts, or such a tensor and a mapping of metrics"
        )
    return values_R, measured
