"""Measure, before training, whether a model has a teacher to learn from.

The model answers held-out problems as student and as teacher, and reads the student's answers in both roles. Takes
what `opasd train` takes; nothing is trained.
"""

import argparse
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opasd.choices import ENGINES
from opasd.cli import _shares as shares
from opasd.cli._flags import process_count, whole_number, without_flags
from opasd.cli._options import ConfigParser
from opasd.cli._preview import check
from opasd.cli._processes import Processes
from opasd.config import RunConfig
from opasd.config.method import MANY
from opasd.errors import ConfigError, error_prefix
from opasd.files import write_new
from opasd.progress import SampleProgress
from opasd.run.environment import environment

if TYPE_CHECKING:
    from opasd.probe.look import Look
    from opasd.probe.measure import Probe


def parser() -> ConfigParser:
    """Return the command's parser."""
    command = ConfigParser("probe", __doc__, groups=("what", "how", "the probe"))
    command.option(
        "the probe", "--problems", metavar="N", type=whole_number(1), default=64,
        help="Problems: the first of --data if it is given; else of the validation sets that have solutions, or of the "
        "training data. (default: 64)",
    )  # fmt: skip
    command.option(
        "the probe", "--samples", metavar="N", type=whole_number(0, MANY), default=4,
        help="Answers of the student to each problem; one with right and wrong ones tells something. 0, with --look: "
        "none are sampled. (default: 4)",
    )  # fmt: skip
    command.option(
        "the probe", "--look", action="store_true",
        help="Measure where both roles look, by layer and head, with each reference that the problems have.",
    )  # fmt: skip
    command.option(
        "the probe", "--responses", metavar="WHOSE", choices=("gold", "student"), default="gold",
        help="What --look reads: the data's solutions (gold) or the student's own answers (student). (default: gold)",
    )  # fmt: skip
    command.option(
        "the probe", "--figure", metavar="FILE",
        help="Draw the attention on what a step needs, by layer, into this new SVG file; needs --look.",
    )  # fmt: skip
    command.option(
        "the probe", "--num-processes", metavar="N", type=process_count, default=1,
        help="Processes here, one for each GPU; they share the problems. (default: 1)",
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
        raise ConfigError(f"opasd probe: got a launch of {world}; run it without a launcher, and with --num-processes")
    _check_options(options, config)
    named = [word.partition("=")[0] for word in args]
    if {"--data", "--data.source"} & set(named) and not any(word.startswith("--validation") for word in named):
        config = config.model_copy(update={"validation_data": {}})  # the recipe's own sets are other problems
    if (share := shares.current()) is not None:
        _measure_share(options, config, share)
        return 0
    given = {flag: getattr(options, flag) for flag in ("json", "figure")}
    targets = {flag: Path(os.path.expanduser(path)) for flag, path in given.items() if path is not None}
    if len(targets) > len({target.resolve() for target in targets.values()}):
        raise ConfigError(f"--figure and --json name one file, {options.json}; give two")
    for flag, target in targets.items():  # a mistake in a path shows before the work
        _write(flag, target, "")
        target.unlink()
    check(config, 1)
    from opasd.probe.advice import advise
    from opasd.probe.look_page import advice_page, look_page
    from opasd.probe.page import probe_page

    found = _measure(options, config, args)
    summary, looks = found.get("summary"), found.get("look")
    if summary is not None:
        problems = len(found["teacher_rows"])
        sys.stdout.write(probe_page(recipe.name, config, problems, options.samples, summary) + "\n")
    if looks is not None:
        sys.stdout.write(look_page(recipe.name, config.model.name_or_path, looks) + "\n")
    token = config.objective.token
    found["advice"] = advise(summary, looks, token.clip, token.divergence)
    sys.stdout.write(advice_page(found["advice"]))
    if "figure" in targets and looks is not None and looks["looking_layers"] is None:
        sys.stderr.write("no figure: what a step needs is not known for these problems\n")
    elif "figure" in targets:
        from opasd.report.charts import svg
        from opasd.report.looking import mass_by_layer

        _write("figure", targets["figure"], svg(mass_by_layer(looks or {}, recipe.name), standalone=True))
        sys.stderr.write(f"{targets['figure']}\n")
    if "json" in targets:
        settings = {"source": options.source, "problems": options.problems, "samples": options.samples}
        settings["config"] = config.model_dump(mode="json")
        about = {"settings": settings, "environment": environment(["opasd", *sys.argv[1:]])}
        _write("json", targets["json"], json.dumps({**found, **about}, indent=1, ensure_ascii=False))
        sys.stderr.write(f"{targets['json']}\n")
    return 0


def _check_options(options: argparse.Namespace, config: RunConfig) -> None:
    if ENGINES[config.rollout.engine].servers and options.num_processes > 1:
        raise ConfigError("--num-processes: servers share the requests themselves; leave it out")
    if options.figure is not None and not options.look:
        raise ConfigError("--figure draws what --look measures; give --look too")
    if not options.samples and not (options.look and options.responses == "gold"):
        raise ConfigError("--samples 0 samples nothing; give --look with --responses gold, or 1 or more samples")


def _measure(options: argparse.Namespace, config: RunConfig, args: list[str]) -> dict[str, Any]:
    """Return the summary, the looks and their rows, as far as they were asked for."""
    from opasd.probe import parts
    from opasd.probe.summary import summarise
    from opasd.probe.where import summarise_looks

    if options.num_processes > 1:
        with tempfile.TemporaryDirectory(prefix="opasd-") as place:
            rest, folders = without_flags(args, ["--figure"]), _folders(place, options.num_processes)
            shares.run("probe", rest, len(folders), ["--json", place], folders.__getitem__)
            measured, looks = parts.join(folders)
    else:
        measured, looks = _measured(options, config, 0, 1)
    found = {}
    if options.samples:
        found |= {"summary": summarise(measured), **measured.to_dict()}
    if options.look:
        found |= {"look": summarise_looks(looks, options.responses), "look_rows": [row.to_dict() for row in looks]}
    return found


def _folders(place: str, count: int) -> list[Path]:
    return [Path(place, f"part-{rank}") for rank in range(count)]


def _measure_share(options: argparse.Namespace, config: RunConfig, share: tuple[int, int]) -> None:
    """Measure this process's part of the problems, and leave its rows in the folder that --json names."""
    from opasd.probe import parts

    parts.write(_folders(options.json, share[1])[share[0]], *_measured(options, config, *share))


def _measured(options: argparse.Namespace, config: RunConfig, rank: int, world: int) -> "tuple[Probe, list[Look]]":
    """Return what one of `world` processes measures, as far as it was asked for."""
    from opasd.probe.look import look, responses
    from opasd.probe.measure import Probe, probe, set_up
    from opasd.probe.parts import bounds

    progress = SampleProgress()
    try:
        setup = set_up(config, options.problems, progress.say)
        part, measured, looks = bounds(len(setup.problems), rank, world), Probe([], []), []
        if part.start == part.stop:  # there are fewer problems than processes
            return measured, looks
        if options.samples:
            measured = probe(config, setup, samples=options.samples, progress=progress, part=part)
        if options.look:
            own = replace(setup, problems=setup.problems[part])
            if options.responses == "student":
                texts = responses(own, measured.rollouts, config.rollout.max_new_tokens)
            else:
                texts = responses(setup, None, config.rollout.max_new_tokens)
                texts = texts[bounds(len(texts), rank, world)]
            progress.say(f"both roles read {len(texts)} responses, all layers and each reference")
            looks = look(config, setup, texts, progress)
        return measured, looks
    finally:
        progress.end()


def _write(flag: str, target: Path, text: str) -> None:
    with error_prefix(f"--{flag}"):
        write_new(target, text)
