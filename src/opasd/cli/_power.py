"""`opasd evaluate --power`: how many problems and samples a width or a difference needs.

`opasd sweep WHAT --power`: which difference its evaluations can find.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opasd.errors import ConfigError

if TYPE_CHECKING:
    from opasd.recipes.evaluate import EvaluateConfig
    from opasd.sweep.spec import SweepRun

SIZES, SAMPLES = (30, 60, 120, 250, 500, 1000), (1, 4, 12, 32)
ACCURACY, CORRELATION, AGREEMENT, CERTAINTY = 0.4, 0.6, 0.9, 0.8
ASSUMED = {"accuracy": ACCURACY, "correlation": CORRELATION, "agreement": AGREEMENT, "certainty": CERTAINTY}
"""What is assumed unless it is given."""


def add_power_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of --power to the parser of `opasd evaluate`."""
    group = parser.add_argument_group("before anything is drawn")
    group.add_argument(
        "--power",
        action="store_true",
        help="Say how many problems a claim needs, and stop. The flags below belong to it.",
    )
    group.add_argument(
        "--from", dest="measured", metavar="DIR", type=Path, help="Take the spread from this evaluation's folder."
    )
    for name, words in (
        ("accuracy", f"Expected accuracy, a share. (default: {ACCURACY})"),
        ("correlation", f"How alike two samples of one problem are. (default: {CORRELATION}, as on AIME)"),
        ("agreement", f"How alike two models' accuracies are, problem by problem. (default: {AGREEMENT})"),
        ("certainty", f"Chance of finding a difference that is there. (default: {CERTAINTY})"),
    ):
        group.add_argument(f"--{name}", type=float, metavar="X", help=words)
    group.add_argument(
        "--width", type=float, metavar="POINTS", help="Wanted width of an accuracy's interval, in points."
    )
    group.add_argument("--difference", type=float, metavar="POINTS", help="Difference to find, in points.")


def check_power_flags(options: argparse.Namespace) -> None:
    """Refuse flags of --power that are given without it, and shares and points that are none."""
    given = {name: value for name in (*ASSUMED, "width", "difference") if (value := getattr(options, name)) is not None}
    if not options.power and (given or options.measured):
        flag = "from" if options.measured else next(iter(given))
        raise ConfigError(f"--{flag}: got it without --power, which it belongs to; add --power, or leave it out")
    if options.power and options.json:
        raise ConfigError("--json: got it with --power, which prints a table alone; leave it out")
    for name, value in given.items():
        largest, what = (1, "a share between 0 and 1") if name in ASSUMED else (100, "points between 0 and 100")
        if not 0 < value < largest:
            raise ConfigError(f"--{name}: got {value:g}; give {what}")


def power(options: argparse.Namespace) -> int:
    """Print a table for the assumed spread, or for that of each benchmark of an evaluation."""
    from opasd.evaluation.folder import RESULTS
    from opasd.evaluation.power import assumed, measured_spreads, power_rows
    from opasd.files import read_object
    from opasd.rounding import aligned, fixed, per_cent

    for name, value in ASSUMED.items():
        setattr(options, name, value if getattr(options, name) is None else getattr(options, name))
    spreads = {"assumed": assumed(options.accuracy, options.correlation, options.agreement)}
    if options.measured:
        try:
            spreads = measured_spreads(read_object(options.measured / RESULTS), options.agreement)
        except (KeyError, TypeError, AttributeError):
            raise ConfigError(f"{options.measured} has no results; give the folder of a finished evaluation") from None
    given = _samples(getattr(options, "samples", None))
    for name, spread in spreads.items():
        sys.stdout.write(
            f"{name}: standard deviation of rates over problems {spread.between**0.5:.3f}, of one sample "
            f"{spread.within**0.5:.3f}, of two models' difference {spread.difference**0.5:.3f}\n"
        )
        header = ["problems", "samples", "width of Avg", "width of a difference", "difference that is found"]
        rows = power_rows(spread, SIZES, [given] if given else SAMPLES, options.certainty)
        lines = [[str(row[0]), str(row[1]), *(fixed(per_cent(value), 1) for value in row[2:])] for row in rows]
        sys.stdout.writelines(f"{line}\n" for line in aligned([header, *lines]))
        sys.stdout.write(f"in points; found: with a chance of {options.certainty:g}\n")
        wanted = (("a width of", options.width, None), ("a difference of", options.difference, options.certainty))
        for words, points, certainty in wanted:
            for n in [given] if given else SAMPLES if points else ():
                if points:
                    needed = spread.problems_for(points / 100, n, certainty)
                    count = "more than a million" if needed is None else f"{needed:,}"
                    sys.stdout.write(
                        f"{words} {points:g} points with {n} sample{'s' * (n > 1)} a problem needs {count} problems\n"
                    )
    return 0


def _samples(text: object) -> int | None:
    if text is None:
        return None
    if not str(text).isdigit() or int(str(text)) == 0:
        raise ConfigError(f"--samples: got {text!r}; give a whole number greater than 0")
    return int(str(text))


def sweep_power(runs: "Sequence[SweepRun]") -> str:
    """Return two lines for each way in which runs are evaluated: the difference that can be found, and what is assumed.

    A method's score is the mean over its seeds, so n samples of each of s seeds are n s samples of a problem.
    """
    from opasd.evaluation.power import assumed, averaged_problems
    from opasd.lab import LAB
    from opasd.rounding import fixed, per_cent

    spread, lines = assumed(ACCURACY, CORRELATION, AGREEMENT), []
    seeds = Counter(run.group for run in runs)
    trained = [run for run in runs if not run.evaluate_only] or runs
    plans: dict[tuple[tuple[tuple[str, int], ...], int, int], None] = {}
    for run in trained:
        profile = run.profile()
        if profile and run.evaluate:
            sizes = _sizes(run.evaluate, lab=run.model == LAB)
            plans[tuple(sizes.items()), profile.samples, seeds[run.group]] = None
    if not plans:
        raise ConfigError("--power: nothing is evaluated; add evaluate: to the sweep, or leave --no-evaluation out")
    for sizes, samples, count in plans:
        smallest = min(size for _, size in sizes)
        found, alone = (
            fixed(per_cent(spread.detectable(max(2, number), samples * count, CERTAINTY)), 1)
            for number in (averaged_problems([size for _, size in sizes]), smallest)
        )
        names = ", ".join(f"{name} {size:,}" for name, size in sizes)
        each = f"; on the {smallest:,} of one benchmark {alone}" if len(sizes) > 1 else ""
        size = f"{names} problems × {samples} samples × {count} seed{'s' * (count > 1)}"
        lines.append(
            f"power: {size}: a difference of {found} points between two methods is found with a chance of "
            f"{CERTAINTY:g}{each}"
        )
        lines.append(
            f"assumed: Avg {ACCURACY:g}, correlation {CORRELATION:g}, agreement {AGREEMENT:g} (opasd evaluate --power "
            "takes others); what seeds of training change comes on top"
        )
    return "".join(f"{line}\n" for line in lines)


def _sizes(options: "EvaluateConfig", *, lab: bool) -> dict[str, int]:
    """Return the number of problems of each benchmark; one on the hub has as many as its entry says."""
    from opasd.evaluation.benchmarks import is_local, load, requested_benchmarks

    sizes = {}
    for entry in requested_benchmarks(options, lab=lab):
        known = entry.problems
        if known is None and is_local(entry, options.data_dir):
            known = len(load(entry, options.data_dir, options.problems).problems)
        if known is None and options.problems is None:
            raise ConfigError(
                f"--power: {entry.name} does not say how many problems it has; give --evaluate.problems, or add "
                "problems: to its entry"
            )
        sizes[entry.name] = min(n for n in (known, options.problems) if n is not None)
    return sizes
