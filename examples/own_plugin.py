"""A plugin with one of everything that can be registered; docs/extending.md explains each.

opasd train lab --plugins own_plugin --objective.token.divergence hellinger --teacher.update halfway
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

import opasd
from opasd import MicroBatch, Problem
from opasd.rollout.engine import Completion, RolloutEngine, as_engine


def hellinger(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    """What each entry of the vocabulary contributes; finite and differentiable at 0."""
    return (teacher_V.clamp_min(1e-30).sqrt() - student_V.clamp_min(1e-30).sqrt()).square() / 2


def halfway(teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], step: int) -> None:
    """After every step, move the teacher's weights half of the way to the student's."""
    for name, weight in teacher.items():
        weight.lerp_(student[name].to(weight.dtype), 0.5)


def contains(problem: Problem, completion: str) -> bool:
    """Accept every completion in which the answer occurs."""
    return problem.answer is not None and problem.answer in completion


def small_states(batch: MicroBatch) -> tuple[Tensor, dict[str, float]]:
    """Punish large hidden states of the student, and log the mean length of the rollouts."""
    states = (batch.student[index].hidden_TE for index in range(len(batch.rollouts)))
    lengths = [rollout.num_tokens for rollout in batch.rollouts]
    return torch.stack([state.float().square().mean() for state in states]), {"tokens": sum(lengths) / len(lengths)}


class EchoEngine:
    """A rollout engine that repeats the end of the prompt."""

    @classmethod
    def for_training(cls, config: Any, model: Any, tokenizer: Any, *, longest: int) -> RolloutEngine:
        return as_engine(cls())

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Any, seeds: Sequence[int]) -> list[Completion]:
        return [Completion(tuple(prompt[-4:]), "length") for prompt in prompts]


opasd.register_divergence("hellinger", hellinger)
opasd.register_teacher("halfway", halfway)
opasd.register_engine("echo", "own_plugin:EchoEngine")
opasd.register_benchmark("own_sums", "sums.csv", question="frage", answer="antwort", kind="integer")
opasd.register_grader("contains", contains)
opasd.register_loss_term("small_states", small_states)
