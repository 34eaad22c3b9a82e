"""What a response needs from the question, and where: known for tasks made by code."""

from typing import NamedTuple

Characters = tuple[int, int]
"""First character, and the one after the last."""


class Need(NamedTuple):
    """One step of a response: the text from `index` on is copied from the question, if the response is right."""

    index: int
    """Where in the response the copy begins."""
    span: Characters
    """The copied text in the question."""
    statement: Characters
    """The whole statement of the question around it."""
