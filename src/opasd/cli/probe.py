"""Measure, before any training, whether a model has a teacher worth learning from.

The model answers held-out problems as student and as teacher, and reads the student's answers in both roles. Takes
what `opasd train` takes; nothing is trained.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from opasd.cli._options import ConfigOptions, parse
from opasd.cli._preview import check
from opasd.cli._processes import Processes
from opasd.errors import ConfigError, error_prefix
from opasd.files import write_new
from opasd.progress import SampleProgress
from opasd.run.environment import environment


@dataclass(frozen=True)
class ProbeOptions(ConfigOptions):
    """The command's own options."""

    problems: int = 64
    """Problems: the first ones of the validation sets that have solutions; of the training data if there is none."""
    samples: int = 4
    """Answers of the student to each problem; a problem tells something where some are right and some are wrong."""
    json: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Write the summary, every answer's figures, the settings and the versions to this file, which must be new."""


def run(args: list[str]) -> int:
    """The command."""
    options, recipe, config = parse(ProbeOptions, args, prog="opasd probe", about=__doc__ or "")
    if (world := Processes.current().world) > 1:
        raise ConfigError(f"opasd probe is one process, got a launch of {world}; run it without a launcher")
    for name in ("problems", "samples"):
        if (value := getattr(options, name)) < 1:
            raise ConfigError(f"--{name}: got {value}; give 1 or more")
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
