"""Show where teacher and student look along a trajectory, as a page.

A RUN is shown before and after training, a MODEL as it is; `opasd attend lab --problem 3` needs no download.
"""

import argparse
import sys
from pathlib import Path

from opasd.cli._flags import whole_number
from opasd.cli._parser import Parser
from opasd.errors import ConfigError


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("attend", __doc__, usage="opasd attend RUN_OR_MODEL [--problem N] [options]")
    command.add_argument(
        "source", metavar="RUN_OR_MODEL", nargs="?", help="A run's folder, `lab`, a model's folder or hub name."
    )
    command.add_argument("--model", metavar="MODEL", help="The same as RUN_OR_MODEL.")
    command.add_argument(
        "--problem", dest="numbers", type=whole_number(1), nargs="+", default=[1], metavar="N",
        help="Which problems, from 1. (default: 1)",
    )  # fmt: skip
    command.add_argument(
        "--data", metavar="SOURCE", help="Problems with solutions. (default: the run's, or the lab's own)"
    )
    command.add_argument(
        "--completion", type=Path, metavar="FILE", help="A text to look at, in place of a sampled answer."
    )
    command.add_argument(
        "--sampler", choices=("after", "before"), default="after",
        help="Who answers: the trained model or the untrained one. (default: after)",
    )  # fmt: skip
    command.add_argument(
        "--layers", metavar="K|N,N|all", help="The last K layers, those numbered from 0, or all. (default: the run's)"
    )
    command.add_argument(
        "--heads", action=argparse.BooleanOptionalAction, default=None,
        help="Keep each head beside their mean. (default: where that is small)",
    )  # fmt: skip
    command.add_argument("--seed", metavar="N", type=int, default=0, help="Seed of the sampled answer. (default: 0)")
    command.add_argument(
        "--max-new-tokens", type=whole_number(1), metavar="N", help="Longest answer. (default: the run's)"
    )
    command.add_argument(
        "--output", "--out", dest="out", type=Path, metavar="FILE",
        help="Page to write. (default: in the run's folder `attention`)",
    )  # fmt: skip
    command.add_argument(
        "--figures", type=Path, metavar="DIR",
        help="Also draw the first problem's two contexts and its projection there, as SVG.",
    )  # fmt: skip
    command.add_argument("--trust-remote-code", action="store_true", help="Run the code that comes with the model.")
    return command


def run(args: list[str]) -> int:
    """The command."""
    options = vars(parser().parse_args(args))
    model = options.pop("model")
    if bool(options["source"]) == bool(model):
        raise ConfigError("nothing to look at; give a run's folder or a model, such as `opasd attend lab`, once")
    options["source"] = options["source"] or model
    if options["completion"] is not None and len(options["numbers"]) > 1:
        raise ConfigError("--completion is the answer to one problem; give one number after --problem")
    from opasd.report.attend import attend

    sys.stdout.write(f"{attend(**options)}\n")
    return 0
