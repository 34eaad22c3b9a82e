"""Where two answers to the same problem part."""

import re
from dataclasses import dataclass
from itertools import zip_longest

_STEP = re.compile(r"[^\n]*?(?:[.!?](?=\s)\s*|\n+)|[^\n]+\Z")
_LONGEST = 400
"""A step without an end is cut after so many characters, so that a wall of text has steps too."""


def reasoning_steps(text: str) -> list[str]:
    """Split the text into sentences and lines; joined, they are the text again."""
    steps = []
    for match in _STEP.finditer(text):
        piece = match.group()
        steps.extend(piece[start : start + _LONGEST] for start in range(0, len(piece), _LONGEST))
    return steps


@dataclass(frozen=True)
class Divergence:
    """Where two answers part."""

    step: int
    """The first step that differs, from 0."""
    first: int
    """The number of characters before that step in the first answer."""
    second: int
    """The same in the second answer."""


def first_divergence(first: str, second: str) -> Divergence | None:
    """Return the first step in which two answers differ, ignoring space around steps; None if they say the same."""
    if first.strip() == second.strip():
        return None
    lengths = [0, 0]
    for number, steps in enumerate(zip_longest(reasoning_steps(first), reasoning_steps(second), fillvalue="")):
        if steps[0].strip() != steps[1].strip():
            return Divergence(number, *lengths)
        lengths = [length + len(step) for length, step in zip(lengths, steps, strict=True)]
    return None
