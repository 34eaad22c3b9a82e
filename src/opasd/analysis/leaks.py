"""Leaks: answers that speak of what only the teacher sees.

The token loss teaches what the teacher would say, and one with a solution in view may say "as the reference solution
shows"; so may its student then, who has none. Counted is an answer with a telltale phrase: two neighbouring words of
five letters or more that stand in the teacher's wording and nowhere in the student's.
"""

import re
from itertools import pairwise

from opasd.config import PromptConfig

LONG = 5
_BREAK = re.compile(r"\{[^{}]*\}|[^\w\s]|[\d_]")


def telltales(prompts: PromptConfig) -> frozenset[tuple[str, str]]:
    """The phrases that tell of the teacher's context."""
    told = f"{prompts.student}\n{prompts.instruction}\n{prompts.system or ''}"
    return frozenset(_phrases(f"{prompts.teacher}\n{prompts.reference}") - _phrases(told))


def leak_pattern(prompts: PromptConfig) -> re.Pattern[str] | None:
    """What finds a leak in a text; None where the teacher's wording has no such phrase."""
    phrases = [rf"{re.escape(one)}\s+{re.escape(other)}" for one, other in sorted(telltales(prompts))]
    return re.compile(rf"\b(?:{'|'.join(phrases)})\b", re.IGNORECASE) if phrases else None


def _phrases(text: str) -> set[tuple[str, str]]:
    parts = (part.casefold().split() for part in _BREAK.split(text))
    return {(one, other) for words in parts for one, other in pairwise(words) if min(len(one), len(other)) >= LONG}
