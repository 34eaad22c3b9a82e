"""Command line ─► RunConfig: every field of the configuration as a flag.

`recipes.fields` reads the flags of fields and `recipes.checking` checks their values, so that a mistake in a file and
one in a flag have the same message. tyro parses a command's own options and prints the help.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from opasd import plugins
from opasd.choices import OneOf
from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.recipes import Recipe, laid_over, load_recipe
from opasd.recipes.checking import as_section, to_config
from opasd.recipes.fields import nested, take_flags

_REGISTRY = ConstructorRegistry()


@dataclass(frozen=True)
class ConfigOptions:
    """The options of every command that takes a configuration."""

    source: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RECIPE_OR_FILE]")] = None
    """A recipe's name (see `opasd recipes`) or a YAML file. Unset: the defaults of every field."""
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)


Options = TypeVar("Options", bound=ConfigOptions)


def parse(
    kind: type[Options], args: list[str], *, prog: str, about: str, base: RunConfig | None = None
) -> tuple[Options, Recipe, RunConfig]:
    """Return the command's own options, the named recipe, and its configuration with all flags laid over it.

    With `base` the flags are laid over that instead.
    """
    rest, settings = take_flags(args, {"": RunConfig})
    load_plugins(settings[""])
    shown = load_recipe(rest[0] if rest and not rest[0].startswith("-") else None).config() if base is None else base
    options = tyro.cli(
        kind,
        args=rest,
        default=kind(config=shown),
        registry=_REGISTRY,
        prog=prog,
        description=about,
        console_outputs=os.environ.get("RANK", "0") == "0",
    )
    recipe = load_recipe(options.source)
    below = recipe.config() if base is None else base
    values = laid_over(below.model_dump(), nested(settings[""]))
    check_trust(recipe.values, settings[""])
    return options, recipe, to_config(values, "command line")


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


@_REGISTRY.struct_rule
def _section_rule(info: StructTypeInfo) -> StructConstructorSpec | None:
    section = as_section(info.type)
    if section is None:
        return None
    base = info.default if isinstance(info.default, section) else section()
    fields: list[StructFieldSpec] = []
    for name, known in section.model_fields.items():
        kind: Any = known.annotation
        about = known.description or ""
        for choice in (item for item in known.metadata if isinstance(item, OneOf)):
            about += f" One of {', '.join(choice.table)}."
        if get_origin(kind) is dict:
            kind = tyro.conf.Fixed[kind]
            about += " One key at a time, with the key in the flag: `.KEY VALUE`, or `.NAME.FIELD VALUE` for a section."
        fields.append(StructFieldSpec(name, kind, getattr(base, name), about))
    return StructConstructorSpec(instantiate=dict, fields=tuple(fields))
