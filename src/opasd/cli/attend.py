"""Show where teacher and student look along a trajectory, as a page.

A RUN is shown before and after training, a MODEL as it is; `opasd attend lab --problem 3` needs no download.
"""

import argparse
import sys
from pathlib import Path

from opasd.cli._flags import whole_number
from opasd.errors import ConfigError


def run(args: list[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="opasd attend", description=__doc__)
    parser.add_argument("source", metavar="RUN_OR_MODEL", help="a run's folder, `lab`, a model's folder or hub name")
    parser.add_argument(
        "--problem", dest="numbers", type=whole_number(1), nargs="+", default=[1], metavar="N",
        help="which problems, from 1 (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="SOURCE", help="problems with solutions (default: the run's, or the lab's own)"
    )
    parser.add_argument("--completion", type=Path, metavar="FILE", help="a text to look at instead of a sampled answer")
    parser.add_argument("--sampler", choices=("after", "before"), default="after", help="who answers (default: after)")
    parser.add_argument(
        "--layers", metavar="K|N,N|all", help="the last K layers, those numbered from 0, or all (default: the run's)"
    )
    parser.add_argument(
        "--heads", action=argparse.BooleanOptionalAction, default=None,
        help="keep each head beside their mean (default: where that is small)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="seed of the sampled answer (default: 0)")
    parser.add_argument(
        "--max-new-tokens", type=whole_number(1), metavar="N", help="longest answer (default: the run's)"
    )
    parser.add_argument(
        "--output", "--out", dest="out", type=Path, metavar="FILE",
        help="page to write (default: in the run's attention folder)",
    )  # fmt: skip
    parser.add_argument(
        "--figures", type=Path, metavar="DIR",
        help="also draw the first problem's two contexts and its projection there, as SVG",
    )  # fmt: skip
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code that comes with the model")
    options = parser.parse_args(args)
    if options.completion is not None and len(options.numbers) > 1:
        raise ConfigError("--completion is the answer to one problem; give one number after --problem")
    from opasd.report.attend import attend

    sys.stdout.write(f"{attend(**vars(options))}\n")
    return 0
