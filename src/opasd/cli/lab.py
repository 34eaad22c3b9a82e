"""Print problems of the embedded task as JSON lines: `opasd lab problems`."""

import json
import sys

from opasd.errors import ConfigError

USAGE = """usage: opasd lab problems [COUNT]    print the first COUNT (5) training problems as rows fit for data.source
"""


def run(args: list[str]) -> int:
    """The command."""
    action, rest = (args[0], args[1:]) if args else ("--help", [])
    if action in ("-h", "--help") or (action == "problems" and {"-h", "--help"} & set(rest)):
        sys.stdout.write(USAGE)
        return 0
    if action == "pretrain":
        raise ConfigError(
            "opasd lab pretrain is not part of the package any more; "
            "run `python -m scripts.lab.pretrain --output MODEL` in a checkout of the repository"
        )
    if action != "problems":
        raise ConfigError(f'opasd lab has no "{action[:60]}"; it has problems')
    if len(rest) > 1 or (rest and not rest[0].isdigit()):
        raise ConfigError(f"opasd lab problems takes a number of problems, got {' '.join(rest)[:60]!r}")
    from opasd.data.made.counts import make_problems

    for problem in make_problems("train", int(rest[0]) if rest else 5, 0):
        row = {"problem": problem.question, "solution": problem.solution, "answer": problem.answer, "id": problem.id}
        sys.stdout.write(f"{json.dumps(row, ensure_ascii=False)}\n")
    return 0
