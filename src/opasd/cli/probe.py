"""Measure, before training, whether a model has a teacher to learn from.

The model answers held-out problems as student and as teacher, and reads the student's answers in both roles. Takes
what `opasd train` takes; nothing is trained.
"""

import json
import os
import sys
from pathlib import Path

from opasd.cli._flags import whole_number
from opasd.cli._options import ConfigParser
from opasd.cli._preview import check
from opasd.cli._processes import Processes
from opasd.errors import ConfigError, error_prefix
from opasd.files import write_new
from opasd.progress import SampleProgress
from opasd.run.environment import environment


def parser() -> ConfigParser:
    """Return the command's parser."""
    command = ConfigParser("probe", __doc__, groups=("what", "how", "the probe"))
    command.option(
        "the probe", "--problems", metavar="N", type=whole_number(1), default=64,
        help="Problems: the first of the validation sets that have solutions, or of the training data. (default: 64)",
    )  # fmt: skip
    command.option(
        "the probe", "--samples", metavar="N", type=whole_number(1), default=4,
        help="Answers of the student to each problem; one with right and wrong ones tells something. (default: 4)",
    )  # fmt: skip
    command.option(
        "the probe", "--json", metavar="FILE",
        help="Write the summary, every answer's figures, the settings and the versions to this new file.",
    )  # fmt: skip
    return command


def run(args: list[str]) -> int:
    """The command."""
    options, recipe, config = parser().parse(args, start=True)
    if (world := Processes.current().world) > 1:
        raise ConfigError(f"opasd probe is one process, got a launch of {world}; run it without a launcher")
    target = None if options.json is None else Path(os.path.expanduser(options.json))
    if target is not None:  # a mistake in the path shows before the work
        _write(target, "")
        target.unlink()
    check(config, 1)
    from opasd.probe.measure import probe
    from opasd.probe.page import probe_page
    from opasd.probe.summary import summarise

    progress = SampleProgress()
    try:
        measured = probe(config, count=options.problems, samples=options.samples, progress=progress)
    finally:
        progress.end()
    summary = summarise(measured)
    sys.stdout.write(probe_page(recipe.name, config, len(measured.student), options.samples, summary))
    if target is not None:
        settings = {"source": options.source, "problems": options.problems, "samples": options.samples}
        settings["config"] = config.model_dump(mode="json")
        about = {"settings": settings, "environment": environment(["opasd", *sys.argv[1:]])}
        _write(target, json.dumps({"summary": summary, **about, **measured.to_dict()}, indent=1, ensure_ascii=False))
        sys.stderr.write(f"{target}\n")
    return 0


def _write(target: Path, text: str) -> None:
    with error_prefix("--json"):
        write_new(target, text)
