"""The wording of a role: a format string of the configuration, checked once and filled in one pass.

Values stay literal: braces inside a problem are text. A filled wording knows the character span of each field, so that
no later code has to search for it.
"""

import string
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import NamedTuple, Self

from opasd.config import PromptConfig
from opasd.config.method import REFERENCE_FIELDS, shown_fields
from opasd.errors import ConfigError

Span = tuple[int, int]


@dataclass(frozen=True)
class Message:
    """A filled wording and the span of each of its fields."""

    text: str
    spans: Mapping[str, Span]


@dataclass(frozen=True)
class Wording:
    """A format string in pieces: literal text and the name of the field that follows it, if any."""

    pieces: tuple[tuple[str, str | None], ...]

    @classmethod
    def parse(cls, key: str, text: str, *, once: Set[str], optional: Set[str] = frozenset()) -> Self:
        """Parse the wording under `key`; it must have each field of `once` once, and it may have `optional` ones."""
        fields = ", ".join(f"{{{field}}}" for field in sorted(once | optional))
        try:
            parsed = list(string.Formatter().parse(text))
        except ValueError as error:
            raise ConfigError(f"{key} is not a format string: {error}; write a literal brace twice") from error
        for _, field, spec, conversion in parsed:
            if field is not None and (field not in once | optional or spec or conversion):
                raise ConfigError(
                    f"{key} has an unknown field: got {{{field}{'!' + conversion if conversion else ''}"
                    f"{':' + spec if spec else ''}}}; use {fields}, and write a literal brace twice"
                )
        names = [field for _, field, _, _ in parsed]
        for field in sorted(once):
            if (count := names.count(field)) != 1:
                raise ConfigError(f"{key} must have {{{field}}} once: got it {count} times; its fields are {fields}")
        return cls(tuple((literal, field) for literal, field, _, _ in parsed))

    @property
    def literal(self) -> str:
        """The text outside the fields."""
        return "".join(literal for literal, _ in self.pieces)

    def fill(self, values: Mapping[str, str]) -> Message:
        """Return the wording with the value of each field."""
        text, spans = "", {}
        for literal, field in self.pieces:
            text += literal
            if field is not None:
                spans[field] = (len(text), len(text) + len(values[field]))
                text += values[field]
        return Message(text, spans)


class Wordings(NamedTuple):
    """The wordings of a configuration."""

    student: Wording
    teacher: Wording
    references: Mapping[str, Wording]
    """By their keys: `reference`, and `attention_reference` if there is one."""

    @classmethod
    def of(cls, config: PromptConfig) -> Self:
        """Parse and check the wordings."""
        return cls(
            Wording.parse("prompts.student", config.student, once={"question"}, optional={"instruction"}),
            Wording.parse("prompts.teacher", config.teacher, once={"question", "reference"}, optional={"instruction"}),
            {key: _reference(f"prompts.{key}", text) for key, text in config.references().items()},
        )

    def literals(self) -> dict[str, str]:
        """Return the text outside the fields, by the key of its wording."""
        wordings = {"student": self.student, "teacher": self.teacher, **self.references}
        return {key: wording.literal for key, wording in wordings.items()}


def _reference(key: str, text: str) -> Wording:
    shown = shown_fields(text)
    return Wording.parse(key, text, once=shown, optional=REFERENCE_FIELDS - shown)
