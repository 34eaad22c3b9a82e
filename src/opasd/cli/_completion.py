"""Completion of commands, recipes, flags and their values in a shell.

The shell's script asks `opasd --complete WORDS...` for what may stand in place of the last word; where nothing is
offered, the shell completes file names.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from opasd.choices import OneOf
from opasd.cli._parser import Parser
from opasd.errors import ConfigError, closest
from opasd.recipes import recipe_names
from opasd.recipes.checking import leaves, types_along
from opasd.recipes.fields import SHORT_FLAGS, flag_of

SCRIPTS = {
    "bash": """\
# opasd --print-completion bash > ~/.local/share/bash-completion/completions/opasd
_opasd() {
    local IFS=$'\\n'
    COMPREPLY=($(opasd --complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _opasd opasd
""",
    "zsh": """\
#compdef opasd
# opasd --print-completion zsh > a folder of $fpath/_opasd
_opasd() {
    local -a found
    found=("${(@f)$(opasd --complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then compadd -a found; else _files; fi
}
if [[ "${funcstack[1]}" == _opasd ]]; then _opasd "$@"; else compdef _opasd opasd; fi
""",
    "fish": """\
# opasd --print-completion fish > ~/.config/fish/completions/opasd.fish
complete -c opasd -a '(set -l words (commandline -opc) (commandline -ct); opasd --complete $words[2..] 2>/dev/null)'
""",
}
_GLOBAL = ("--help", "--version", "--print-completion")
_TAKES_A_RECIPE = ("train", "validate", "plan", "prompt", "probe")


def run(flag: str, words: list[str], commands: list[str]) -> int:
    """Print a shell's script, or one completion a line."""
    if flag == "--complete":
        found = (word for word in candidates(words[:-1], commands) if word.startswith(words[-1] if words else ""))
        sys.stdout.write("".join(f"{word}\n" for word in found))
        return 0
    shell = words[0] if words else ""
    if shell not in SCRIPTS:
        hint = closest(shell, SCRIPTS, 0.5) or f"give one of {', '.join(SCRIPTS)}"
        raise ConfigError(f"--print-completion: got {shell[:40]!r}; {hint}")
    sys.stdout.write(SCRIPTS[shell])
    return 0


def candidates(before: Sequence[str], commands: Sequence[str]) -> list[str]:
    """Return what may follow these words."""
    if not before:
        return [*commands, *_GLOBAL]
    if before[0] == "--print-completion":
        return list(SCRIPTS)
    if before[0] not in commands:
        return []
    module = importlib.import_module(f"opasd.cli.{before[0]}")
    if not hasattr(module, "parser"):
        return ["--help"]
    parser = module.parser()
    if before[-1].startswith("--") and (values := _values(before[-1], parser)) is not None:
        return values
    return [*parser.flags(), *_names(before[0], before[1:])]


def _names(command: str, before: Sequence[str]) -> list[str]:
    """Return the names that a command takes: recipes, sweeps, actions."""
    if command == "sweep":
        from opasd.sweep.spec import sweep_names

        return [*sweep_names(), *recipe_names()]
    if command in _TAKES_A_RECIPE:
        return [] if before and not before[0].startswith("-") else recipe_names()
    if command == "recipes":
        return recipe_names() if "show" in before or "copy" in before else ["list", "show", "copy"]
    return {"lab": ["problems"], "evaluate": ["base", "lab"], "attend": ["lab"]}.get(command, [])


def _values(flag: str, parser: Parser) -> list[str] | None:
    """Return the values that may follow a flag, empty for files and numbers; None if nothing need follow."""
    field = SHORT_FLAGS.get(flag) or next((name for name in _fields() if flag_of(name) == flag), None)
    actions = [action for action in parser._actions if flag in action.option_strings]
    if actions:
        return None if actions[0].nargs in (0, "?") else list(actions[0].choices or ())
    if field is None:
        return None
    *parents, name = field.split(".")
    known = types_along(parents)[-1].model_fields[name]
    if known.annotation is bool:
        return ["true", "false"]
    if get_origin(known.annotation) is Literal:
        return list(map(str, get_args(known.annotation)))
    return [word for choice in known.metadata if isinstance(choice, OneOf) for word in choice.table]


def _fields() -> list[str]:
    return [".".join(path) for path, _ in leaves()]
