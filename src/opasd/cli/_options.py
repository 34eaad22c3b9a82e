"""Command line ─► RunConfig: every field of the configuration as a flag, with tyro.

tyro only parses flags and prints help: it returns plain mappings, and `recipes.checking` checks the values, so that a
mistake in a file and one in a flag have the same message. Keys of mappings are flags too: `--train.extra.optim sgd`.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, StructConstructorSpec, StructFieldSpec, StructTypeInfo

from opasd.config import RunConfig
from opasd.recipes import Recipe, laid_over, load_recipe
from opasd.recipes.checking import as_section, leaves, to_config
from opasd.recipes.fields import nested, take_flags

_LEAVES = {"--" + ".".join(path).replace("_", "-"): annotation for path, annotation in leaves()}
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
    source = args[0] if args and not args[0].startswith("-") else None
    options, recipe, config = _parse(kind, args, source, prog, about, base)
    if options.source != source:  # it comes after a flag
        options, recipe, config = _parse(kind, args, options.source, prog, about, base)
    return options, recipe, config


def _parse(
    kind: type[Options], args: list[str], source: str | None, prog: str, about: str, base: RunConfig | None
) -> tuple[Options, Recipe, RunConfig]:
    recipe = load_recipe(source)
    below = recipe.config() if base is None else base
    rest, settings = take_flags(args, {"": RunConfig}, only_keys=True)
    if settings[""]:
        below = to_config(laid_over(below.model_dump(), nested(settings[""])), "command line")
    options = tyro.cli(
        kind,
        args=list(_tidy(rest)),
        default=kind(config=below),
        registry=_REGISTRY,
        prog=prog,
        description=about,
        console_outputs=os.environ.get("RANK", "0") == "0",
    )
    values: Any = options.config
    return options, recipe, to_config(values, "command line")


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
        if get_origin(kind) is dict:
            kind = tyro.conf.Fixed[kind]
            about += " One key at a time, with the key in the flag: `.KEY VALUE`, or `.NAME.FIELD VALUE` for a section."
        fields.append(StructFieldSpec(name, kind, getattr(base, name), about))
    return StructConstructorSpec(instantiate=dict, fields=tuple(fields))


def _tidy(args: list[str]) -> Iterable[str]:
    """Yield `--train.bf16 true` as tyro's `--train.bf16`, and YAML's null, true and false as Python's words."""
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        flag, equals, text = word.partition("=")
        annotation = _LEAVES.get(flag.replace("_", "-"))
        if not equals and waiting:
            text = waiting[0]
        python = {"true": "True", "false": "False", "null": "None", "none": "None"}.get(text.lower())
        fits = {"True": bool, "False": bool, "None": type(None)}.get(python or "")
        if annotation is None or python is None or (annotation is not fits and fits not in get_args(annotation)):
            yield word
            continue
        if not equals:
            waiting.pop(0)
        if annotation is bool:
            section, _, name = flag[2:].rpartition(".")
            yield f"--{section}{'.' if section else ''}{'' if python == 'True' else 'no-'}{name}"
        else:
            yield from (flag, python)
