"""`opasd evaluate --power`: how many problems and samples a width or a difference needs."""

import argparse
import sys
from pathlib import Path

from opasd.errors import ConfigError

SIZES, SAMPLES = (30, 60, 120, 250, 500, 1000), (1, 4, 12, 32)


def add_power_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of --power to the parser of `opasd evaluate`."""
    group = parser.add_argument_group("power: before anything is drawn")
    group.add_argument("--power", action="store_true", help="Say how many problems a claim needs, and stop.")
    group.add_argument("--from", dest="measured", metavar="DIR", type=Path, help="An evaluation whose spread counts.")
    group.add_argument("--accuracy", type=float, default=0.4, metavar="X", help="Expected Avg; 0.4.")
    group.add_argument(
        "--correlation", type=float, default=0.6, metavar="X", help="Of two samples of one problem; 0.6, as on AIME."
    )
    group.add_argument("--agreement", type=float, default=0.9, metavar="X", help="Of two models' rates; 0.9.")
    group.add_argument("--width", type=float, metavar="POINTS", help="Wanted width of Avg's interval, in points.")
    group.add_argument("--difference", type=float, metavar="POINTS", help="Difference to find, in points.")
    group.add_argument("--certainty", type=float, default=0.8, metavar="X", help="Chance of finding it; 0.8.")


def power(options: argparse.Namespace) -> int:
    """Print a table for the assumed spread, or for that of each benchmark of an evaluation."""
    from opasd.evaluation.folder import RESULTS
    from opasd.evaluation.power import assumed, measured_spreads, power_rows
    from opasd.files import read_object
    from opasd.rounding import aligned, fixed, per_cent

    for name in ("accuracy", "correlation", "agreement", "certainty"):
        if not 0 < getattr(options, name) < 1:
            raise ConfigError(f"--{name}: got {getattr(options, name):g}; give a share between 0 and 1")
    for name in ("width", "difference"):
        wanted = getattr(options, name)
        if wanted is not None and not 0 < wanted < 100:
            raise ConfigError(f"--{name}: got {wanted:g}; give percentage points between 0 and 100")
    spreads = {"assumed": assumed(options.accuracy, options.correlation, options.agreement)}
    if options.measured:
        try:
            spreads = measured_spreads(read_object(options.measured / RESULTS), options.agreement)
        except (KeyError, TypeError, AttributeError):
            raise ConfigError(f"{options.measured} has no results; give the folder of a finished evaluation") from None
    given = int(options.samples) if str(getattr(options, "samples", "")).isdigit() else None
    for name, spread in spreads.items():
        sys.stdout.write(
            f"{name}: standard deviation of rates over problems {spread.between**0.5:.3f}, of one sample "
            f"{spread.within**0.5:.3f}, of two models' difference {spread.difference**0.5:.3f}\n"
        )
        header = ["problems", "samples", "width of Avg", "width of a difference", f"found with {options.certainty:g}"]
        rows = power_rows(spread, SIZES, [given] if given else SAMPLES, options.certainty)
        lines = [[str(row[0]), str(row[1]), *(fixed(per_cent(value), 1) for value in row[2:])] for row in rows]
        sys.stdout.writelines(f"{line}\n" for line in aligned([header, *lines]))
        wanted = (("a width of", options.width, None), ("a difference of", options.difference, options.certainty))
        for words, points, certainty in wanted:
            for n in [given] if given else SAMPLES if points else ():
                if points:
                    needed = spread.problems_for(points / 100, n, certainty)
                    count = "more than a million" if needed is None else f"{needed:,}"
                    sys.stdout.write(f"{words} {points:g} points with {n} samples a problem needs {count} problems\n")
    return 0
