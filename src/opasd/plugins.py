"""Extensions from outside the package: modules that register what the package does not have.

A plugin is a Python module. When it is imported it calls `opasd.register_divergence`, `register_teacher`,
`register_engine`, `register_benchmark`, `register_grader` or `register_loss_term`. It is loaded

    in Python         by `import my_module`
    by a recipe       `plugins: [my_module]`, or `--plugins my_module` on the command line
    by its package    an entry point of the group `opasd.plugins`, for every command

A run's folder never loads a plugin: whoever runs a command names the modules that it may import.
"""

import importlib
import os
import sys
from importlib.metadata import entry_points

from opasd.errors import ConfigError

GROUP = "opasd.plugins"
LOADED: set[str] = set()
"""Names of the plugins that were imported."""
GRADERS: set[str] = set()
"""Graders, as `module:function`, that whoever runs the command has named."""


def load(names: object) -> None:
    """Import modules by name, from the current folder too; anything but a list of texts is left to its checker."""
    for name in missing(names):
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        _import(name, name)


def load_installed() -> None:
    """Import the plugins that installed packages declare."""
    for entry in entry_points(group=GROUP):
        if entry.module not in LOADED:
            _import(entry.module, f"{entry.module} (entry point {entry.name!r})")


def missing(names: object) -> list[str]:
    """Return those of a configuration's plugins that are not loaded."""
    texts = names if isinstance(names, list | tuple) else ()
    return [name for name in texts if isinstance(name, str) and name not in LOADED]


def name_grader(grader: object) -> None:
    """Note that whoever runs the command has named this grader, so that a run's folder may name it too."""
    if isinstance(grader, str):
        GRADERS.add(grader)


def unnamed_module(grader: object) -> list[str]:
    """Return the module of a grader that neither a command nor a recipe has named."""
    module, colon, _ = grader.partition(":") if isinstance(grader, str) else ("", "", "")
    return [module] if colon and grader not in GRADERS and module not in LOADED else []


def _import(name: str, title: str) -> None:
    try:
        importlib.import_module(name)
    except Exception as error:
        reason = str(error).strip().splitlines()
        what = f"{type(error).__name__}: {reason[0][:200]}" if reason else type(error).__name__
        raise ConfigError(
            f"plugins: {title} cannot be imported ({what}); give the name of a module in the current folder or an "
            "installed one"
        ) from error
    LOADED.add(name)
