"""Epistemic markers: the ten words by which the paper counts uncertainty, reconsideration and self-verification."""

import re
from collections import Counter

MARKERS = ("wait", "hmm", "perhaps", "maybe", "actually", "alternatively", "seems", "might", "likely", "check")
_WORD = re.compile(rf"\b(?:{'|'.join(MARKERS)})\b", re.IGNORECASE)


def count_markers(text: str) -> Counter[str]:
    """How often each marker stands in `text` as a whole word, in any case."""
    return Counter(match.group().casefold() for match in _WORD.finditer(text))
