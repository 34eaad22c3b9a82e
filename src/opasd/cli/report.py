"""Make one page of runs: results, figures, tables, samples, settings.

A RUN is a folder that `opasd train` or `opasd evaluate` made, or a folder of such; the others are compared with the
first. Beside the page: figures as SVG with their data, tables as CSV, Markdown and LaTeX.
"""

import sys
from pathlib import Path

from opasd.cli._parser import Parser
from opasd.errors import ConfigError


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("report", __doc__, usage="opasd report [RUN ...] [options]")
    command.add_argument(
        "runs",
        metavar="RUN",
        nargs="*",
        type=Path,
        help="Folders of runs or evaluations. None are needed with --facts.",
    )
    command.add_argument(
        "--output", "--out", dest="out", metavar="DIR", type=Path, default=Path("report"),
        help="Folder to write. (default: report)",
    )  # fmt: skip
    command.add_argument(
        "--facts", action="append", default=[], metavar="FILE",
        help="Published numbers to show too: a YAML or JSON file, or `paper` for the paper's own.",
    )  # fmt: skip
    command.add_argument("--title", metavar="TEXT", default="", help="Heading of the page.")
    command.add_argument("--png", action="store_true", help="Figures as PNG too (needs opasd[png]).")
    return command


def run(args: list[str]) -> int:
    """The command."""
    options = parser().parse_args(args)
    if not options.runs and not options.facts:
        raise ConfigError("nothing to report on; give run folders, such as runs/NAME, or --facts paper")
    from opasd.report.build import build_report, check_folder, write_report
    from opasd.report.charts import rasteriser
    from opasd.report.facts import read_facts
    from opasd.report.folders import read_runs
    from opasd.report.page import alike

    check_folder(options.out)
    rasterise = rasteriser() if options.png else None
    facts = [read_facts(name) for name in options.facts]
    runs = read_runs(options.runs)
    for names, notes in alike({shown.name: shown.notes for shown in runs}):
        listed = ", ".join(names) if len(names) < 4 else f"{', '.join(names[:2])} and {len(names) - 2} more"
        for note in notes:
            sys.stderr.write(f"{listed}: {note}\n")
    page = write_report(build_report(runs, facts, title=options.title), options.out, rasterise)
    sys.stdout.write(f"{page}\n")
    return 0
