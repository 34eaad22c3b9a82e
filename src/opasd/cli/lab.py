"""Print problems of the embedded task as JSON lines."""

import json
import sys
from argparse import ArgumentTypeError

from opasd.cli._flags import whole_number
from opasd.cli._parser import Parser
from opasd.errors import ConfigError


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("lab", __doc__, usage="opasd lab problems [COUNT]")
    command.add_argument("action", metavar="problems", nargs="?", help="Print training problems as rows for --data.")
    command.add_argument("count", metavar="COUNT", nargs="*", help="How many. (default: 5)")
    return command


def run(args: list[str]) -> int:
    """The command."""
    if args[:1] == ["pretrain"]:
        raise ConfigError(
            "opasd lab pretrain is not part of the package any more; "
            "run `python -m scripts.lab.pretrain --output MODEL` in a checkout of the repository"
        )
    command = parser()
    options = command.parse_args(args)
    action, rest = options.action, options.count
    if action is None:
        sys.stdout.write(command.format_help())
        return 0
    if action != "problems":
        raise ConfigError(f'opasd lab has no "{action[:60]}"; it has problems')
    try:
        count = 5 if not rest else whole_number(0, 10**6)(" ".join(rest))
    except ArgumentTypeError as error:
        raise ConfigError(f"opasd lab problems: {error}") from None
    from opasd.data.made.counts import make_problems

    for problem in make_problems("train", count, 0):
        row = {"problem": problem.question, "solution": problem.solution, "answer": problem.answer, "id": problem.id}
        sys.stdout.write(f"{json.dumps(row, ensure_ascii=False)}\n")
    return 0
