"""Epistemic markers: the ten words by which the paper counts uncertainty, reconsideration and self-verification.

They are a proxy for how a model talks, not a measure of its uncertainty. Densities are pooled: all occurrences in a
group of responses over all its tokens, per 1,000.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

MARKERS = ("wait", "hmm", "perhaps", "maybe", "actually", "alternatively", "seems", "might", "likely", "check")
_WORD = re.compile(rf"\b(?:{'|'.join(MARKERS)})\b", re.IGNORECASE)
_ASCII = re.compile(_WORD.pattern, re.ASCII)
Group = TypeVar("Group", bound=Hashable)


class Counted(NamedTuple):
    """A response: its markers, its length and what is known of it."""

    markers: Mapping[str, int]
    tokens: int
    correct: bool | None = None
    step: int | None = None

    @property
    def total(self) -> int:
        return sum(self.markers.values())


def count_markers(text: str) -> Counter[str]:
    """How often each marker stands in `text` as a whole word, in any case."""
    if text.isascii():  # the same, several times faster: responses are long and many
        return Counter(_ASCII.findall(text.lower()))
    return Counter(match.group().casefold() for match in _WORD.finditer(text))


def density(responses: Iterable[Counted]) -> float | None:
    """Markers per 1,000 response tokens; None without a token."""
    return _per_1000((found.total, found.tokens) for found in responses)


def density_by(responses: Iterable[Counted], group: Callable[[Counted], Group]) -> dict[Group, float]:
    """The density of each group, such as `lambda found: found.correct` or `lambda found: found.step`."""
    groups: defaultdict[Group, list[Counted]] = defaultdict(list)
    for found in responses:
        groups[group(found)].append(found)
    densities = {name: density(members) for name, members in groups.items()}
    return {name: value for name, value in densities.items() if value is not None}


def density_by_marker(responses: Sequence[Counted]) -> dict[str, float]:
    """The density of each of the ten; they add up to the whole."""
    found = {marker: _per_1000((one.markers.get(marker, 0), one.tokens) for one in responses) for marker in MARKERS}
    return {marker: value for marker, value in found.items() if value is not None}


def mean_count(responses: Sequence[Counted]) -> float | None:
    """Markers in a response, on average."""
    return math.fsum(found.total for found in responses) / len(responses) if responses else None


def change_from(base: Sequence[Counted], responses: Sequence[Counted]) -> float | None:
    """By what part the mean count of a response grew from the base: 0.709 is 70.9 % more; None where that has none."""
    before, after = mean_count(base), mean_count(responses)
    return after / before - 1 if before and after is not None else None


def _per_1000(pairs: Iterable[tuple[int, int]]) -> float | None:
    counts, tokens = 0, 0
    for count, length in pairs:
        counts, tokens = counts + count, tokens + length
    return 1000 * counts / tokens if tokens else None
