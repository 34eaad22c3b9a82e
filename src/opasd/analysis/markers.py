"""Epistemic markers: the ten words by which the paper counts uncertainty, reconsideration and self-verification.

They describe how a model talks and do not measure its uncertainty. Densities are pooled: all occurrences in a group of
responses over all its tokens, per 1,000.
"""

import re
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

MARKERS = ("wait", "hmm", "perhaps", "maybe", "actually", "alternatively", "seems", "might", "likely", "check")
_WORD = re.compile(rf"\b(?:{'|'.join(MARKERS)})\b", re.IGNORECASE)
_ASCII = re.compile(_WORD.pattern, re.ASCII)


class MarkerCounts(NamedTuple):
    """The markers of one response, its length and its verdict."""

    markers: Mapping[str, int]
    tokens: int
    correct: bool | None = None
    problem: str = ""
    """The problem it answers: responses to one problem are not independent."""

    @property
    def total(self) -> int:
        return sum(self.markers.values())


LEAST = 30
"""With fewer markers in all, the base's mean count is no ground for a relative change."""


def count_markers(text: str) -> Counter[str]:
    """Count each marker in the text, as a whole word in any case."""
    if text.isascii():  # gives the same result several times faster; responses are long and many
        return Counter(_ASCII.findall(text.lower()))
    return Counter(match.group().casefold() for match in _WORD.finditer(text))


def density(responses: Iterable[MarkerCounts]) -> float | None:
    """Return the markers per 1,000 response tokens; None without a token."""
    return _per_1000((response.total, response.tokens) for response in responses)


def density_by_marker(responses: Sequence[MarkerCounts]) -> dict[str, float]:
    """Return the density of each of the ten markers; they add up to `density`."""
    densities = {
        name: _per_1000((response.markers.get(name, 0), response.tokens) for response in responses) for name in MARKERS
    }
    return {name: value for name, value in densities.items() if value is not None}


def change_from(base: Sequence[MarkerCounts], responses: Sequence[MarkerCounts]) -> float | None:
    """Return the relative change of the mean count of a response from the base: 0.709 is 70.9 % more.

    None if the base has fewer than LEAST markers in all or there are no responses."""
    before, after = ([response.total for response in group] for group in (base, responses))
    return statistics.fmean(after) / statistics.fmean(before) - 1 if sum(before) >= LEAST and after else None


def _per_1000(pairs: Iterable[tuple[int, int]]) -> float | None:
    counts, tokens = 0, 0
    for count, length in pairs:
        counts, tokens = counts + count, tokens + length
    return 1000 * counts / tokens if tokens else None
