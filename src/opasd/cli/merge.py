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
    from opasd.model.merging import merge
    from opasd.run.manifest import newest_result

    is_run = any((options.adapter / name).exists() for name in ("config.yaml", "final"))
    adapter = (newest_result(options.adapter) if is_run else None) or options.adapter
    if options.out.exists() and not _can_be_filled(options.out):
        raise ConfigError(f"{options.out} exists and is not empty, and is not overwritten; give a new folder")

    merge(adapter, options.out, trust_remote_code=options.trust_remote_code)
    sys.stdout.write(f"{options.out}\n")
    return 0


def _can_be_filled(out: Path) -> bool:
    """Return whether the folder is empty but for what a killed merge left: it moves config.json last."""
    from opasd.files import STAGED

    if not out.is_dir():
        return False
    staged = [path for path in out.iterdir() if path.name.startswith(STAGED)]
    return len(list(out.iterdir())) == len(staged) or any((path / "config.json").exists() for path in staged)
