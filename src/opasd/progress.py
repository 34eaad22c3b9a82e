"""Show progress on standard error: one line, redrawn on a terminal and printed now and then in a log. Imports no torch.

    line = StatusLine(terminal_every=1, log_every=60)
    if line.due():
        line.show("3 of 8 runs")        # replaces the line shown before
    line.say("first: trained in 2:05")  # stays
    line.clear()                        # or line.end(), which leaves the last line

`with_progress` counts the items of a loop, `SampleProgress` the samples of an evaluation.
"""

import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

_ERASE = "\r\x1b[K"
_lost: list[OSError] = []
"""Why nothing more can be shown: the terminal was closed, or the reader of a pipe has ended."""

T = TypeVar("T")


class StatusLine:
    """One line. `due` keeps the seconds between two of them: on a terminal, in a log, and before the first."""

    def __init__(self, *, terminal_every: float = 0.0, log_every: float = 0.0, delay: float | None = None) -> None:
        self._terminal_every = terminal_every
        self._log_every = log_every
        self._next = time.monotonic() + (self._interval() if delay is None else delay)
        self._drawn = False

    def due(self) -> bool:
        """Return whether it is time to show a line again, and start the next interval if so."""
        now = time.monotonic()
        if now < self._next:
            return False
        self._next = now + self._interval()
        return True

    def show(self, text: str) -> None:
        """Redraw the line on a terminal; print it in a log."""
        if not sys.stderr.isatty():
            say(text)
            return
        # A wrapped line could not be redrawn.
        width = shutil.get_terminal_size().columns - 1
        _write(f"{_ERASE}{text[:width]}")
        self._drawn = True

    def show_parts(self, parts: Sequence[tuple[str, int]]) -> None:
        """Show parts in a line; a narrow terminal leaves out those of the highest rank, and 0 always stays."""
        self.show("  ".join(fitted(parts, shutil.get_terminal_size().columns - 1 if sys.stderr.isatty() else None)))

    def say(self, text: str) -> None:
        """Print a line that stays, in place of the drawn one."""
        self.clear()
        say(text)

    def clear(self) -> None:
        """Erase the drawn line."""
        self._finish(_ERASE)

    def end(self) -> None:
        """Leave the drawn line as the last one shown."""
        self._finish("\n")

    def _finish(self, ending: str) -> None:
        if self._drawn:
            _write(ending)
            self._drawn = False

    def _interval(self) -> float:
        return self._terminal_every if sys.stderr.isatty() else self._log_every


class SampleProgress(StatusLine):
    """A line that shows how many samples exist, how fast they are drawn, and the time left."""

    def __init__(self) -> None:
        super().__init__(log_every=15.0, delay=0.0)
        self.begin(0, 0)

    def begin(self, total: int, done: int) -> None:
        """Start to count: `done` of `total` samples exist."""
        self._total, self._done = total, done
        self._new_samples = self._new_tokens = 0
        self._seconds = 0.0
        if done:
            self.say(f"{done} of {total} samples are there already")

    def skip(self, samples: int) -> None:
        """Count samples that need not be drawn."""
        self._done += samples

    def advance(self, label: str, samples: int, tokens: int, seconds: float) -> None:
        """Count a group that took `seconds`; `label` says what was sampled."""
        self._done += samples
        self._total = max(self._total, self._done)  # whole groups may be more than a process's share
        self._new_samples += samples
        self._new_tokens += tokens
        self._seconds += seconds
        if not self.due() and self._done < self._total:
            return
        left = (self._total - self._done) * self._seconds / max(self._new_samples, 1)
        filled = int(20 * self._done / max(self._total, 1))
        speed = self._new_tokens / max(self._seconds, 1e-9)
        self.show(
            f"{'█' * filled}{'·' * (20 - filled)} {self._done:,}/{self._total:,}  {speed:,.0f} tokens/s  "
            f"left {clock(left)}  {label}"
        )


def with_progress(label: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the items, and show how many have been taken once this has lasted five seconds."""
    line = StatusLine(terminal_every=0.5, log_every=15.0, delay=5.0)
    for done, item in enumerate(items):
        if line.due():
            line.show(f"{label}: {done:,} of {len(items):,}")
        yield item
    line.clear()


def fitted(parts: Sequence[tuple[str, int]], width: int | None) -> list[str]:
    """Return the texts of the parts without those of the highest rank, until two spaces between them fit the width."""
    kept = list(parts)
    while width is not None and sum(len(text) + 2 for text, _ in kept) - 2 > width:
        worst = max(rank for _, rank in kept)
        if worst == 0:
            break
        kept.pop(max(index for index, (_, rank) in enumerate(kept) if rank == worst))
    return [text for text, _ in kept]


def say(text: str) -> None:
    """Print one line on standard error."""
    _write(f"{text}\n")


def output_is_lost() -> bool:
    """Return whether a line could not be shown: the terminal was closed, or the reader of the pipe has ended."""
    return bool(_lost)


def _write(text: str) -> None:
    """Show a text; if no one can read it any more, go on without."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError as error:
        _lost.append(error)
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (it is used until the process ends)


def clock(seconds: float) -> str:
    """Return `m:ss`, or `h:mm:ss` from an hour on."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
