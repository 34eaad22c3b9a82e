"""List the recipes of the package, show one, or copy one to change it."""

import json
import sys
from pathlib import Path

from opasd.cli._parser import Parser, listed
from opasd.errors import ConfigError, closest
from opasd.files import write_new
from opasd.recipes import GROUPS, YAML_ENDINGS, Recipe, load_recipe, recipe_names
from opasd.recipes.reading import parse_yaml, write_yaml


def parser() -> Parser:
    """Return the command's parser."""
    usage = "opasd recipes [list]\n       opasd recipes show NAME\n       opasd recipes copy NAME [TO]"
    command = Parser("recipes", __doc__, usage=usage)
    command.add_argument(
        "action", metavar="list|show|copy", nargs="?", default="list",
        help="List names and descriptions, print a recipe, or write one to a new file. (default: list)",
    )  # fmt: skip
    command.add_argument("name", metavar="NAME", nargs="?", help="A recipe's name, or a file.")
    command.add_argument("to", metavar="TO", nargs="?", help="File or folder. (default: NAME.yaml here)")
    command.add_argument("--full", action="store_true", help="Every field, not only what differs from the parent.")
    command.add_argument("--json", action="store_true", help="Print the list as JSON.")
    return command


def run(args: list[str]) -> int:
    """The command."""
    options = parser().parse_args(args)
    action = options.action
    if action not in ("list", "show", "copy"):
        hint = closest(action, ["list", "show", "copy"], 0.5) or "it has list, show and copy."
        raise ConfigError(f"opasd recipes has no {action[:60]!r}; {hint} `opasd recipes show NAME` prints a recipe")
    if (options.name is None) != (action == "list"):
        given = "takes no name" if action == "list" else "needs a recipe's name, or a file"
        raise ConfigError(f"opasd recipes {action} {given}; see `opasd recipes --help`")
    if options.to is not None and action != "copy":
        raise ConfigError(f"opasd recipes {action}: {options.to[:60]!r} is one argument too many")
    if action == "list":
        _list(as_json=options.json)
    elif action == "copy":
        _copy(load_recipe(options.name), options.to, full=options.full)
    else:
        recipe = load_recipe(options.name)
        heading = f"# {' extends '.join((recipe.name, *recipe.parents))}\n"
        sys.stdout.write(heading + _text(recipe, full=options.full))
    return 0


def _list(*, as_json: bool) -> None:
    recipes = [load_recipe(name) for name in recipe_names()]
    if as_json:
        rows = [
            {"name": r.name, "group": r.group, "description": r.description, "extends": list(r.parents)}
            | {"evaluate_only": r.evaluate_only, "expects": r.expects}
            for r in recipes
        ]
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return
    width = max(len(recipe.name) for recipe in recipes)
    parts = []
    for group, about in GROUPS.items():
        rows = ((recipe.name, recipe.description) for recipe in recipes if recipe.group == group)
        parts.append(f"{group}: {about}\n" + "".join(listed(name, text, width) for name, text in rows))
    sys.stdout.write("\n".join(parts))


def _text(recipe: Recipe, *, full: bool) -> str:
    if not full:
        return recipe.text
    about = {key: getattr(recipe, key) for key in ("description", "expects", "evaluate", "evaluate_only")}
    return write_yaml({key: value for key, value in about.items() if value} | recipe.config().model_dump())


def _copy(recipe: Recipe, to: str | None, *, full: bool) -> None:
    path = Path(to or f"{recipe.name}.yaml").expanduser()
    if path.is_dir():
        path /= f"{recipe.name}.yaml"
    if path.suffix.lower() not in YAML_ENDINGS:
        raise ConfigError(f"{path}: a configuration's name ends in .yaml; give such a name or an existing folder")
    extends = None if full else parse_yaml(recipe.text, recipe.where).get("extends")
    if extends and extends not in recipe_names():
        there, here = (folder / extends for folder in (Path(recipe.where).parent, path.parent))
        if there.resolve() != here.resolve():
            raise ConfigError(
                f"{recipe.where} extends {extends}, which a copy in {path.parent} would not find; use --full"
            )
    write_new(path, _text(recipe, full=full))
    sys.stdout.write(f"{path}\n")
