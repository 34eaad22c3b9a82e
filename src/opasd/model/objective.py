"""From rollouts and a configuration to the teacher's scores and the arguments of the losses."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opasd.config import ObjectiveConfig
from opasd.errors import ConfigError
from opasd.losses.inputs import OutputHead, ScoreBatch
from opasd.losses.objective import LossOutput, objective_loss
from opasd.model.scoring import Scorer
from opasd.prompts.alignment import align
from opasd.prompts.rollout import Rollout


def teacher_contexts(rollout: Rollout, config: ObjectiveConfig, *, everything: bool = False) -> list[Rollout]:
    """Return the rollout after each of the teacher's contexts that is read: one for both losses, or one for each.

    A context of its own is read if its loss has a weight, or with `everything`; the token loss's comes first.
    """
    own = rollout.for_attention
    if own is rollout:
        return [rollout]
    wanted = ((rollout, config.token_weight > 0), (own, config.attends))
    return [context for context, needed in wanted if needed or everything] or [rollout]


def teacher_scores(
    scorer: Scorer, rollouts: Sequence[Rollout], config: ObjectiveConfig, *, everything: bool = False, **settings: Any
) -> ScoreBatch:
    """Return the teacher's scores: hidden states after the token loss's context, attention after the attention loss's.

    With two contexts that is two forwards; the model must compute as the teacher. `settings` are the scorer's.
    """
    contexts = [teacher_contexts(rollout, config, everything=everything) for rollout in rollouts]
    first, *second = zip(*contexts, strict=True)
    scores = scorer(first, "teacher", attention=not second, **settings)
    return replace(scores, layers=scorer(second[0], "teacher", **settings).layers) if second else scores


def loss_arguments(
    rollouts: Sequence[Rollout], config: ObjectiveConfig, *, align_always: bool = False
) -> dict[str, Any]:
    """Return the arguments of `objective_loss` that follow from the rollouts and the configuration.

    Rollouts are aligned for the attention loss, or if `align_always`.
    """
    attention = config.attention
    alignments = []
    if config.attends or align_always:
        alignments = [
            align(
                rollout.for_attention.pair,
                rollout.num_tokens,
                support=attention.support,
                query=attention.query,
                first_token=attention.first_token,
            )
            for rollout in rollouts
        ]
    return {
        "ids": [rollout.id for rollout in rollouts],
        "alignments": alignments,
        "token_weight": config.token_weight,
        "attention_weight": config.attention_weight,
        "token": config.token.model_dump(),
        "attention": attention.model_dump(
            include={"divergence", "jsd_beta", "heads", "handling", "impl", "chunk_queries"}
        ),
        "queries": attention.queries,
        "query_threshold": attention.query_threshold,
        "shuffle_seed": attention.shuffle_seed,
    }


def opasd_loss(
    rollouts: Sequence[Rollout],
    student: ScoreBatch,
    teacher: ScoreBatch,
    student_head: OutputHead,
    teacher_head: OutputHead,
    config: ObjectiveConfig,
    *,
    num_rollouts: float | None = None,
) -> LossOutput:
    """Return the loss of rollouts that a `Scorer` has scored in both roles; the heads are usually the scores' own.

    `num_rollouts` is the divisor if these rollouts are a part of the minibatch; by default they are the minibatch.
    """
    if config.attention_weight == "balanced":
        raise ConfigError("attention_weight: balanced is found in a run; give a number for one loss")
    if config.attends:
        layers, query = config.attention.layers, config.attention.query
        wanted = max(len(student.layers), 1) if layers == "all" else layers if isinstance(layers, int) else len(layers)
        if any(len(scores.layers) != wanted for scores in (student, teacher)):
            raise ConfigError(
                f"the attention loss needs {wanted} captured layers; make the Scorer with layers={layers!r}"
            )
        if any(scores.query != query for scores in (student, teacher)):
            raise ConfigError(f"the scores' attention rows are not those of attention.query: {query}; score with it")
    student, teacher = replace(student, head=student_head), replace(teacher, head=teacher_head)
    return objective_loss(student, teacher, **loss_arguments(rollouts, config), num_rollouts=num_rollouts)
