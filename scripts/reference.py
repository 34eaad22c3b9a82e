"""Write docs/reference.md: every public name with its signature and docstring, and every field of the configuration.

    python -m scripts.reference            # writes the page; `--check` only says whether it is current

A public name, argument or field without a description is an error.
"""

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import opasd

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
    """Return the page."""
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


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description="Write docs/reference.md.")
    parser.add_argument("--check", action="store_true", help="only say whether the page is current")
    text = page()
    if parser.parse_args().check:
        if PAGE.read_text(encoding="utf-8") != text:
            sys.exit("docs/reference.md is not current; run python -m scripts.reference")
    else:
        PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
