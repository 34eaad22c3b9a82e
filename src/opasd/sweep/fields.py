"""Fields of a configuration by their dotted names: `objective.attention_weight`, also as flags and back.

settings = {"train.max_steps": 20}        what is laid over a recipe
to_flags(settings)                        ["--train.max-steps", "20"], as `opasd train` takes it
"""

import json
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from opasd.config import RunConfig, Section
from opasd.errors import ConfigError
from opasd.recipes import merged
from opasd.recipes.checking import as_section, suggestion
from opasd.recipes.reading import parse_value

Settings = Mapping[str, Any]
"""Values by dotted name."""
OURS = {"name": "runs are named by what differs", "output_dir": "runs are made in the sweep's folder, see --output"}
"""Fields that a sweep sets itself."""
NO_TEXT = ("none", "null")
"""Texts that a command line takes for no value."""


def kind_of(field: str, root: type[Section] = RunConfig, prefix: str = "") -> Any:
    """The type of a field; a name that is none is an error with a suggestion, in which `prefix` stands before names."""
    if root is RunConfig and field in OURS:
        raise ConfigError(f"{field} cannot be set in a sweep: {OURS[field]}")
    kind: Any = root
    parts = field.split(".")
    named = False  # as a key of a mapping is, which null takes away
    for place, part in enumerate(parts):
        named = get_origin(kind) is dict
        if section := as_section(kind):
            known = section.model_fields.get(part)
            if known is None:
                before = (*filter(None, [prefix.rstrip(".")]), *parts[:place])
                raise ConfigError(f"{prefix}{field}: unknown field; {suggestion(part, section, before, root)}")
            kind = known.annotation
        elif get_origin(kind) is dict and part:
            kind = get_args(kind)[1]
        else:
            raise ConfigError(f"{field}: unknown field; {'.'.join(parts[:place])} is a field without parts")
    if as_section(kind) and not named:
        raise _is_a_section(field, kind)
    if get_origin(kind) is dict:
        raise ConfigError(f"{field} is a mapping; name a key of it, such as {field}.KEY")
    return kind


def check_value(field: str, value: Any) -> None:
    """Refuse a text that `opasd train` would take for no text, and anything but null in place of a section."""
    kind = kind_of(field)
    if as_section(kind) and value is not None:
        raise _is_a_section(field, kind)
    if isinstance(value, str) and value.lower() in NO_TEXT and {str, NoneType} <= set(get_args(kind)):
        raise ConfigError(f"{field}: the text {value!r} cannot be told from null on a command line; give another text")


def _is_a_section(field: str, section: type[Section]) -> ConfigError:
    return ConfigError(f"{field} is a section; name a field of it, such as {field}.{next(iter(section.model_fields))}")


def nested(settings: Settings) -> dict[str, Any]:
    """The settings as sections inside one another."""
    found: dict[str, Any] = {}
    for field, value in settings.items():
        for part in reversed(field.split(".")):
            value = {part: value}
        found = merged(found, value)
    return found


def get(config: RunConfig, field: str) -> Any:
    """The value of a field; None where a mapping does not have the key."""
    value: Any = config
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return value


def take_flags(args: Sequence[str], roots: Mapping[str, type[Section]]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The arguments without those that set a field, and these by root: `--train.seed 1`, `--evaluate.samples 4`.

    `roots` maps a prefix ("" or "evaluate.") to the sections below it. A flag is a field's if it has a dot in it or is
    the name of a field at the top."""
    rest: list[str] = []
    found: dict[str, dict[str, Any]] = {prefix: {} for prefix in roots}
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        flag, equals, text = word.partition("=")
        prefix = max((p for p in roots if flag.startswith(f"--{p}")), key=len, default=None)
        field = _field(flag[2 + len(prefix) :], roots[prefix]) if prefix is not None and flag.startswith("--") else ""
        if prefix is None or not field or ("." not in flag and field not in roots[prefix].model_fields):
            rest.append(word)
            continue
        kind = kind_of(field, roots[prefix], prefix)
        values = [text] if equals else []
        while not equals and waiting and not waiting[0].startswith("--") and (not values or get_origin(kind) is tuple):
            values.append(waiting.pop(0))
        found[prefix][field] = _value(field, kind, values)
    return rest, found


def _field(text: str, root: type[Section]) -> str:
    """A flag's name as a field's: hyphens are underscores, except in the keys of mappings."""
    kind: Any = root
    parts = []
    for part in text.split("."):
        section = as_section(kind)
        name = part.replace("-", "_") if section else part
        parts.append(name)
        if section:
            known = section.model_fields.get(name)
            kind = known.annotation if known else None
        else:
            kind = get_args(kind)[1] if get_origin(kind) is dict else None
    return ".".join(parts)


def _value(field: str, kind: Any, texts: list[str]) -> Any:
    members = set(get_args(kind)) if get_origin(kind) in (Union, UnionType) else {kind}
    if get_origin(kind) is tuple:
        words = [part for text in texts for part in text.split(",")] if len(texts) == 1 else texts
        return [word if get_args(kind)[0] is str else parse_value(word) for word in words if word]
    if not texts:
        if bool not in members:
            raise ConfigError(f"--{field.replace('_', '-')} needs a value")
        return True
    if members - {NoneType} == {str}:
        return None if NoneType in members and texts[0] in ("null", "None", "none") else texts[0]
    return parse_value(texts[0])


def to_flags(settings: Settings) -> list[str]:
    """What `opasd train` is given to have these values."""
    words: list[str] = []
    for field, value in settings.items():
        flag = f"--{_flag(field)}"
        if isinstance(value, list | tuple):
            words += [flag, *map(str, value)]
            continue
        text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
        if isinstance(value, str) and _is_free(field) and parse_value(text) != value:
            text = json.dumps(value, ensure_ascii=False)
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words


def _flag(field: str) -> str:
    parts, kind = [], RunConfig
    for part in field.split("."):
        section = as_section(kind)
        parts.append(part.replace("_", "-") if section else part)
        kind = section.model_fields[part].annotation if section else get_args(kind)[1]
    return ".".join(parts)


def _is_free(field: str) -> bool:
    """Whether the field is a key of a mapping of plain values, whose text is read as YAML."""
    kind: Any = RunConfig
    for part in field.split(".")[:-1]:
        section = as_section(kind)
        kind = section.model_fields[part].annotation if section else get_args(kind)[1]
    return get_origin(kind) is dict
