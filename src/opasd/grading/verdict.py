r"""Is a completion's answer right? The last \boxed{…} after the thinking block, against the known answer.

`boxed_answer` and `quick_verdict` are in-process, deterministic and linear in time, safe on anything a model may write:
training and validation use them alone (`is_correct`). What needs algebra, √12 = 2√3, they leave open, and
`evaluation.grader` decides it in worker processes.
"""

import re
from typing import Literal, get_args

from opasd.grading.equality import bare, choice, equal, tidy

AnswerKind = Literal["integer", "expression", "choice"]
"""What a benchmark asks for: a whole number, anything mathematical (or a word), or one letter."""

Verdict = Literal["correct", "wrong", "no_answer", "truncated", "grader_failed"]
"""`no_answer`: no box after the thinking. `truncated`: neither, and the completion was cut at its longest.
`grader_failed`: a box whose comparison was killed or crashed. Only `correct` counts as right."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
LONGEST_READ = 1 << 20
"""How many characters of an answer are looked at, from its end: more than any budget of tokens writes."""

_BRACE = re.compile(r"\\(?:boxed|fbox)\s*\{|\\\\(?!boxed|fbox)|\\[{}]|[{}]")
_INTEGER = re.compile(r"[-+]?\d+", re.ASCII)


def boxed_answer(text: str) -> str | None:
    """What stands in the last whole box of the answer proper; None where there is none."""
    # A thinking block that was opened and never closed is no answer either.
    answer = text.rpartition("</think>")[2].partition("<think>")[0][-LONGEST_READ:]
    if "box" not in answer:
        return None
    opened: list[int | None] = []  # where the box of each open brace begins, if it is a box's
    start = end = -1
    for match in _BRACE.finditer(answer):
        brace = match.group()
        if brace == "{":
            opened.append(None)
        elif len(brace) > 2:
            opened.append(match.end())
        elif brace == "}" and opened:
            box = opened.pop()
            if box is not None and box > start:
                start, end = box, match.start()
    return answer[start:end].strip() if end >= 0 else None


def quick_verdict(found: str, answer: str, kind: AnswerKind = "expression") -> bool | None:
    """Whether a boxed answer equals the known one, as text or as numbers; None where only algebra can tell."""
    if kind == "choice":
        wanted = choice(tidy(answer[:LONGEST_READ]))
        return wanted is not None and choice(tidy(found[:100])) == wanted
    return equal(answer, found, lambda gold, mine: False if kind == "integer" and _no_sum(mine) else None)


def _no_sum(text: str) -> bool:
    """Whether a text that is no number has no digit either, and so is no integer in another form."""
    return not any(character.isdigit() for character in text)


def is_correct(text: str, answer: str) -> bool:
    """Whether the boxed answer equals the known one without algebra; an empty one is never right."""
    found = boxed_answer(text)
    return found is not None and quick_verdict(found, answer) is True


def same_answer_key(found: str) -> str:
    """Answers with the same key vote as one in Maj@k."""
    text = bare(tidy(found[:LONGEST_READ]))
    return str(int(text)) if len(text) < 100 and _INTEGER.fullmatch(text) else text
