"""Show one table over many evaluations, best first, or write them in another tool's form.

Folders are those of `opasd evaluate`, or folders of such folders. What was asked differently is named below the table.
"""

import sys
from pathlib import Path

from opasd.cli._parser import Parser
from opasd.errors import ConfigError

EXAMPLES = """\
examples:
  opasd leaderboard evaluations
  opasd leaderboard evaluations/a evaluations/b --format csv > scores.csv
  opasd leaderboard evaluations/a --export lm-eval --output exported"""


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("leaderboard", __doc__, usage="opasd leaderboard FOLDER [FOLDER ...] [options]", more=EXAMPLES)
    command.add_argument("folders", metavar="FOLDER", nargs="+", type=Path, help="Folders of evaluations.")
    command.add_argument(
        "--format", choices=("text", "markdown", "csv", "json"), default="text",
        help="Form of the table. (default: text)",
    )  # fmt: skip
    command.add_argument("--export", choices=("lighteval", "lm-eval"), help="Write files of that tool's form instead.")
    command.add_argument("--output", metavar="DIR", type=Path, help="Folder of the exported files.")
    return command


def run(args: list[str]) -> int:
    """Run the command."""
    options = parser().parse_args(args)
    if (options.export is None) != (options.output is None):
        raise ConfigError("--export and --output go together; give both or neither")
    from opasd.evaluation.folder import RESULTS
    from opasd.evaluation.leaderboard import as_csv, as_json, cells, leaderboard, read_entries, result_files
    from opasd.evaluation.results import markdown
    from opasd.rounding import aligned

    if options.export:
        from opasd.evaluation.export import export

        for file in dict.fromkeys(found for folder in options.folders for found in result_files(folder)):
            if file.name != RESULTS:
                raise ConfigError(f"--export reads {RESULTS}, got {file}; give the evaluation's folder")
            sys.stdout.writelines(f"{path}\n" for path in export(file.parent, options.export, options.output))
        return 0
    entries = read_entries(options.folders)
    if not entries:
        raise ConfigError("these evaluations have no results yet; finish one with opasd evaluate")
    rows, notes = leaderboard(entries)
    if options.format == "json":
        sys.stdout.write(as_json(rows, notes))
    elif options.format == "csv":
        sys.stdout.write(as_csv(rows))
        sys.stderr.writelines(f"{note}\n" for note in notes)
    else:
        header, *lines = cells(rows)
        table = markdown(header, lines) if options.format == "markdown" else "\n".join(aligned([header, *lines])) + "\n"
        sys.stdout.write(table + "".join(f"\n{note}\n" for note in notes))
    return 0
