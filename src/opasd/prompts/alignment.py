"""Find the positions that both contexts share and those of the solution (Section 3.2, the support mismatch).

The student reads `prompt_S + ŷ`, the teacher `prompt_T + ŷ`, and the teacher's prompt has a reference block:

    question      its tokens correspond one by one
    surroundings  before and after the question, without the block: an order-preserving common subsequence
    response      token t is at len(prompt_S) + t and len(prompt_T) + t
    solution      the block's tokens; never shared, whatever their text

The chat template's tokens are the surroundings that are not text of the configuration: role headers, separators, think
tags, the template's own system prompt. The words of the message around the question, the instruction among them, and a
system prompt of `prompts.system` are content.

Tokens that only one context has (an empty think block) have no counterpart. A query sees the keys up to its position.

Shapes: T tokens of the response, J shared positions that are compared, X others, P solution positions.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import SequenceMatcher
from typing import Self

import torch
from torch import Tensor

from opasd.choices import Query, Support, check_choice
from opasd.errors import AlignmentError
from opasd.prompts.contexts import PromptPair

Matches = list[tuple[int, int]]
"""Pairs of student and teacher positions, increasing in both."""


@dataclass(frozen=True)
class Alignment:
    """The positions of one rollout in its two contexts; index tensors of type long, increasing."""

    student_shared: Tensor
    """[J] Shared positions to compare, in the student's sequence."""
    teacher_shared: Tensor
    """[J] The same positions in the teacher's sequence."""
    in_prompt: Tensor
    """[J] Whether a shared position belongs to the prompt and not to the response."""
    solution: Tensor
    """[P] The reference block in the teacher's sequence."""
    student_query: Tensor
    """[T] The position of step t's attention row; it sees the positions up to itself."""
    teacher_query: Tensor
    """[T] The same in the teacher's sequence."""
    student_length: int
    """Number of tokens of the student's prompt and the response together."""
    teacher_length: int
    """Number of tokens of the teacher's prompt and the response together."""
    left_out: Tensor = field(default_factory=lambda: torch.empty(2, 0, dtype=torch.long))
    """[2, X] Shared positions that are measured and not compared (template tokens, the first token): the student's and
    the teacher's."""
    template: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    """The chat template's tokens among all shared positions, in the student's sequence."""

    @property
    def num_tokens(self) -> int:
        """T, the number of steps."""
        return len(self.student_query)

    def visible(self) -> Tensor:
        """Return [T], the number of shared positions, from the first on, that the two queries of a step see."""
        return torch.searchsorted(self.student_shared, self.student_query, right=True)

    def to(self, device: torch.device | str) -> Self:
        """Return the same alignment with its tensors on `device`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: value.to(device) for name, value in values.items() if isinstance(value, Tensor)})


def align(
    pair: PromptPair,
    num_tokens: int,
    *,
    support: Support = "context",
    query: Query = "predicting",
    first_token: bool = True,
) -> Alignment:
    """Return the alignment of a response of `num_tokens` tokens to the problem of `pair`.

    query_t = len(prompt) − 1 + t for `predicting`, len(prompt) + t for `generated`, t = 0 … T − 1. Without
    `first_token`, the student's first position is not compared.
    """
    check_choice("support", support, Support)
    check_choice("query", query, Query)
    student_prompt, teacher_prompt = len(pair.student_ids), len(pair.teacher_ids)
    student_length, teacher_length = student_prompt + num_tokens, teacher_prompt + num_tokens
    question = list(zip(pair.student_question, pair.teacher_question, strict=False))
    prompt = _match_prompts(pair, question)
    matches = {"context": prompt, "content": prompt, "problem": question, "response": []}[support]
    template = {position for part in pair.student_template for position in part}
    unwanted = (template if support == "content" else set()) | (set() if first_token else {0})
    compared = _columns([match for match in matches if match[0] not in unwanted])
    response = torch.arange(0 if support == "problem" else num_tokens)
    lag = 1 if query == "predicting" else 0
    return Alignment(
        student_shared=torch.cat([compared[0], student_prompt + response]),
        teacher_shared=torch.cat([compared[1], teacher_prompt + response]),
        in_prompt=torch.arange(compared.shape[1] + len(response)) < compared.shape[1],
        solution=torch.arange(pair.reference.start, pair.reference.stop),
        student_query=torch.arange(student_prompt - lag, student_length - lag),
        teacher_query=torch.arange(teacher_prompt - lag, teacher_length - lag),
        student_length=student_length,
        teacher_length=teacher_length,
        left_out=_columns([match for match in matches if match[0] in unwanted]),
        template=_columns([match for match in matches if match[0] in template])[0],
    )


def _columns(matches: Matches) -> Tensor:
    """Return [2, matches]: the student's and the teacher's positions."""
    return torch.tensor(matches, dtype=torch.long).reshape(-1, 2).T.contiguous()


def _match_prompts(pair: PromptPair, question: Matches) -> Matches:
    """Return all shared positions of the two prompts."""
    students, teachers = pair.student_question, pair.teacher_question
    outside = [*range(pair.reference.start), *range(pair.reference.stop, len(pair.teacher_ids))]
    before = _common(pair, range(students.start), outside[: bisect_left(outside, teachers.start)])
    after = _common(pair, range(students.stop, len(pair.student_ids)), outside[bisect_left(outside, teachers.stop) :])
    matches = before + question + after
    _check(pair, matches)
    return matches


def _common(pair: PromptPair, students: Sequence[int], teachers: Sequence[int]) -> Matches:
    """Return the positions of a common subsequence: the common beginning, then the longest common runs of the rest."""
    student_ids = [pair.student_ids[position] for position in students]
    teacher_ids = [pair.teacher_ids[position] for position in teachers]
    different = (i for i, (a, b) in enumerate(zip(student_ids, teacher_ids, strict=False)) if a != b)
    head = next(different, min(len(students), len(teachers)))
    # A common end is not matched first: after an empty think block it would match the wrong one of two line breaks.
    runs = SequenceMatcher(None, student_ids[head:], teacher_ids[head:], autojunk=False).get_matching_blocks()
    matches = [(i, i) for i in range(head)]
    matches += [(head + s + i, head + t + i) for s, t, size in runs for i in range(size)]
    return [(students[s], teachers[t]) for s, t in matches]


def _check(pair: PromptPair, matches: Matches) -> None:
    """Check what every caller relies on: a pair may have been built by hand."""
    if len(pair.student_question) != len(pair.teacher_question):
        raise AlignmentError(
            f"problem {pair.problem.id!r}: the question has {len(pair.student_question)} tokens in the student's "
            f"context and {len(pair.teacher_question)} in the teacher's; build pairs with PromptBuilder"
        )
    for student, teacher in matches:
        if pair.student_ids[student] != pair.teacher_ids[teacher] or teacher in pair.reference:
            raise AlignmentError(
                f"problem {pair.problem.id!r}: position {student} of the student's context cannot be {teacher} of the "
                f"teacher's: token ids {pair.student_ids[student]} and {pair.teacher_ids[teacher]}, solution at "
                f"{pair.reference.start} to {pair.reference.stop}; build pairs with PromptBuilder"
            )
