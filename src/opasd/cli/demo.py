"""Train the embedded model with OPSD and OPASD on this machine and show what they learned."""

import argparse
import sys
from pathlib import Path

from opasd.errors import ConfigError


def run(args: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="opasd demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a first look: --steps 6 --problems 300")
    parser.add_argument("--steps", type=_count, help="optimizer steps of each training (default: the recipe's)")
    parser.add_argument("--problems", type=_count, help="held-out problems answered (default: 1200)")
    parser.add_argument("--seed", type=_seed, default=42, help="seed of both trainings (default: 42)")
    parser.add_argument("--output", type=Path, help="folder to write; must be new (default: runs/demo-SEED or -quick)")
    options = parser.parse_args(args)
    folder = options.output or _fresh(Path("runs") / ("demo-quick" if options.quick else f"demo-{options.seed}"))
    if folder.exists():
        raise ConfigError(f"{folder} exists and is not overwritten; give another --output")
    from opasd.cli import _demo as demo

    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ConfigError(f"cannot make {folder}: {error.strerror}; give another --output") from error
    steps = options.steps or (6 if options.quick else None)
    demo.run(folder, seed=options.seed, steps=steps, problems=options.problems or (300 if options.quick else 1200))
    if options.quick and options.steps is None:
        sys.stdout.write("Six steps show that it runs; they are too few to learn much from. `opasd demo` takes 40.\n")
    sys.stdout.flush()
    return 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text!r}")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"expected a number from 0 to 4294967295, got {text!r}")
    return int(text)


def _fresh(folder: Path) -> Path:
    """The folder, or the first of folder-2, folder-3, … that is not there yet."""
    candidates = (folder, *(folder.with_name(f"{folder.name}-{number}") for number in range(2, 1000)))
    return next(candidate for candidate in candidates if not candidate.exists())
