"""The tokens that each step of a response needs: character spans of question and response become token positions."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple

from opasd.data.made.needs import Characters, Need
from opasd.prompts.contexts import PromptPair

Decode = Callable[[list[int]], str]
"""Token ids to text, every token of it: `tokenizer.decode` without cleaning up and with special tokens."""


class NeededStep(NamedTuple):
    """One token of a response, and the positions in the student's context that hold what it copies."""

    token: int
    """t, counted from the response's first token; its attention row is that of `Alignment.student_query[t]`."""
    copied: range
    """The copied text, as positions of the student's context."""
    statement: range
    """The whole statement around it."""


def needed_steps(
    pair: PromptPair, completion_ids: Sequence[int], needs: Sequence[Need], decode: Decode
) -> list[NeededStep]:
    """Return the steps of a response whose needs in the question's text are known.

    `needs` are those of the text `decode(completion_ids)`. A tokenizer that does not give the question back gives none.
    """
    if not needs:
        return []
    question_ids = [pair.student_ids[position] for position in pair.student_question]
    ends = _ends(question_ids, decode)
    before = decode(question_ids).find(pair.problem.question)
    if before < 0:
        return []
    response_ends = _ends(completion_ids, decode)

    def positions(span: Characters) -> range:
        first = pair.student_question.start + bisect_right(ends, before + span[0])
        return range(first, pair.student_question.start + bisect_left(ends, before + span[1]) + 1)

    return [
        NeededStep(bisect_right(response_ends, index), positions(span), positions(statement))
        for index, span, statement in needs
    ]


def _ends(ids: Sequence[int], decode: Decode) -> list[int]:
    """Return the length of the text up to each token's end; some tokenizers decode a token by those before it."""
    ends: list[int] = []
    for index in range(len(ids)):
        before = list(ids[max(index - 4, 0) : index])
        ends.append((ends[-1] if ends else 0) + len(decode([*before, ids[index]])) - len(decode(before)))
    return ends
