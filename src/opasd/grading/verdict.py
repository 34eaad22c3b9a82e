r"""Is a completion's answer right? The last \boxed{…} after the thinking block is compared with the known answer.

`boxed_answer` and `quick_verdict` run in this process. They are deterministic, linear in time and safe on anything that
a model may write; training and validation use them alone (`is_correct`). They leave open what needs algebra, √12 = 2√3,
which `grading.pool` decides in worker processes.
"""

import re
from typing import Literal, get_args

from opasd.grading.equality import equal
from opasd.grading.tidying import bare, tidy
from opasd.grading.words import choice

AnswerKind = Literal["integer", "expression", "choice"]
"""What a benchmark asks for: a whole number, anything mathematical (or a word), or one letter."""

Verdict = Literal["correct", "wrong", "no_answer", "truncated", "grader_failed"]
"""`no_answer`: no box after the thinking. `truncated`: the same, of a completion that was cut at its longest.
`grader_failed`: there is a box, but its comparison was killed or crashed. Only `correct` counts as right."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LONGEST_READ = 1 << 20
"""How many characters of an answer are read, from its end: more than any budget of tokens writes."""

_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)


def boxed_answer(text: str) -> str | None:
    """Return the content of the last whole box after the thinking; None if there is no box."""
    # A thinking block that was opened and never closed is no answer either.
    answer = text.rpartition("</think>")[2].partition("<think>")[0][-LONGEST_READ:]
    if "box" not in answer:
        return None
    box_starts: list[int | None] = []  # by open brace: where its box begins, if it is a box's
    start = end = -1
    for match in _BRACE.finditer(answer):
        brace = match.group()
        if brace == "{":
            box_starts.append(None)
        elif len(brace) > 2:
            box_starts.append(match.end())
        elif brace == "}" and box_starts:
            box_start = box_starts.pop()
            if box_start is not None and box_start > start:
                start, end = box_start, match.start()
    return answer[start:end].strip() if end >= 0 else None


def quick_verdict(answer: str, gold: str, kind: AnswerKind = "expression") -> bool | None:
    """Return whether a boxed answer equals the known one, as text or as numbers; None if only algebra can say."""
    if kind == "choice":
        letter = choice(tidy(gold[:LONGEST_READ]))
        return letter is not None and choice(tidy(answer[:100])) == letter
    # With a digit it may be an integer in another form, such as 2^5.
    return equal(gold, answer, lambda _, value: None if kind != "integer" or any(map(str.isdigit, value)) else False)


def is_correct(text: str, gold: str) -> bool:
    """Return whether the boxed answer equals the known one without algebra; an empty answer is never right."""
    answer = boxed_answer(text)
    return answer is not None and quick_verdict(answer, gold) is True


def same_answer_key(answer: str) -> str:
    """Return a text that answers share if they vote as one in Maj@k."""
    text = bare(tidy(answer[:LONGEST_READ]))
    return str(int(text)) if len(text) < 100 and _INTEGER.fullmatch(text) else text
