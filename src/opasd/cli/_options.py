"""Command line ─► RunConfig: every field of the configuration as a flag, and short flags for the first ones.

`recipes.fields` reads the flags of fields and `recipes.checking` checks their values, so that a mistake in a file and
one in a flag have the same message.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from opasd import plugins
from opasd.choices import OneOf
from opasd.cli._parser import Parser
from opasd.config import RunConfig, Section
from opasd.errors import ConfigError, closest
from opasd.recipes import Recipe, laid_over, load_recipe
from opasd.recipes.checking import as_section, leaves, to_config, types_along
from opasd.recipes.fields import SHORT_FLAGS, flag_of, nested, take_flags, value_of

FIRST_FLAGS = {
    "what": {
        "--model": "A model on the hub, a folder, or `lab`.",
        "--revision": "Commit of the model on the hub.",
        "--data": "Problems: a file, a folder, a set on the hub, or `lab`.",
    },
    "how": {
        "--steps": "",
        "--lr": "",
        "--attention-weight": "Weight of the attention loss, or `balanced`; 0 is OPSD.",
        "--max-new-tokens": "",
        "--engine": "What samples: transformers, vllm or vllm_server.",
        "--seed": "Seed of data, adapters and sampling.",
    },
    "the run": {"--name": "", "--output": ""},
}
"""Flags of fields on the first page of a command's help, by group, and shorter texts than the fields' own."""
_FIELDS = {flag: SHORT_FLAGS.get(flag) or flag[2:] for flags in FIRST_FLAGS.values() for flag in flags}
_METAVARS = {int: "N", float: "X", bool: "true|false"}


class ConfigParser(Parser):
    """The parser of a command that takes a configuration.

    options, recipe, config = parser.parse(["lab", "--steps", "5"])
    """

    def __init__(
        self,
        command: str,
        about: str | None,
        *,
        usage: str | None = None,
        more: str = "",
        groups: Sequence[str] = ("what", "how", "the run"),
    ) -> None:
        usage = usage or f"opasd {command} [RECIPE] [--model MODEL] [--data DATA] [options]"
        super().__init__(command, about, usage=usage, more=more)
        self._shown = groups
        self._groups = {"what": self._positionals} | {name: self.add_argument_group(name) for name in groups[1:]}
        self._positionals.add_argument(
            "source", metavar="RECIPE", nargs="?", help="A recipe (see `opasd recipes`), or a YAML file."
        )
        self._optionals.title = "more"
        self.add_argument(
            "--help-all", metavar="SECTION", nargs="?", const="", help="Show every field, or those of one section."
        )
        self._action_groups.append(self._action_groups.pop(self._action_groups.index(self._optionals)))

    def option(self, group: str, *names: str, **about: Any) -> None:
        """Add an option of the command's own to a group of its help."""
        self._groups[group].add_argument(*names, **about)

    def parse(self, args: list[str], *, start: bool = False) -> tuple[argparse.Namespace, Recipe, RunConfig]:
        """Return the command's own options, the named recipe, and its configuration with all flags laid over it.

        A command that would `start` something heavy needs a recipe, a model or data.
        """
        options, settings = self.split(args)
        if start:
            self.require_source(options, settings)
        recipe = load_recipe(options.source)
        return options, recipe, configured(recipe, settings)

    def split(self, args: list[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
        """Return the command's own options and the settings of the other flags; load plugins, and show help."""
        own = {flag for action in self._actions for flag in action.option_strings}
        rest, by_root = take_flags(args, {"": RunConfig}, own)
        settings = by_root[""]
        load_plugins(settings)
        asks = {"-h", "--help"} & set(rest) or any(word.startswith("--help-all") for word in rest)
        options, unknown = self.parse_known_intermixed_args([word for word in rest if word not in ("-h", "--help")])
        if asks:
            self._show_help(load_recipe(options.source).config(), options.help_all)
        self.refuse(unknown)
        return options, settings

    def require_source(self, options: argparse.Namespace, settings: Mapping[str, Any]) -> None:
        """Refuse to start when nothing says with what."""
        if options.source is None and not {"model.name_or_path", "data.source"} & set(settings):
            raise ConfigError(
                f"{self.prog}: nothing to work on; give a recipe, such as `{self.prog} lab` (`opasd recipes` lists "
                f"them), a YAML file, or --model MODEL --data DATA; `{self.prog} --help` says more"
            )

    def flags(self) -> list[str]:
        fields = (".".join(path) for path, _ in leaves())
        return [*super().flags(), *_FIELDS, *(flag_of(field) for field in fields)]

    def described(self, flag: str) -> str:
        short = [name for name, field in SHORT_FLAGS.items() if flag_of(field) == flag]
        return f"{short[0]} ({flag})" if short else flag

    def _show_help(self, config: RunConfig, section: str | None) -> None:
        """Print the first page with the configuration's values as defaults, or every field, and end."""
        if section is None:
            for group in self._shown:
                for flag, about in FIRST_FLAGS.get(group, {}).items():
                    _add_field(self._groups[group], flag, _FIELDS[flag], config, about)
            self._optionals.add_argument(
                "--SECTION.FIELD", metavar="VALUE", help=f"Set any field. Sections: {', '.join(_sections())}."
            )
            sys.stdout.write(self.format_help())
        else:
            sys.stdout.write(_all_fields(self.prog, config, section))
        raise SystemExit(0)


def configured(recipe: Recipe, settings: Mapping[str, Any], base: RunConfig | None = None) -> RunConfig:
    """Return the configuration of a recipe, or a base, with the settings of flags laid over it."""
    below = recipe.config() if base is None else base
    values = laid_over(below.model_dump(), nested(settings))
    check_trust(recipe.values, settings)
    return to_config(values, "command line")


def check_trust(values: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse a file that trusts a model's code: whoever runs the command does, by a flag."""
    model = values.get("model")
    if isinstance(model, Mapping) and model.get("trust_remote_code") and "model.trust_remote_code" not in settings:
        raise ConfigError(
            "model.trust_remote_code: a file cannot give trust; add --model.trust-remote-code true if you trust the "
            "code that comes with the model, or false"
        )


def load_plugins(settings: Mapping[str, Any]) -> None:
    """Load installed plugins, and those that the flags name, before a configuration may need them."""
    plugins.load_installed()
    plugins.load(settings.get("plugins"))
    plugins.name_grader(settings.get("grader"))


def _sections() -> list[str]:
    return [name for name, field in RunConfig.model_fields.items() if as_section(field.annotation)]


def _all_fields(prog: str, config: RunConfig, section: str) -> str:
    """Return the help of every field, or of those of one section."""
    wanted = section.removeprefix("--").replace("-", "_").rstrip(".")
    names = ["", *_sections()]
    if wanted not in names:
        hint = closest(wanted, names[1:]) or f"the sections are {', '.join(names[1:])}"
        raise ConfigError(f"--help-all: no section {section!r:.40}; {hint}")
    parser = Parser(prog.removeprefix("opasd "), None, usage=f"{prog} [RECIPE] [--SECTION.FIELD VALUE ...]")
    for name in names if not wanted else [wanted]:
        about = RunConfig.model_fields[name].description if name else "Fields without a section."
        group = parser.add_argument_group(name or "run", about)
        for field in _fields_of(name):
            _add_field(group, flag_of(field), field, config)
    return parser.format_help()


def _fields_of(section: str) -> Iterator[str]:
    """Yield the fields of a section and of those inside it, or the fields without a section."""
    for path, _ in leaves():
        if (path[0] == section and len(path) > 1) or (not section and len(path) == 1):
            yield ".".join(path)


def _add_field(group: Any, flag: str, field: str, config: RunConfig, text: str = "") -> None:
    """Add a field's flag, its text, or a shorter one, and its value to a group of a help page."""
    *parents, name = field.split(".")
    section: type[Section] = types_along(parents)[-1]
    known = section.model_fields[name]
    kind, value, about = known.annotation, value_of(config, field), text or known.description or ""
    members = [part for part in get_args(kind) if part is not NoneType] if NoneType in get_args(kind) else [kind]
    number = float if float in get_args(members[0]) else members[0]  # such as a number or a word
    metavar = _METAVARS.get(number, name.rpartition("_")[2].upper())
    if get_origin(members[0]) is Literal:
        metavar = "|".join(map(str, get_args(members[0])))
    elif get_origin(kind) is tuple:
        metavar = "A B"
    elif get_origin(kind) is dict:
        inner = as_section(get_args(kind)[1])
        flag, metavar = f"{flag}.{'NAME.FIELD' if inner else 'KEY'}", "VALUE"
    for choice in (item for item in known.metadata if isinstance(item, OneOf) and not text):
        about += f" One of {', '.join(choice.table)}."
    group.add_argument(flag, metavar=metavar, help=(about + _default(value, about)).replace("%", "%%"))


def _default(value: Any, about: str) -> str:
    """Return the default as the end of a help text; a text that says what unset means needs none for it."""
    if isinstance(value, Mapping):
        value = tuple(value)
    if value is None or value == ():
        return "" if "Unset:" in about or "Null:" in about else " (default: none)"
    if isinstance(value, tuple):
        text = " ".join(map(str, value))
    elif isinstance(value, str):
        text = value if value.isprintable() and len(value) < 60 else repr(value)
    else:
        text = (
            str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else f"{value}"
        )
    return f" (default: {text if len(text) < 120 else f'{text[:117]}…'})"
