"""List the recipes that come with the package, show one, or copy one to change it."""

import argparse
import json
import sys
from pathlib import Path

from opasd.errors import ConfigError
from opasd.files import write_new
from opasd.recipes import GROUPS, YAML_ENDINGS, Recipe, load_recipe, recipe_names
from opasd.recipes.reading import parse_yaml, write_yaml


def run(args: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="opasd recipes", description=__doc__)
    actions = parser.add_subparsers(dest="action", metavar="{list,show,copy}")
    listing = actions.add_parser("list", help="names and descriptions (what `opasd recipes` alone does)")
    listing.add_argument("--json", action="store_true", help="print a JSON list")
    for action, about in (("show", "print a recipe"), ("copy", "write a recipe to a file that does not exist yet")):
        command = actions.add_parser(action, help=about)
        command.add_argument("name", metavar="NAME", help="a recipe's name, or a file")
        command.add_argument("--full", action="store_true", help="every field, instead of what differs from the parent")
        if action == "copy":
            command.add_argument("to", metavar="TO", nargs="?", help="file or folder; unset: NAME.yaml here")
    # Behind a flag argparse no longer takes TO.
    options = parser.parse_args([word for word in args if word != "--full"])
    full = "--full" in args
    if options.action == "show":
        recipe = load_recipe(options.name)
        sys.stdout.write(f"# {' extends '.join((recipe.name, *recipe.parents))}\n" + _text(recipe, full=full))
    elif options.action == "copy":
        _copy(load_recipe(options.name), options.to, full=full)
    else:
        _list(as_json=getattr(options, "json", False))
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
        lines = (f"  {recipe.name:<{width}}  {recipe.description}\n" for recipe in recipes if recipe.group == group)
        parts.append(f"{group}: {about}\n{''.join(lines)}")
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
