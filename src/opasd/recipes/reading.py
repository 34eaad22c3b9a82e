"""YAML text ─► mapping and back: safe, bounded, without YAML 1.1's surprises.

It reads what a configuration needs: text, numbers, true, false, null, lists, and mappings with text keys. `no`,
`12:30:00` and `2026-01-01` are text and `5e-6` is a number, unlike in YAML 1.1; a repeated key is an error.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from opasd.errors import ConfigError

MAX_BYTES = 256 * 1024
MAX_NODES = 20_000
"""The most values of a file with its aliases written out."""

_INT = r"[-+]?[0-9]+"
_FLOAT = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
_SCALARS = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""], lambda text: None),
    "bool": (r"true|True|TRUE|false|False|FALSE", list("tTfF"), lambda text: text.lower() == "true"),
    "int": (_INT, list("-+0123456789"), int),
    "float": (_FLOAT, list("-+.0123456789"), lambda text: float(re.sub(r"\.(inf|nan)$", r"\1", text.lower()))),
}


class _Loader(yaml.SafeLoader):
    """The loader in pure Python: deep nesting raises RecursionError, and crashes the loader in C."""

    yaml_implicit_resolvers: dict[Any, Any] = {}  # noqa: RUF012 (PyYAML's own way to leave out what is inherited)
    yaml_constructors: dict[Any, Any] = {
        f"tag:yaml.org,2002:{kind}": yaml.SafeLoader.yaml_constructors[f"tag:yaml.org,2002:{kind}"]
        for kind in ("str", "seq", "map")
    } | {None: yaml.SafeLoader.yaml_constructors[None]}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise ConstructorError(None, None, f"the key {key!r} is not text", key_node.start_mark)
            if key in mapping:
                raise ConstructorError(None, None, f'the key "{key}" is repeated', key_node.start_mark)
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

    def ignore_aliases(self, data: object) -> bool:
        return True


def _scalar_constructor(convert: Callable[[str], Any]) -> Callable[[_Loader, Any], Any]:
    return lambda loader, node: convert(loader.construct_scalar(node))


def _style(text: str) -> str | None:
    """Return the style of a text: a block for lines, quotes for line breaks that YAML would turn into \\n or spaces."""
    if re.search("[\r\x85\u2028\u2029]", text):
        return '"'
    return "|" if "\n" in text else None


for _kind, (_pattern, _first, _convert) in _SCALARS.items():
    _tag = f"tag:yaml.org,2002:{_kind}"
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _first)
    _Loader.add_constructor(_tag, _scalar_constructor(_convert))
_Dumper.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style=_style(text))
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a file; an empty file is an empty mapping."""
    return parse_yaml(read_text(path), str(path))


def read_text(path: Path) -> str:
    """Return the text of a small UTF-8 file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"{path} cannot be read ({reason}); give an existing YAML file") from None
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES // 1024} KiB; this is no configuration, give a YAML file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from None


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the mapping in a text; `where` names it in messages."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        _check_size(node, where)
        value = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        problem = error.problem or error.context or "not valid"
        raise ConfigError(f"{where}{position}: {problem}; correct the YAML there") from None
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{where} is not valid YAML ({reason}); correct the file") from None
    except RecursionError:
        raise ConfigError(f"{where} is nested too deeply; a configuration has a few levels") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        kind = "a list" if isinstance(value, list) else f"the single value {str(value)[:60]!r}"
        raise ConfigError(f"{where} holds {kind}; a configuration is `key: value` lines")
    return value


def parse_value(text: str) -> Any:
    """Return the value of a text on the command line: a number, true, false, null, a list, or the text itself.

    It has no comments: `#` is an ordinary character.
    """
    if re.search(r"(?:^|\s)#", text) and not text.startswith(("'", '"')):
        return text
    try:
        return parse_yaml(f"value: {text}", "command line")["value"]
    except ConfigError:
        return text


def _check_size(node: yaml.Node | None, where: str) -> None:
    """Refuse a small file that its aliases make a huge or endless value."""
    waiting, seen = [node] if node is not None else [], 0
    while waiting:
        seen += 1
        if seen > MAX_NODES:
            raise ConfigError(f"{where} holds more than {MAX_NODES} values with its aliases written out; shorten it")
        value = waiting.pop().value
        if isinstance(value, list):
            waiting.extend(part for item in value for part in (item if isinstance(item, tuple) else (item,)))


def write_yaml(mapping: Mapping[str, Any]) -> str:
    """Return the text that `parse_yaml` reads back as the same mapping."""
    return yaml.dump(dict(mapping), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
