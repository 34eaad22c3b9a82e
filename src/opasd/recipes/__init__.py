"""Recipes: YAML files with what differs from the defaults or, with `extends`, from another recipe.

The packaged recipes lie in folders: `lab` (the embedded model), `paper` (one for each published number), `open` (what
the paper leaves open), `small` (a pretrained model on one GPU, in minutes), `start` (what is known to work, to begin
with). Five keys do not reach a run: `extends` (another recipe's name, or a file relative to this one), `description`
(one line), `expects` (the published number that it should reproduce), `evaluate` (how `opasd sweep` evaluates the
result) and `evaluate_only` (the model is evaluated untrained). A recipe inherits the
last two.

    config = load_recipe("opasd-qwen3-1.7b").config()
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from opasd.config import RunConfig
from opasd.errors import ConfigError, closest, error_prefix
from opasd.recipes.checking import to_config
from opasd.recipes.evaluate import to_evaluate
from opasd.recipes.reading import parse_yaml, read_text

FOLDER = Path(__file__).parent
GROUPS = {
    "lab": "The embedded model and task: no download, minutes on a CPU",
    "paper": "The paper's experiments, each with its published number (`opasd recipes show NAME`)",
    "open": "What the paper leaves open; no published numbers",
    "small": "A small pretrained model on one GPU, in minutes",
    "start": "What is known to work so far, to begin with; not the paper's settings",
}
"""The folders of packaged recipes, and what is in them."""
YAML_ENDINGS = (".yaml", ".yml")
_MAX_PARENTS = 16
_OF_RUN = re.compile(r"config(-\d+)?\.yaml")
"""The names under which a run's folder holds its configurations."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A named configuration and its description."""

    name: str
    where: str
    text: str
    values: Mapping[str, Any]
    description: str = ""
    expects: Any = None
    evaluate: Mapping[str, Any] | None = None
    """How its result is evaluated; None if neither it nor a parent says."""
    evaluate_only: bool = False
    """Whether the model is evaluated untrained."""
    parents: tuple[str, ...] = ()
    """The recipe that it extends, the one that this extends, and so on."""
    group: str = ""
    """The folder of a packaged recipe."""
    of_run: bool = False
    """Whether it is, or extends, the configuration in a run's folder, which may be someone else's."""

    def config(self) -> RunConfig:
        """Return the checked configuration."""
        return to_config(self.values, self.where, of_run=self.of_run)


DEFAULTS = Recipe("default", "the defaults", "", {}, "The defaults of every field.")


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package, group by group."""
    return list(_packaged())


@cache
def _packaged() -> dict[str, Path]:
    paths = (path for group in GROUPS for path in sorted((FOLDER / group).glob("*.yaml"), key=lambda path: path.stem))
    return {path.stem: path for path in paths}


def load_recipe(name_or_file: str | None) -> Recipe:
    """Return a packaged recipe by name, a file by a path that ends in .yaml or .yml, or the defaults for None."""
    return DEFAULTS if name_or_file is None else _load(_find(name_or_file, Path()), ())


def _find(name_or_file: str, near: Path) -> Path:
    if name_or_file in _packaged():
        return _packaged()[name_or_file]
    path = near / Path(name_or_file).expanduser()
    if path.suffix.lower() in YAML_ENDINGS:
        if path.is_file():
            return path
        raise ConfigError(f"no file {path}; give an existing YAML file or a recipe (`opasd recipes` lists them)")
    hint = closest(name_or_file, recipe_names()) or "a file's name ends in .yaml."
    raise ConfigError(f'no recipe "{name_or_file[:80]}"; {hint} `opasd recipes` lists the recipes')


def _load(path: Path, children: tuple[Path, ...]) -> Recipe:
    if path.resolve() in children or len(children) > _MAX_PARENTS:
        raise ConfigError(f"{children[0]}: `extends` leads back to {path.name}; let it end at a recipe without it")
    text = read_text(path)
    values = parse_yaml(text, str(path))
    extends, description = values.pop("extends", None), values.pop("description", "")
    expects, evaluate, only = (values.pop(key, None) for key in ("expects", "evaluate", "evaluate_only"))
    for key, value in (("extends", extends or ""), ("description", description)):
        if not isinstance(value, str):
            raise ConfigError(f"{path}: {key}: got {value!r:.60}; give one text")
    if not isinstance(evaluate, dict | None):
        raise ConfigError(f"{path}: evaluate: got {evaluate!r:.60}; give `key: value` lines, such as benchmarks: [lab]")
    if not isinstance(only, bool | None):
        raise ConfigError(f"{path}: evaluate_only: got {only!r:.60}; give true or false")
    parents: tuple[str, ...] = ()
    of_run = _OF_RUN.fullmatch(path.name) is not None
    if extends:
        with error_prefix(f"{path}: extends"):
            parent_path = _find(extends, path.parent)
        parent = _load(parent_path, (*children, path.resolve()))
        values = laid_over(parent.values, values)
        parents = (parent.name, *parent.parents)
        of_run = of_run or parent.of_run
        only = parent.evaluate_only if only is None else only
        if parent.evaluate is not None:
            evaluate = merged(parent.evaluate, evaluate or {})
    if evaluate is not None:
        to_evaluate(evaluate, str(path))
    group = path.parent.name if _packaged().get(path.stem) == path else ""
    return Recipe(
        path.stem, str(path), text, values, description.strip(), expects, evaluate, bool(only), parents, group, of_run
    )


def laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration's values with others over them; null removes a validation set that was there.

    A commit belongs to the model or data set that it was given with: another name is without one until it is given.
    """
    values = merged(below, above)
    for path, name in [
        (("model",), "name_or_path"),
        (("data",), "source"),
        *((("validation_data", key), "source") for key in _section(above, ("validation_data",))),
    ]:
        old, new = _section(below, path), _section(above, path)
        if name in new and "revision" not in new and old.get("revision") and new[name] != old.get(name):
            _section(values, path).pop("revision")
    before, sets = below.get("validation_data"), values.get("validation_data")
    if isinstance(before, Mapping) and isinstance(sets, Mapping):
        values["validation_data"] = {
            name: data for name, data in sets.items() if data is not None or name not in before
        }
    return values


def _section(values: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Return the section at a path, empty if there is none."""
    for key in path:
        inner = values.get(key)
        values = inner if isinstance(inner, Mapping) else {}
    return values


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Return `above` laid over `below`, section by section; lists are replaced."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result
