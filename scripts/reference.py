"""Write the reference: docs/reference.md (public names, fields) and docs/reference/ (commands, recipes).

    python -m scripts.reference            # writes the pages; `--check` only says whether they are current

A public name, argument or field without a description is an error.
"""

import argparse
import ast
import inspect
import io
import os
import pkgutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

from pydantic import BaseModel

import opasd
from opasd import cli
from opasd.recipes import GROUPS as RECIPE_GROUPS
from opasd.recipes import load_recipe, recipe_names

PAGE = Path(__file__).parents[1] / "docs" / "reference.md"
GROUPS = {
    "Training": ("OPASDTrainer", "OPASDArguments", "OPASDConfig", "ObjectiveConfig", "RunConfig"),
    "Problems and contexts": ("Problem", "load_problems", "PromptBuilder", "PromptPair", "Rollout"),
    "Losses": ("token_loss", "attention_loss", "opasd_loss", "Scorer", "Alignment", "align"),
    "Extensions": (
        *("LossTerm", "MicroBatch", "register_loss_term", "register_divergence", "register_teacher"),
        *("register_engine", "register_benchmark", "register_grader"),
    ),
    "Errors": ("OpasdError",),
}


def page() -> str:
    """Return the page of public names and fields."""
    for name in sorted({*opasd.__all__} - {name for names in GROUPS.values() for name in names}):
        raise SystemExit(f"opasd.{name} is in no group; add it to GROUPS in scripts/reference.py")
    lines = [
        "# Reference",
        "",
        "Made by `python -m scripts.reference` from the code; do not edit it. `from opasd import NAME` imports a name.",
    ]
    for heading, names in GROUPS.items():
        lines += ["", f"## {heading}"]
        for name in names:
            lines += ["", *_entry(name, getattr(opasd, name))]
    lines += ["", "## Fields of a configuration", "", "A recipe's YAML file and the flags have these names.", ""]
    lines += ["| field | default | meaning |", "|---|---|---|", *_fields(opasd.RunConfig, "")]
    return "\n".join(lines) + "\n"


def _entry(name: str, thing: Any) -> Iterator[str]:
    """Yield the lines of one public name."""
    about = inspect.getdoc(thing)
    if not about:
        raise SystemExit(f"opasd.{name} has no docstring; write one")
    yield f"### `{name}`"
    yield ""
    if isinstance(thing, type) and issubclass(thing, BaseModel):
        yield f"{about} Its fields are below."
        return
    if not (isinstance(thing, type) and issubclass(thing, BaseException)):
        yield from ("```python", f"{name}{_signature(thing)}", "```", "")
    yield about
    if isinstance(thing, type):
        yield from _attributes(thing)


def _signature(thing: Any) -> str:
    """Return the arguments as the source writes them; those of a dataclass are its own fields."""
    tree = _source(thing)
    if isinstance(tree, ast.ClassDef):
        methods = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        if "__init__" not in methods:
            fields = [ast.unparse(node) for node in tree.body if isinstance(node, ast.AnnAssign)]
            return _laid_out(fields, "")
        tree = methods["__init__"]
    assert isinstance(tree, ast.FunctionDef)
    returned = f" -> {ast.unparse(tree.returns)}" if tree.returns and tree.name != "__init__" else ""
    arguments = tree.args
    defaults = [None] * (len(arguments.args) - len(arguments.defaults)) + arguments.defaults
    parts = [_argument(*pair) for pair in zip(arguments.args, defaults, strict=True) if pair[0].arg != "self"]
    parts += ["*"] if arguments.kwonlyargs else []
    parts += [_argument(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    parts += [f"**{_argument(arguments.kwarg, None)}"] if arguments.kwarg else []
    return _laid_out(parts, returned)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(argument) + ("" if default is None else f" = {ast.unparse(default)}")


def _laid_out(parts: list[str], returned: str) -> str:
    """Return the arguments in one line, or each in its own."""
    short = f"({', '.join(parts)}){returned}"
    return short if len(short) < 90 else "(\n" + "".join(f"    {part},\n" for part in parts) + f"){returned}"


def _source(thing: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(thing))).body[0]


def _attributes(thing: type) -> Iterator[str]:
    """Yield the documented attributes of a class: the strings below them in its source."""
    tree = _source(thing)
    assert isinstance(tree, ast.ClassDef)
    rows = []
    for statement, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign | ast.Assign) and isinstance(after, ast.Expr):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant):
                rows.append(f"- `{target.id}`: {' '.join(str(after.value.value).split())}")
    if rows:
        yield from ("", *rows)


def _fields(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """Yield a row for every field of a configuration, those of its sections included."""
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _fields(kind, f"{prefix}{name}.")
            continue
        if not field.description:
            raise SystemExit(f"{prefix}{name} has no description; write one below it")
        default = "" if field.is_required() else f"`{_shown(field.get_default(call_default_factory=True))}`"
        yield f"| `{prefix}{name}` | {default} | {' '.join(field.description.split()).replace('|', '∣')} |"


def _shown(value: object) -> str:
    """Return a default on one line; a long text is cut."""
    text = repr(value).replace("|", "∣").replace("`", "'")
    return text if len(text) <= 60 else f"{text[:57]}…"


def commands() -> str:
    """Return the page of the commands: the help of each."""
    lines = ["# Commands", "", "Made by `python -m scripts.reference` from the commands' own help; do not edit it.", ""]
    lines += ["Flags that stand for a field, completion and commits of the hub: [the command line](../commands.md)."]
    names = [name for group in cli.ORDER.values() for name in group]
    names += sorted({module.name for module in pkgutil.iter_modules(cli.__path__) if module.name[0] != "_"} - {*names})
    for name in names:
        shown = io.StringIO()
        with redirect_stdout(shown), patch.dict(os.environ, COLUMNS="100"):
            cli.main([name, "--help"])
        lines += ["", f"## `opasd {name}`", "", "```text", shown.getvalue().strip(), "```"]
    return "\n".join(lines) + "\n"


def recipes() -> str:
    """Return the page of the recipes, with the paper's numbers where there are some."""
    lines = [
        "# Recipes",
        "",
        "Made by `python -m scripts.reference`; do not edit it. Numbers are the paper's, in per cent.",
    ]
    lines += ["How to use, copy and vary recipes: [recipes and sweeps](../recipes.md)."]
    found = {name: load_recipe(name) for name in recipe_names()}
    for group, about in RECIPE_GROUPS.items():
        lines += [
            "",
            f"## {group.capitalize()}",
            "",
            f"{about}.",
            "",
            "| recipe | what | the paper's Avg@12 |",
            "|---|---|---|",
        ]
        for name, recipe in found.items():
            if recipe.group == group:
                lines.append(f"| `{name}` | {recipe.description} | {_published(recipe.expects)} |")
    return "\n".join(lines) + "\n"


def _published(expects: Any) -> str:
    """Return the published scores of a recipe, as `aime24 43.05, …`."""
    scores = (expects or {}).get("avg@12") or {}
    return ", ".join(f"{name} {_score(score)}" for name, score in scores.items())


def _score(score: Any) -> str:
    return " / ".join(f"{part}" for part in score.values()) if isinstance(score, dict) else f"{score}"


def pages() -> dict[Path, str]:
    """Return every page that this script writes."""
    folder = PAGE.parent / "reference"
    return {PAGE: page(), folder / "commands.md": commands(), folder / "recipes.md": recipes()}


def main() -> None:
    """Write the pages, or check them."""
    parser = argparse.ArgumentParser(description="Write the reference.")
    parser.add_argument("--check", action="store_true", help="only say whether the pages are current")
    check = parser.parse_args().check
    for path, text in pages().items():
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.name} is not current; run python -m scripts.reference")


if __name__ == "__main__":
    main()
