"""Mapping ─► RunConfig: pydantic's errors as lines that name the key, the value and what to do."""

import difflib
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import ValidationError

from opasd import plugins
from opasd.config import RunConfig, Section
from opasd.errors import ConfigError, closest

AnySection = TypeVar("AnySection", bound=Section)


def to_config(values: Mapping[str, Any], where: str, *, of_run: bool = False) -> RunConfig:
    """Return the checked configuration; `where` names its origin in the message.

    Its plugins are loaded, unless it is the configuration `of_run`: a run's folder may be someone else's. Such a folder
    imports no module and trusts no model's code; whoever runs the command does, by a flag.
    """
    names = values.get("plugins")
    if not of_run:
        plugins.load(names)
        plugins.name_grader(values.get("grader"))
        return checked(RunConfig, values, where)
    if missing := [*plugins.missing(names), *plugins.unnamed_module(values.get("grader"))]:
        raise ConfigError(
            f"{where} needs the plugins {', '.join(missing)}, and a run's folder loads none; add --plugins "
            f"{' '.join(missing)} if you trust them"
        )
    return checked(RunConfig, without_trust(values), where)


def without_trust(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the values of a run's folder without its trust in the model's code."""
    model = values.get("model")
    return {**values, "model": {**model, "trust_remote_code": False}} if isinstance(model, dict) else values


_WHOLE = "the configuration"


def checked(section: type[AnySection], values: Mapping[str, Any], where: str, prefix: str = "") -> AnySection:
    """Return the section with these values; the message for wrong ones has `prefix` before each key."""
    try:
        return section.model_validate(dict(values) if isinstance(values, Mapping) else values)
    except ValidationError as error:
        lines = (f"{prefix}{line}".replace(f".{_WHOLE}:", ":") for line in explain(error, section))
        raise ConfigError(f"{where}:\n" + "\n".join(f"  {line}" for line in lines)) from None


def explain(error: ValidationError, root: type[Section] = RunConfig) -> list[str]:
    """Return one line for each wrong key."""
    by_key: dict[str, list[str]] = {}
    for fault in error.errors(include_url=False):
        keys, section, annotation = _locate(fault["loc"], root)
        line = _describe(fault, keys, section, annotation)
        lines = by_key.setdefault(".".join(keys) or _WHOLE, [])
        if line not in lines:
            lines.append(line)
    return [f"{path}: {', or '.join(lines)}" for path, lines in by_key.items()]


def leaves(root: type[Section] = RunConfig, prefix: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every key path with its type, inside sections too."""
    for name, field in root.model_fields.items():
        if section := as_section(field.annotation):
            yield from leaves(section, (*prefix, name))
        else:
            yield (*prefix, name), field.annotation


def as_section(annotation: Any) -> type[Section] | None:
    """Return the type if it is a section of a configuration, else None."""
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def types_along(parts: Sequence[str], root: type[Section] = RunConfig) -> list[Any]:
    """Return the types of the root and of each part of a key path below it; None from an unknown part on."""
    types: list[Any] = [root]
    for part in parts:
        kind = types[-1]
        if section := as_section(kind):
            known = section.model_fields.get(part)
            types.append(known.annotation if known else None)
        else:
            types.append(get_args(kind)[1] if get_origin(kind) is dict else None)
    return types


def suggestion(key: str, section: type[Section], prefix: tuple[str, ...] = (), root: type[Section] = RunConfig) -> str:
    """Return `did you mean …?` with a key of this section or of another one, or else the keys of this section."""
    if near := difflib.get_close_matches(key, section.model_fields, 1, 0.6):
        return f"did you mean {'.'.join((*prefix, near[0]))}?"
    by_name: dict[str, list[str]] = {}
    for path, _ in leaves(root):
        by_name.setdefault(path[-1], []).append(".".join(path))
    if near := difflib.get_close_matches(key, by_name, 1, 0.75):
        return f"did you mean {' or '.join(by_name[near[0]])}?"
    return f"the keys here are {', '.join(section.model_fields)}"


def _locate(loc: tuple[int | str, ...], root: type[Section]) -> tuple[tuple[str, ...], type[Section], Any]:
    """Return the key path of an error without the branches of a union, its section, and the type it should have."""
    parts = tuple(map(str, loc))
    types = [kind for kind in types_along(parts, root) if kind is not None]
    sections = [section for kind in types[: len(parts)] if (section := as_section(kind))]
    is_unknown_key = len(types) <= len(parts) and as_section(types[-1]) is not None
    return parts[: len(types) - 1 + is_unknown_key], sections[-1] if sections else root, types[-1]


def _describe(fault: Any, keys: tuple[str, ...], section: type[Section], annotation: Any) -> str:
    got = f"got {_show(fault['input'])}"
    match fault["type"]:
        case "extra_forbidden":
            return f"unknown key; {suggestion(keys[-1], section, keys[:-1])}"
        case "literal_error":
            literals = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal]
            words = [str(word) for kind in literals for word in get_args(kind)]
            hint = closest(str(fault["input"]), words, 0.5)
            return f"{got}; use one of {', '.join(words)}" + (f" ({hint})" if hint else "")
        case "value_error":
            return str(fault["msg"]).removeprefix("Value error, ")
        case "model_type" | "model_attributes_type" | "dict_type":
            inner = as_section(annotation)
            example = f", such as {next(iter(inner.model_fields))}" if inner else ""
            return f"{got}; this is a section: give `key: value` lines under it{example}"
        case "list_type" | "tuple_type":
            return f"{got}; give a list such as [a, b]"
        case _:
            wanted = str(fault["msg"]).removeprefix("Input should ").removeprefix("String should ")
            return f"{got}; it must {wanted}"


def _show(value: object) -> str:
    if value is None:
        return "nothing (null)"
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return short.repr(value)
