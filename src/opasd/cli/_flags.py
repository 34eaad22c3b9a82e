"""Fields of a model as flags of a command. The model alone says which there are, what they mean and what they accept.

    add_flags(parser, EvaluateConfig, ["samples", "thinking"])      # --samples N, --thinking, --no-thinking
    config = read_flags(parser.parse_args(args), EvaluateConfig)

A list is given as `--budgets A,B`; its flag may be repeated.
"""

import argparse
from collections.abc import Callable, Iterable
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from opasd.config import Section
from opasd.errors import ConfigError
from opasd.recipes.checking import AnySection, explain

_METAVARS = {int: "N", float: "X"}


def add_flags(parser: Any, section: type[Section], names: Iterable[str]) -> None:
    """Add a flag for each named field, which is optional or a list, to a parser or a group of its arguments."""
    for name in names:
        field = section.model_fields[name]
        kind = next(part for part in get_args(field.annotation) if part is not NoneType)
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": (field.description or "").replace("%", "%%")}
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
    wanted = f"a number from {low} to {high}" if high is not None else f"a whole number of at least {low}"

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and low <= int(text[:20]) <= (high or 10**18)):
            raise argparse.ArgumentTypeError(f"expected {wanted}, got {text!r:.40}")
        return int(text)

    return parse


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
