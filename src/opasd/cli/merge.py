"""Merge a trained adapter into its base model and write the whole model."""

import argparse
import sys
from pathlib import Path

from opasd.errors import ConfigError


def run(args: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="opasd merge", description=__doc__)
    parser.add_argument("adapter", metavar="ADAPTER", type=Path, help="folder of a run or an adapter")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; must be new or empty")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code that comes with the base model")
    options = parser.parse_args(args)
    if not options.adapter.is_dir():
        raise ConfigError(f"no folder {options.adapter}; give a run's or an adapter's folder, such as runs/NAME/final")
    adapter = options.adapter / "final" if (options.adapter / "final").is_dir() else options.adapter
    from opasd.files import STAGED

    if options.out.exists() and (
        not options.out.is_dir() or any(not path.name.startswith(STAGED) for path in options.out.iterdir())
    ):
        raise ConfigError(f"{options.out} exists and is not empty, and is not overwritten; give a new folder")
    from opasd.model.merging import merge

    merge(adapter, options.out, trust_remote_code=options.trust_remote_code)
    sys.stdout.write(f"{options.out}\n")
    return 0
