"""Leaks: answers that mention text which only the teacher sees.

The token loss teaches what the teacher would say. A teacher with a solution in view may say "as the reference solution
shows", and then its student, who has none, may say so too. An answer counts as a leak if it holds a telltale phrase:
two neighbouring words of five letters or more that occur in the teacher's wording and not in the student's.
"""

import re
from itertools import pairwise

from opasd.config import PromptConfig

LONG = 5
_BREAK = re.compile(r"\{[^{}]*\}|[^\w\s]|[\d_]")


def telltales(prompts: PromptConfig) -> frozenset[tuple[str, str]]:
    """Return the phrases that only the teacher's wording has."""
    student = f"{prompts.student}\n{prompts.instruction}\n{prompts.system or ''}"
    return frozenset(_phrases(f"{prompts.teacher}\n{prompts.reference}") - _phrases(student))


def leak_pattern(prompts: PromptConfig) -> re.Pattern[str] | None:
    """Return the pattern that finds a leak in a text; None if the teacher's wording has no telltale phrase."""
    phrases = [rf"{re.escape(first)}\s+{re.escape(second)}" for first, second in sorted(telltales(prompts))]
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE) if phrases else None


def _phrases(text: str) -> set[tuple[str, str]]:
    runs = (piece.casefold().split() for piece in _BREAK.split(text))
    return {pair for words in runs for pair in pairwise(words) if min(map(len, pair)) >= LONG}
