"""Rollouts over random tokens, with contexts that overlap as a chat template's would."""

from dataclasses import replace

import torch

from opasd.data.problems import Problem
from opasd.prompts.pairs import PromptPair
from opasd.prompts.rollout import Rollout
from tests.models import VOCABULARY


def make_rollout(
    tokens: int = 9, *, problem: int = 8, solution: int = 11, student_only: int = 2, seed: int = 0, name: str = "",
    own: int = 0,
) -> Rollout:  # fmt: skip
    """[head 2 | problem | tail 3 | student_only] against [head 2 | problem | solution | tail 3], then the response.

    The first token of the tail is an instruction, the others and the head are the chat template's. With `own`, the
    attention loss has a teacher's context of its own, with a reference of so many tokens.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, VOCABULARY, (count,), generator=generator).tolist())

    head, question, block, tail, extra = draw(2), draw(problem), draw(solution), draw(3), draw(student_only)
    pair = PromptPair(
        problem=Problem("question", "solution", None, f"p{seed}"),
        student_ids=head + question + tail + extra,
        teacher_ids=head + question + block + tail,
        student_question=range(2, 2 + problem),
        teacher_question=range(2, 2 + problem),
        reference=range(2 + problem, 2 + problem + solution),
        student_template=(range(2), range(3 + problem, 5 + problem + student_only)),
    )
    completion = draw(tokens)
    if own:
        reference = range(2 + problem, 2 + problem + own)
        other = replace(pair, teacher_ids=head + question + draw(own) + tail, reference=reference)
        pair = replace(pair, attention=other)
    return Rollout(pair, completion, name or f"rollout-{seed}")


def make_rollouts(lengths: tuple[int, ...] = (9, 1, 23, 14), *, own: int = 0) -> list[Rollout]:
    return [
        make_rollout(tokens, problem=5 + seed, seed=seed, own=own and own + seed) for seed, tokens in enumerate(lengths)
    ]
