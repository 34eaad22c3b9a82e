"""Evaluate models on benchmarks: base, runs, adapters, several at once.

Samples are written to samples.jsonl as they are drawn; the same command continues where a killed one stopped. Results
are in evaluation.json and, for a run, in its folder too.
"""

import argparse
import json
import re
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from opasd import plugins
from opasd.choices import ENGINES, Precision
from opasd.cli._parser import Parser
from opasd.cli._power import add_power_flags, check_power_flags, power
from opasd.errors import ConfigError

if TYPE_CHECKING:
    from opasd.config import ModelConfig, RolloutConfig
    from opasd.evaluation.loop import Evaluation
    from opasd.evaluation.targets import Target
    from opasd.progress import SampleProgress
    from opasd.recipes.evaluate import EvaluateConfig

TEXTS_AT_ONCE = 16
"""Default number of requests under way at a server of engine openai."""
EXAMPLES = """\
examples:
  opasd evaluate lab                       the embedded model on its own task
  opasd evaluate base runs/a runs/b --benchmarks aime24,aime25
  opasd evaluate --model Qwen/Qwen3-1.7B --data mine.jsonl --samples 4
  opasd evaluate --engine openai --url http://HOST:PORT --model NAME
  opasd evaluate --list
  opasd evaluate --power --difference 3    what a difference of 3 points needs"""


def run(args: list[str]) -> int:
    """Run the command."""
    from opasd.cli._flags import read_flags
    from opasd.recipes.evaluate import EvaluateConfig

    options = parser().parse_args(args)
    plugins.load_installed()
    plugins.load([name for text in getattr(options, "plugins", []) for name in text.split(",")])
    if options.list:
        return _list(as_json=options.json)
    check_power_flags(options)
    if options.power:
        return power(options)
    _settle(options)
    config = read_flags(options, EvaluateConfig)
    evaluation = _evaluation(options, config)
    from opasd.cli import _shares as shares
    from opasd.config import RolloutConfig, ServersConfig
    from opasd.evaluation import folder as folders
    from opasd.evaluation import parts
    from opasd.evaluation.chat import ChatBase
    from opasd.evaluation.loop import Base, evaluate
    from opasd.evaluation.reuse import check_folders
    from opasd.files import full_disk_errors
    from opasd.progress import SampleProgress
    from opasd.run.locks import hold

    requested = evaluation.settings()
    path = options.output or Path("evaluations") / folders.default_name(requested)
    check_folders(options.reuse, path)
    servers = ServersConfig(urls=config.server)
    rollout = RolloutConfig(engine=evaluation.engine, max_batch=evaluation.group, servers=servers)
    progress = SampleProgress()
    texts = ENGINES[evaluation.engine].texts

    def open_base(model: "ModelConfig") -> Base | ChatBase:
        return ChatBase(model, rollout) if texts else Base(model, rollout)

    if (share := shares.current()) is not None:
        return parts.draw_share(replace(evaluation, share=share), path, open_base, progress)
    _announce(evaluation, options.cutoff, progress)
    folders.make(path)
    with hold(path, "evaluation"):
        settings = folders.enter(path, requested)
        # Differences are against the first target of this command, whatever the folder held before.
        settings = settings | {"targets": requested["targets"] | settings["targets"]}
        try:
            _share(args, evaluation, path, options.num_processes)
            with full_disk_errors(path, "give the same command again: it continues"):
                results = evaluate(evaluation, path, settings, open_base, progress)
                if config.judge:
                    results["judge"] = _judged(config.judge, path, rollout, requested)
                    folders.write_results(path, results, requested["targets"])
        except KeyboardInterrupt:
            progress.say(f"stopped; the samples so far are in {path}: the same command continues")
            raise
        finally:
            progress.end()
    _print(results, path, options)
    return 0


def _share(args: list[str], evaluation: "Evaluation", path: Path, count: int) -> None:
    """Draw the samples in several processes, and join what they, or those of a killed call, have drawn."""
    from opasd.cli import _shares as shares
    from opasd.evaluation import parts

    parts.join(path, evaluation.all_keys())
    if count > 1:
        shares.run("evaluate", args, count, ["--output", str(path)], lambda rank: parts.part(path, rank))
        parts.join(path, evaluation.all_keys())


def _print(results: dict[str, Any], path: Path, options: argparse.Namespace) -> None:
    from opasd.evaluation import folder as folders
    from opasd.evaluation.results import notes, table

    if options.json:
        sys.stdout.write(json.dumps(results, ensure_ascii=False) + "\n")
        return
    these = options.intervals == "these"
    lines = [*notes(results, these=these), str(path / folders.RESULTS)]
    sys.stdout.write(f"{table(results, these=these)}\n" + "".join(f"{line}\n" for line in lines))


def _settle(options: argparse.Namespace) -> None:
    """Put what another flag says into --server and the targets; refuse a command that names no target."""
    if options.url:
        options.server = [*getattr(options, "server", []), *options.url]
    if not options.targets and getattr(options, "engine", None) == "openai" and options.model:
        options.targets = [options.model]
    if not options.targets and options.model:
        options.targets = ["base"]
    if not options.targets and getattr(options, "engine", None) == "openai":
        raise ConfigError("--engine openai: got no model; give --model NAME, as the server knows it")
    if not options.targets:
        raise ConfigError("nothing to evaluate; give base, lab, a run, an adapter, a model's folder or a hub name")


def _announce(evaluation: "Evaluation", cutoff: str | None, progress: "SampleProgress") -> None:
    """Say what this engine does not guarantee, and which benchmarks the models may have seen."""
    from opasd.evaluation.chat import NOT_GUARANTEED
    from opasd.evaluation.contamination import contamination_notes

    if ENGINES[evaluation.engine].texts:
        progress.say("not guaranteed with this engine: " + "; ".join(NOT_GUARANTEED))
    models = [target.model.name_or_path for target in evaluation.targets]
    for note in contamination_notes(models, [loaded.entry for loaded in evaluation.benchmarks], cutoff):
        progress.say(note)


def _judged(judge: str, path: Path, rollout: "RolloutConfig", settings: dict[str, Any]) -> dict[str, Any]:
    """Ask the judge, on the engine of the evaluation unless that is a server, about what no rule can settle."""
    from opasd.evaluation import folder as folders
    from opasd.evaluation import judging
    from opasd.evaluation.profiles import ENGINE
    from opasd.evaluation.samples import SampleFile

    if ENGINES[rollout.engine].servers:
        rollout = rollout.model_copy(update={"engine": ENGINE})
    samples = [sample for sample in SampleFile(path / folders.SAMPLES) if sample.target in settings["targets"]]
    about = judging.judged(path, judging.open_judge(judge, rollout), samples, settings)
    sys.stderr.write(judging.in_words(about))
    return about


def parser() -> Parser:
    """Return the command's parser."""
    from opasd.cli._flags import add_flags, process_count
    from opasd.evaluation.profiles import PROFILE_OPTIONS
    from opasd.recipes.evaluate import EvaluateConfig

    command = Parser("evaluate", __doc__, usage="opasd evaluate [TARGET ...] [options]", more=EXAMPLES)
    command.add_argument(
        "targets",
        metavar="TARGET",
        nargs="*",
        help="base, lab, the folder of a run, an adapter or a model, or org/name. (default: base, with --model)",
    )
    command.add_argument("--url", action="append", default=[], help="Address of a server; the same as --server.")
    command.add_argument(
        "--model",
        metavar="MODEL",
        help="The model that `base` means. Unset: the one that the adapters were trained on.",
    )
    command.add_argument("--revision", metavar="COMMIT", help="Commit of --model on the hub.")
    command.add_argument("--trust-remote-code", action="store_true", help="Run the code that comes with the models.")
    command.add_argument(
        "--data", metavar="A,B", dest="benchmarks", action="append", default=argparse.SUPPRESS,
        help="Data files to evaluate on; the same as --benchmarks.",
    )  # fmt: skip
    command.add_argument("--list", action="store_true", help="List the benchmarks that come by name.")
    command.add_argument("--dtype", choices=get_args(Precision), help="Number format of the weights. (default: auto)")
    command.add_argument(
        "--template-option", metavar="K=V", action="append", default=[],
        help="A variable of the chat template, such as date_string=2026-01-01. May be repeated.",
    )  # fmt: skip
    command.add_argument(
        "--output", metavar="DIR", type=Path, help="Folder of the results. Unset: evaluations/…, by the settings."
    )
    command.add_argument(
        "--reuse", metavar="DIR", type=Path, action="append", default=[],
        help="An evaluation's folder, or one of such folders: samples of the same model, prompts, sampling, seeds, "
        "engine and batch are taken over from there, not drawn again. May be repeated.",
    )  # fmt: skip
    command.add_argument(
        "--num-processes", metavar="N", type=process_count, default=1,
        help="Processes here, one for each GPU; they share the problems. (default: 1)",
    )  # fmt: skip
    command.add_argument("--json", action="store_true", help="Print the results as one JSON object.")
    command.add_argument(
        "--cutoff", metavar="DATE", type=_date,
        help="Day or month to which the models' training data reaches. Unset: what is known of their names.",
    )  # fmt: skip
    command.add_argument(
        "--intervals", choices=("like-these", "these"), default="like-these",
        help="Question of the table's intervals: problems like these, or these problems alone (sampling noise). "
        "(default: like-these)",
    )  # fmt: skip
    add_flags(command, EvaluateConfig, [name for name in EvaluateConfig.model_fields if name not in PROFILE_OPTIONS])
    add_flags(command.add_argument_group("sampling"), EvaluateConfig, PROFILE_OPTIONS, _profile_defaults())
    add_power_flags(command)
    return command


def _date(text: str) -> str:
    """The type of --cutoff."""
    try:
        if re.fullmatch(r"\d{4}(-\d\d){0,2}", text, re.ASCII):
            date.fromisoformat((text + "-01-01")[:10])
            return text
    except ValueError:  # no such day
        pass
    raise argparse.ArgumentTypeError(f"got {text[:40]!r}; give a day or a month, such as 2025-06-30 or 2025-06")


def _profile_defaults() -> dict[str, str]:
    """Return what each option of sampling is in the profile `paper`, and in others where it differs."""
    from opasd.evaluation.profiles import PROFILE_OPTIONS, PROFILES, Profile

    texts: dict[str, str] = {}
    for name in PROFILE_OPTIONS:
        if name in ("profile", "budgets"):
            continue
        values = {
            profile: getattr(settings if name in Profile.model_fields else settings.sampling, name)
            for profile, settings in PROFILES.items()
        }
        shown = {profile: str(value).lower() for profile, value in values.items()}
        others = (f"; {profile}: {value}" for profile, value in shown.items() if value != shown["paper"])
        texts[name] = shown["paper"] + "".join(others)
    return texts


def _evaluation(options: argparse.Namespace, config: "EvaluateConfig") -> "Evaluation":
    """Return the evaluation that the options ask for, and find their mistakes before anything heavy is loaded."""
    from opasd.evaluation.benchmarks import load, requested_benchmarks
    from opasd.evaluation.profiles import ENGINE, GROUP, requested_profile
    from opasd.lab import LAB
    from opasd.recipes.evaluate import parse_template_option

    template_options = dict(map(parse_template_option, options.template_option))
    engine = config.engine or ENGINE
    targets = _served_targets(options) if ENGINES[engine].texts else _targets(options)
    lab = all(target.model.name_or_path == LAB for target in targets)
    entries = requested_benchmarks(config, lab=lab)
    profile = requested_profile(config, lab=lab)
    _check_servers(engine, config, budgets=bool(profile.budgets), processes=options.num_processes)
    if config.judge is not None:
        from opasd.evaluation.judging import find_judge

        find_judge(config.judge)
    benchmarks = [load(entry, config.data_dir, config.problems) for entry in entries]
    for benchmark in benchmarks:
        expected = benchmark.entry.problems
        if expected and config.problems is None and len(benchmark.problems) != expected:
            sys.stderr.write(
                f"{benchmark.name}: {benchmark.source} has {len(benchmark.problems)} problems, not {expected}\n"
            )
        if unmatched := [] if config.grader else benchmark.unmatched:
            first = ", ".join(unmatched[:5]) + (", …" if len(unmatched) > 5 else "")
            sys.stderr.write(
                f"{benchmark.name}: {len(unmatched)} of {len(benchmark.problems)} known answers do not match "
                f"themselves, so nothing can be right there: {first}\n"
            )
    from opasd.evaluation.loop import Evaluation
    from opasd.grading.outside import MATH, find_grader
    from opasd.grading.reading import Reading, parse_marks

    grader = find_grader(config.grader or MATH) or ""
    reading = Reading(parse_marks(config.think_marks), config.boxes or "joined")
    group = config.max_batch or GROUP
    server = ""
    if ENGINES[engine].texts:
        server, group = config.server[0], config.max_batch or TEXTS_AT_ONCE
    return Evaluation(
        targets, benchmarks, profile, engine, group, template_options, grader, reading, server, options.reuse
    )


def _check_servers(engine: str, config: "EvaluateConfig", *, budgets: bool, processes: int) -> None:
    """Refuse flags that do not go with the engine."""
    if ENGINES[engine].servers and processes > 1:
        raise ConfigError("--num-processes: the servers of --server share the requests themselves; leave it out")
    if ENGINES[engine].servers != bool(config.server):
        names = " or ".join(name for name, entry in ENGINES.items() if entry.servers)
        raise ConfigError(f"--engine {names} and --server http://HOST:PORT go together; give both or neither")
    if ENGINES[engine].texts and (len(config.server) != 1 or budgets):
        raise ConfigError(f"--engine {engine} takes one --url, and no --budgets: texts cannot be cut at tokens")


def _served_targets(options: argparse.Namespace) -> "list[Target]":
    """Return the models of a server, which are known by their names there alone."""
    from opasd.config import ModelConfig
    from opasd.evaluation.targets import Target

    if options.revision or options.dtype:
        raise ConfigError("--revision and --dtype are the server's with --engine openai; leave them out")
    return [Target(name, ModelConfig(name_or_path=name)) for name in dict.fromkeys(options.targets)]


def _targets(options: argparse.Namespace) -> "list[Target]":
    from opasd.config import ModelConfig
    from opasd.evaluation.targets import resolve

    if options.revision and not options.model:
        raise ConfigError("--revision is the commit of --model; give that too, as in base --model ORG/NAME")
    settings = {"name_or_path": options.model, "revision": options.revision, "dtype": options.dtype}
    model = ModelConfig.model_validate({name: value for name, value in settings.items() if value})
    targets = resolve(options.targets, model if options.model else None)
    update = {"dtype": options.dtype} if options.dtype else {}
    update |= {"trust_remote_code": options.trust_remote_code}
    return [replace(target, model=target.model.model_copy(update=update)) for target in targets]


def _list(*, as_json: bool) -> int:
    from opasd.evaluation.benchmarks import packaged

    entries = packaged()
    if as_json:
        rows = [entry.model_dump(mode="json") for entry in entries.values()]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    for entry in entries.values():
        where = entry.source + (f" at {entry.revision[:12]}" if entry.revision else "")
        where += "".join(f", {part}" for part in (entry.released, entry.licence) if part)
        sys.stdout.write(
            f"{entry.name:<13} {entry.title:<45} {entry.problems or '?':>5} problems  {entry.kind:<10} {where}\n"
        )
    return 0
