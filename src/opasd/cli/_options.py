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
    return options, recipe, to_config(laid_over(below.model_dump(), nested(settings[""])), "command line")


def load_plugins(settings: Mapping[str, Any]) -> None:
    """Load installed plugins, and those that the flags name, before a configuration may need them."""
    plugins.load_installed()
    plugins.load(settings.get("plugins"))


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
