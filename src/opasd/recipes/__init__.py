"""Recipes: YAML files that hold what differs from the defaults or, with `extends`, from another recipe.

Three keys describe a recipe and do not reach the run: `extends` (another recipe's name, or a file relative to this
one), `description` (one line), `expects` (the published number it should reproduce).

    config = load_recipe("opasd-qwen3-1.7b").config()
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opasd.config import RunConfig
from opasd.errors import ConfigError
from opasd.recipes.checking import to_config
from opasd.recipes.reading import parse_yaml, read_text

FOLDER = Path(__file__).parent
_MAX_PARENTS = 16


@dataclass(frozen=True, slots=True)
class Recipe:
    """A configuration with a name, and what is said about it."""

    name: str
    where: str
    text: str
    values: Mapping[str, Any]
    description: str = ""
    expects: Any = None

    def config(self) -> RunConfig:
        """The checked configuration."""
        return to_config(self.values, self.where)


DEFAULTS = Recipe("default", "the defaults", "", {}, "The defaults of every field.")


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_recipe(name_or_file: str | None) -> Recipe:
    """A packaged recipe by name, a file by its path ending in .yaml or .yml, or nothing for the defaults."""
    return DEFAULTS if name_or_file is None else _load(_find(name_or_file, Path()), ())


def _find(name_or_file: str, near: Path) -> Path:
    if name_or_file in recipe_names():
        return FOLDER / f"{name_or_file}.yaml"
    path = near / Path(name_or_file).expanduser()
    if path.suffix.lower() in (".yaml", ".yml"):
        if path.is_file():
            return path
        raise ConfigError(f"no file {path}; give an existing YAML file or a recipe: {', '.join(recipe_names())}")
    close = difflib.get_close_matches(name_or_file, recipe_names(), 1, 0.6)
    hint = f"did you mean {close[0]}?" if close else "a file's name ends in .yaml"
    raise ConfigError(f'no recipe "{name_or_file[:80]}"; {hint} The recipes are {", ".join(recipe_names())}')


def _load(path: Path, children: tuple[Path, ...]) -> Recipe:
    if path.resolve() in children or len(children) > _MAX_PARENTS:
        raise ConfigError(f"{children[0]}: `extends` leads back to {path.name}; let it end at a recipe without it")
    text = read_text(path)
    values = parse_yaml(text, str(path))
    extends, description = values.pop("extends", None), values.pop("description", "")
    expects = values.pop("expects", None)
    for key, value in (("extends", extends or ""), ("description", description)):
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key}: got {value!r:.60}; give one text")
    if extends:
        try:
            parent = _find(extends, path.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: extends: {error}") from None
        values = merged(_load(parent, (*children, path.resolve())).values, values)
    return Recipe(path.stem, str(path), text, values, description.strip(), expects)


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`, section by section; lists are replaced."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
