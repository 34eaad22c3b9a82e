"""Merge a trained adapter into its base model, and write that."""

import sys
from pathlib import Path

from opasd.cli._parser import Parser
from opasd.errors import ConfigError


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("merge", __doc__, usage="opasd merge ADAPTER OUT")
    command.add_argument("adapter", metavar="ADAPTER", type=Path, help="Folder of a run or an adapter.")
    command.add_argument("out", metavar="OUT", type=Path, nargs="?", help="Folder to write; must be new or empty.")
    command.add_argument("--output", metavar="OUT", type=Path, help="The same as OUT.")
    command.add_argument(
        "--trust-remote-code", action="store_true", help="Run the code that comes with the base model."
    )
    return command


def run(args: list[str]) -> int:
    """The command."""
    options = parser().parse_args(args)
    if (options.out is None) == (options.output is None):
        raise ConfigError("give the folder to write once, as in `opasd merge runs/NAME merged`")
    output = options.out or options.output
    if not options.adapter.is_dir():
        raise ConfigError(f"no folder {options.adapter}; give a run's or an adapter's folder, such as runs/NAME/final")
    from opasd.model.merging import merge
    from opasd.run.manifest import damage_of, newest_result

    is_run = any((options.adapter / name).exists() for name in ("config.yaml", "final"))
    adapter = (newest_result(options.adapter) if is_run else None) or options.adapter
    if fault := None if is_run else damage_of(adapter):
        raise ConfigError(f"{adapter} is damaged: {fault}; give a whole copy, or another checkpoint")
    if output.exists() and not _can_be_filled(output):
        raise ConfigError(f"{output} exists and is not empty, and is not overwritten; give a new folder")

    merge(adapter, output, trust_remote_code=options.trust_remote_code)
    sys.stdout.write(f"{output}\n")
    return 0


def _can_be_filled(out: Path) -> bool:
    """Return whether the folder is empty, or a killed merge has left it: what it staged lies there until its end."""
    from opasd.files import STAGED

    if not out.is_dir():
        return False
    paths = list(out.iterdir())
    staged = [path for path in paths if path.name.startswith(STAGED) and path.is_dir()]
    ended = (out / "config.json").exists()  # moved last; what was staged is then empty
    left = any((path / "config.json").exists() or (ended and not any(path.iterdir())) for path in staged)
    return len(staged) == len(paths) or left
