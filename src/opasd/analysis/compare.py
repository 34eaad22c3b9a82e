"""The same problem answered by several models: where an answer leaves another one, and in what they differ."""

import re
from dataclasses import dataclass
from itertools import zip_longest

from opasd.analysis.markers import count_markers

_STEP = re.compile(r"[^\n]*?(?:[.!?](?=\s)\s*|\n+)|[^\n]+\Z")
_LONGEST = 400
"""A step without an end is cut here, so that a wall of text has steps too."""


def reasoning_steps(text: str) -> list[str]:
    """The text in sentences and lines, nothing lost: joined they are the text again."""
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
    """Characters before that step in the one answer."""
    second: int
    """Characters before that step in the other."""


def first_divergence(first: str, second: str) -> Divergence | None:
    """The first step in which two answers differ, space at a step's ends aside; None where they say the same."""
    if first.strip() == second.strip():
        return None
    before = [0, 0]
    for number, (one, other) in enumerate(zip_longest(reasoning_steps(first), reasoning_steps(second), fillvalue="")):
        if one.strip() != other.strip():
            return Divergence(number, *before)
        before = [before[0] + len(one), before[1] + len(other)]
    return None


@dataclass(frozen=True)
class Reply:
    """One model's answer to a problem."""

    text: str
    tokens: int
    correct: bool | None = None
    truncated: bool = False


@dataclass(frozen=True)
class Contrast:
    """One answer beside the reference model's."""

    divergence: Divergence | None
    tokens: int
    """How many more tokens it has."""
    markers: dict[str, int]
    """How many more of each marker it has; those that differ."""
    verdict: str
    """`gained`, `lost`, `both right`, `both wrong` or `unknown`."""


def contrast(reference: Reply, other: Reply) -> Contrast:
    """What is different in `other`."""
    before, after = count_markers(reference.text), count_markers(other.text)
    changed = {name: after[name] - before[name] for name in sorted({*before, *after}) if after[name] != before[name]}
    return Contrast(
        first_divergence(reference.text, other.text),
        other.tokens - reference.tokens,
        changed,
        _verdict(reference.correct, other.correct),
    )


def _verdict(before: bool | None, after: bool | None) -> str:
    if before is None or after is None:
        return "unknown"
    if before == after:
        return "both right" if after else "both wrong"
    return "gained" if after else "lost"
