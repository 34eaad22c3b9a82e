"""What commands print: names and texts of data, folders and servers must not steer the terminal that shows them.

with tamed():
    sys.stdout.write("a\\x1b]0;title\\x07b")    # a\\u001b]0;title\\u0007b, which JSON reads as the same text
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_REDRAW = re.compile(r"\r(?:\x1b\[K)?")
"""The start of a line that takes the place of the one before."""
_STEERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""A control character: of a terminal, or one that turns the direction of writing."""
_COLOUR = re.compile(r"(\x1b\[(?:[0-2]|3[1-6]|1;31)m)")
"""What commands colour their own words with; nothing that hides a text."""


def tame(text: str, *, colours: bool = False) -> str:
    """Return the text with control characters as \\uXXXX; line ends, tabs, a first \\r and, on demand, colours stay."""
    start = match.end() if (match := _REDRAW.match(text)) else 0
    parts = _COLOUR.split(text[start:]) if colours else [text[start:]]
    parts[::2] = [_STEERS.sub(lambda found: f"\\u{ord(found[0]):04x}", part) for part in parts[::2]]
    return text[:start] + "".join(parts)


class _Tamed:
    """A stream whose writes are tamed."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._colours = stream.isatty()

    def write(self, text: str) -> int:
        self._stream.write(tame(text, colours=self._colours))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def tamed() -> Iterator[None]:
    """Tame standard output and standard error for a while."""
    streams: dict[str, Any] = {name: getattr(sys, name) for name in ("stdout", "stderr")}
    own = {name: _Tamed(stream) for name, stream in streams.items()}
    for name, stream in own.items():
        setattr(sys, name, stream)
    try:
        yield
    finally:
        for name, stream in streams.items():
            if getattr(sys, name) is own[name]:  # a closed one was replaced
                setattr(sys, name, stream)
