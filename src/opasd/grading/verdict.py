r"""Is a completion's answer right? The last \boxed{…} after the thinking block is compared with the known answer.

`boxed_answer` and `quick_verdict` run in this process. They are deterministic, linear in time and safe on anything that
a model may write; training and validation use them alone (`is_correct`). They leave open what needs algebra, √12 = 2√3,
which `grading.pool` decides in worker processes.
"""

import re
from typing import Literal, get_args

from opasd.grading.equality import equal
from opasd.grading.reading import LONGEST_READ, boxed_answer
from opasd.grading.tidying import bare, tidy
from opasd.grading.words import choice

AnswerKind = Literal["integer", "expression", "choice"]
"""What a benchmark asks for: a whole number, anything mathematical (or a word), or one letter."""

Verdict = Literal["correct", "wrong", "no_answer", "truncated", "grader_failed"]
"""`no_answer`: no box after the thinking. `truncated`: the same, of a completion that was cut at its longest.
`grader_failed`: there is a box, but its comparison was killed or crashed. Only `correct` counts as right."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)


def quick_verdict(answer: str, gold: str, kind: AnswerKind = "expression", tolerance: float = 0.0) -> bool | None:
    """Return whether a boxed answer equals the known one, as text or as numbers; None if only algebra can say.

    `tolerance` is how far a number may be from the known one, as a share of it.
    """
    if kind == "choice":
        letter = choice(tidy(gold[:LONGEST_READ]))
        return letter is not None and choice(tidy(answer[:100])) == letter
    # With a digit it may be an integer in another form, such as 2^5.
    open_question = None if kind != "integer" else False
    return equal(
        gold, answer, lambda _, value: None if any(map(str.isdigit, value)) else open_question, tolerance=tolerance
    )


def is_correct(text: str, gold: str) -> bool:
    """Return whether the boxed answer equals the known one without algebra; an empty answer is never right."""
    answer = boxed_answer(text)
    return answer is not None and quick_verdict(answer, gold) is True


def same_answer_key(answer: str) -> str:
    """Return a text that answers share if they vote as one in Maj@k."""
    text = bare(tidy(answer[:LONGEST_READ]))
    return str(int(text)) if len(text) < 100 and _INTEGER.fullmatch(text) else text
