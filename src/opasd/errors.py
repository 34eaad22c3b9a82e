"""Errors that the input or the model causes; commands show them without a traceback.

Each also inherits the standard type that a library caller would catch. A message says what was wrong, what the program
got and what to do.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Literal


class OpasdError(Exception):
    """Any error that the input causes and not this package."""


class ConfigError(OpasdError, ValueError):
    """A configuration that cannot be run."""


class DataError(OpasdError, ValueError):
    """A data set that cannot be read, or a row that cannot be used."""


BadPrompt = Literal[
    "student_too_long", "teacher_too_long", "solution_too_long", "missing", "imitation", "template", "text"
]


class PromptError(OpasdError, ValueError):
    """A problem that cannot be made into the two roles' contexts; a report counts it under `reason`."""

    def __init__(self, message: str, reason: BadPrompt = "template") -> None:
        super().__init__(message)
        self.reason: BadPrompt = reason


class AlignmentError(OpasdError, ValueError):
    """Two contexts that do not have their common part at corresponding positions."""


class CaptureError(OpasdError, RuntimeError):
    """A model that does not show its attention or output head exactly."""


class EngineError(OpasdError, RuntimeError):
    """A rollout engine that does not answer, or that answers with other weights than the student's."""


class NonFiniteError(OpasdError, FloatingPointError):
    """NaN or infinity in a model's output; the message names the rollout."""


class Stopped(Exception):
    """A signal asked the run to stop while it sampled; it saves a checkpoint and ends."""


_SECRETS = re.compile(
    r"(?<=//|:/)(?:[^/@\s'\"]+|[^/@\s'\"]+:[^@\s'\"]+)(?=@)"  # http://name:password@host; a path has one slash
    r"|(?<!\w)(?<!//)[\w.%+-]+:(?!//)[^/@\s'\"]+(?=@[\w[])"  # name:password@host
    r"|(?<=[?&;])([\w-]*(?:key|token|secret|password)=)[^\s&;#'\"]+",  # ?api_key=…
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return the text with *** for names, passwords and keys in addresses."""
    return _SECRETS.sub(lambda found: f"{found[1] or ''}***", text)


def closest(word: str, words: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `did you mean …?` with the most similar of the words, or an empty text if none is similar."""
    matches = difflib.get_close_matches(word, list(words), 1, cutoff)
    return f"did you mean {matches[0]}?" if matches else ""


@contextmanager
def error_prefix(where: str) -> Iterator[None]:
    """Put a name, such as a file's, before the message of a ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
