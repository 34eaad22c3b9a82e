"""Fields of a model as flags of a command. The model alone says which there are, what they mean and what they accept.

    add_flags(parser, EvaluateConfig, ["samples", "thinking"])      # --samples N, --thinking, --no-thinking
    config = read_flags(parser.parse_args(args), EvaluateConfig)

A list is given as `--budgets A,B`; its flag may be repeated.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from opasd.config import Section
from opasd.errors import ConfigError
from opasd.recipes.checking import AnySection, explain

_METAVARS = {int: "N", float: "X"}
NO_DEFAULTS: Mapping[str, str] = {}


def add_flags(
    parser: Any, section: type[Section], names: Iterable[str], defaults: Mapping[str, str] = NO_DEFAULTS
) -> None:
    """Add a flag for each named field, which is optional or a list, to a parser or a group of its arguments.

    `defaults` says what a field is that is not given, where something else decides that.
    """
    for name in names:
        field = section.model_fields[name]
        kind = next(part for part in get_args(field.annotation) if part is not NoneType)
        about = (field.description or "") + (f" (default: {defaults[name]})" if name in defaults else "")
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": about.replace("%", "%%")}
        if get_origin(field.annotation) is tuple:
            options |= {"action": "append", "metavar": "A,B"}
        elif kind is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(kind) is Literal:
            options["metavar"] = f"{{{','.join(get_args(kind))}}}"
        else:
            options["metavar"] = _METAVARS.get(kind, name.rpartition("_")[2].upper())
        parser.add_argument(_flag(name), **options)


def read_flags(options: argparse.Namespace, section: type[AnySection]) -> AnySection:
    """Return the section with the values of the flags that were given; name each flag with a wrong value."""
    values = {name: value for name, value in vars(options).items() if name in section.model_fields}
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = [part.strip() for text in value for part in text.split(",") if part.strip()]
    try:
        return section.model_validate(values)
    except ValidationError as error:
        lines = (line.partition(":") for line in explain(error, section))
        raise ConfigError("; ".join(f"{_flag(name)}:{text}" for name, _, text in lines)) from None


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return the type of an argument that is a whole number within bounds."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:20]) <= (high or 10**18)):
            if high is not None or (text.isascii() and text.isdigit() and int(text[:20]) > low):
                raise argparse.ArgumentTypeError(f"expected a number from {low} to {high or 10**18}, got {text!r:.40}")
            raise argparse.ArgumentTypeError(f"got {text[:40]}; give {low} or more")
        return int(text)

    return parse


process_count = whole_number(1, 1024)
"""The type of --num-processes."""


def without_flags(args: Iterable[str], flags: Iterable[str], switches: Iterable[str] = ()) -> list[str]:
    """Return the arguments without these flags and their values, and without these switches, which have no value."""
    rest, words = [], iter(args)
    for word in words:
        name, equals, _ = word.partition("=")
        name = name.replace("_", "-")
        if name in flags and not equals:
            next(words, None)
        elif name not in (*flags, *switches):
            rest.append(word)
    return rest


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
