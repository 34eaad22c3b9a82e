"""The embedded task and model: `opasd lab pretrain` trains the model anew, `opasd lab problems` shows the task."""

import sys

from opasd.errors import ConfigError

USAGE = """usage: opasd lab pretrain [options]    train the embedded model anew (see its --help)
       opasd lab problems [COUNT]      print problems of the embedded task as JSON lines, fit for data.source
"""


def run(args: list[str]) -> int:
    """The command."""
    action, rest = (args[0], args[1:]) if args else ("--help", [])
    if action in ("-h", "--help") or (action == "problems" and {"-h", "--help"} & set(rest)):
        sys.stdout.write(USAGE)
        return 0
    if action == "pretrain":
        from scripts.lab.pretrain import main

        main(rest)
        return 0
    if action == "problems":
        return _problems(rest)
    raise ConfigError(f'opasd lab has no "{action[:60]}"; it has pretrain and problems')


def _problems(rest: list[str]) -> int:
    import json

    from opasd.data.made.counts import make_problems

    if len(rest) > 1 or (rest and not rest[0].isdigit()):
        raise ConfigError(f"opasd lab problems takes a number of problems, got {' '.join(rest)[:60]!r}")
    for problem in make_problems("train", int(rest[0]) if rest else 5, 0):
        row = {"problem": problem.question, "solution": problem.solution, "answer": problem.answer, "id": problem.id}
        sys.stdout.write(f"{json.dumps(row, ensure_ascii=False)}\n")
    return 0
