"""What a user can do wrong, and what a model can do wrong: errors shown without a traceback.

Each also inherits the standard type a library caller would catch. A message says what was wrong, what was
found and what to do.
"""

from typing import Literal


class OpasdError(Exception):
    """Any error that is the input's fault and not this package's."""


class ConfigError(OpasdError, ValueError):
    """A configuration that cannot be run."""


class DataError(OpasdError, ValueError):
    """A data set that cannot be read, or a row that cannot be used."""


BadPrompt = Literal[
    "student_too_long", "teacher_too_long", "solution_too_long", "no_answer", "imitation", "template", "text"
]


class PromptError(OpasdError, ValueError):
    """A problem that cannot be rendered into the two roles' contexts; `reason` is what a report counts it under."""

    def __init__(self, message: str, reason: BadPrompt = "template") -> None:
        super().__init__(message)
        self.reason: BadPrompt = reason


class AlignmentError(OpasdError, ValueError):
    """Two contexts whose common part does not stand at corresponding positions."""


class CaptureError(OpasdError, RuntimeError):
    """A model whose attention or output head cannot be read off exactly."""


class EngineError(OpasdError, RuntimeError):
    """A rollout engine that cannot be reached, or that answers with other weights than the student's."""


class NonFiniteError(OpasdError, FloatingPointError):
    """NaN or infinity in a model's output, with the rollout in which it appeared."""
