"""Fields of a configuration by their dotted names, such as `objective.attention_weight`, and as flags.

settings = {"train.max_steps": 20}    # values by dotted name, laid over a recipe
nested(settings)                      # {"train": {"max_steps": 20}}
to_flags(settings)                    # ["--train.max-steps", "20"], as `opasd train` takes it
take_flags(args, {"": RunConfig})     # the other arguments, and such settings
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from opasd.config import RunConfig, Section
from opasd.errors import ConfigError
from opasd.recipes import merged
from opasd.recipes.checking import as_section, leaves, suggestion, types_along
from opasd.recipes.reading import parse_value

Settings = Mapping[str, Any]
"""Values by dotted name."""
SHORT_FLAGS = {
    "--model": "model.name_or_path",
    "--revision": "model.revision",
    "--data": "data.source",
    "--steps": "train.max_steps",
    "--lr": "train.learning_rate",
    "--attention-weight": "objective.attention_weight",
    "--max-new-tokens": "rollout.max_new_tokens",
    "--engine": "rollout.engine",
    "--seed": "train.seed",
    "--output": "output_dir",
}
"""Short flags of the fields that are changed first."""
WORDINGS = frozenset(
    f"prompts.{name}" for name in ("student", "teacher", "reference", "attention_reference", "instruction", "system")
)
"""Texts in which a flag may write a line break as `\\n`."""
_BOOLEAN_WORDS = ("true", "false", "null", "none")


def field_type(field: str, root: type[Section] = RunConfig, prefix: str = "") -> Any:
    """Return the type of a field that can be set; the message for a wrong name has `prefix` before names."""
    parts, types = field.split("."), types_along(field.split("."), root)
    if "" in parts:
        raise ConfigError(f"{prefix}{field}: unknown field; a part of its name is empty")
    if None in types:
        index = types.index(None) - 1
        section = as_section(types[index])
        if section is None:
            raise ConfigError(f"{field}: unknown field; {'.'.join(parts[:index])} is a field without parts")
        before = (*filter(None, [prefix.rstrip(".")]), *parts[:index])
        raise ConfigError(f"{prefix}{field}: unknown field; {suggestion(parts[index], section, before, root)}")
    # The section under a key of a mapping can be set to null, which removes the key.
    if as_section(types[-1]) and get_origin(types[-2]) is not dict:
        raise section_error(field, types[-1])
    if get_origin(types[-1]) is dict:
        raise ConfigError(f"{field} is a mapping; name a key of it, such as {field}.KEY")
    return types[-1]


def section_error(field: str, section: type[Section]) -> ConfigError:
    """Return the error of a value for a whole section."""
    return ConfigError(f"{field} is a section; name a field of it, such as {field}.{next(iter(section.model_fields))}")


def nested(settings: Settings) -> dict[str, Any]:
    """Return the settings as sections inside one another."""
    sections: dict[str, Any] = {}
    for field, value in settings.items():
        for part in reversed(field.split(".")):
            value = {part: value}
        sections = merged(sections, value)
    return sections


def value_of(config: RunConfig, field: str) -> Any:
    """Return the value of a field, None where a mapping does not have the key."""
    value: Any = config
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part)
    return value


def differing_fields(first: RunConfig, second: RunConfig) -> list[str]:
    """Return the names of the fields in which two configurations differ."""
    names = (".".join(path) for path, _ in leaves())
    return [name for name in names if value_of(first, name) != value_of(second, name)]


def take_flags(
    args: Sequence[str], roots: Mapping[str, type[Section]], own: Collection[str] = ()
) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Return the arguments without flags that set a field, and the settings of these flags by root.

    `roots` maps a prefix ("" or "evaluate.") to the section whose fields have it: `--train.seed 1` and
    `--evaluate.samples 4`. A flag sets a field if it has a dot, is the name of a field at the top or a short flag, and
    is not one of the command's `own`.
    """
    rest: list[str] = []
    settings: dict[str, dict[str, Any]] = {prefix: {} for prefix in roots}
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        flag, equals, text = word.partition("=")
        if flag in own:
            rest.append(word)
            continue
        flag = f"--{SHORT_FLAGS[flag]}" if flag in SHORT_FLAGS and "" in roots else flag
        prefix = max((prefix for prefix in roots if flag.startswith(f"--{prefix}")), key=len, default="")
        field = _field_name(flag.removeprefix(f"--{prefix}"), roots[prefix])
        if not flag.startswith("--") or not ("." in flag or field in roots[prefix].model_fields):
            rest.append(word)
            continue
        positive = re.sub(r"(^|\.)no_(\w+)$", r"\1\2", field)
        if positive != field and types_along(positive.split("."), roots[prefix])[-1] is bool and not equals:
            settings[prefix][positive] = False
            continue
        kind = field_type(field, roots[prefix], prefix)
        members = set(get_args(kind)) if get_origin(kind) in (Union, UnionType) else {kind}
        texts = [text] if equals else []
        while not equals and waiting and not waiting[0].startswith("--") and (not texts or get_origin(kind) is tuple):
            if members <= {bool, NoneType} and waiting[0].lower() not in _BOOLEAN_WORDS:
                break
            texts.append(waiting.pop(0))
        settings[prefix][field] = _parsed(field, kind, members, texts)
    return rest, settings


def _field_name(flag: str, root: type[Section]) -> str:
    """Return the flag's name with underscores for hyphens, except in the keys of mappings."""
    parts: list[str] = []
    for part in flag.split("."):
        parts.append(part.replace("-", "_") if as_section(types_along(parts, root)[-1]) else part)
    return ".".join(parts)


def _parsed(field: str, kind: Any, members: set[Any], texts: list[str]) -> Any:
    """Return the value of the words after a flag."""
    if get_origin(kind) is tuple:
        words = [part for text in texts for part in text.split(",")] if len(texts) == 1 else texts
        return [word if get_args(kind)[0] is str else parse_value(word) for word in words if word]
    if not texts:
        if bool not in members:
            raise ConfigError(f"{flag_of(field)} needs a value")
        return True
    if field in WORDINGS:
        texts = [with_line_breaks(texts[0])]
    if NoneType in members and texts[0] in ("null", "None", "none"):
        return None
    return texts[0] if members - {NoneType} == {str} else parse_value(texts[0])


def with_line_breaks(text: str) -> str:
    """Return a text with line breaks for `\\n`; `\\\\n` stays a backslash and an n."""
    return re.sub(r"(\\+)n", lambda run: "\n" if len(run[1]) == 1 else f"{run[1][1:]}n", text)


def flag_of(field: str) -> str:
    """Return the flag of a field: hyphens for underscores, except in the keys of mappings."""
    parts, kinds = field.split("."), types_along(field.split("."))
    names = (name.replace("_", "-") if as_section(kind) else name for name, kind in zip(parts, kinds, strict=False))
    return f"--{'.'.join(names)}"


def to_flags(settings: Settings) -> list[str]:
    """Return the flags with which `opasd train` has these values."""
    words: list[str] = []
    for field, value in settings.items():
        flag, kinds = flag_of(field), types_along(field.split("."))
        if isinstance(value, list | tuple) and get_origin(kinds[-1]) is tuple:
            words += [flag, *map(str, value)]
            continue
        text = json.dumps(value) if value is None or isinstance(value, bool | list | tuple) else str(value)
        is_key = get_origin(kinds[-2]) is dict  # its text is read as YAML
        if isinstance(value, str) and is_key and parse_value(text) != value:
            text = json.dumps(value, ensure_ascii=False)
        if field in WORDINGS:
            text = re.sub(r"(\\+n)", r"\\\1", text)  # `with_line_breaks` takes one backslash away
        words += [f"{flag}={text}"] if text.startswith("-") else [flag, text]
    return words
