"""Train a model from a recipe, or any model on any problems.

Any field of the configuration is a flag. The run gets a new folder, which is never overwritten: settings, environment,
metrics, samples, checkpoints and, in `final`, the result.
"""

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from opasd.cli import SHORT_EXIT_CODES, STOPPED, USER_MISTAKE
from opasd.cli._flags import process_count, without_flags
from opasd.cli._options import ConfigParser, configured
from opasd.cli._preview import check
from opasd.cli._processes import Processes, relaunch
from opasd.config import DataConfig, RunConfig
from opasd.errors import ConfigError, OpasdError
from opasd.progress import say
from opasd.recipes import Recipe, load_recipe
from opasd.recipes.fields import differing_fields
from opasd.run.folder import RunFolder, check_name, run_name
from opasd.run.locks import hold, in_use

HARMLESS = (
    "train.max_steps", "train.save_steps", "train.save_total_limit", "train.report_to", "save_samples_every",
    "saved_samples", "validation.every", "objective.token.chunk_tokens", "objective.attention.chunk_queries",
    "plugins", "rollout.servers", "rollout.drift", "rollout.vllm.memory_share", "rollout.vllm.cache_bytes",
    "rollout.vllm.sleep", "rollout.vllm.tensor_parallel", "teacher.offload", "model.trust_remote_code", "record_diff",
)  # fmt: skip
"""Fields and whole sections that may change when a run is resumed: none of them alters what a step computes."""

_TRACES = ("metrics.jsonl", "samples.jsonl", "checkpoint-*", "non_finite.jsonl")
"""Files that a run writes as soon as it has done a step."""


EXAMPLES = """\
examples:
  opasd train lab                                  the embedded model, on a CPU
  opasd train start-qwen3-1.7b --data mine.jsonl --name first
  opasd train --model Qwen/Qwen3-0.6B --data mine.jsonl --steps 50
  opasd train --resume runs/first"""


def parser() -> ConfigParser:
    """Return the command's parser."""
    usage = "opasd train RECIPE [options]\n       opasd train --model MODEL --data DATA [options]"
    command = ConfigParser("train", __doc__, usage=usage, more=f"{EXAMPLES}\n\n{SHORT_EXIT_CODES}")
    command.option(
        "the run", "--resume", metavar="FOLDER",
        help="Continue this run, with its own settings.",
    )  # fmt: skip
    command.option(
        "the run", "--num-processes", metavar="N", type=process_count,
        help="Processes here, one for each GPU. (default: 1)",
    )  # fmt: skip
    return command


def run(args: list[str]) -> int:
    """The command."""
    processes, command = Processes.current(), parser()
    options, settings = command.split(args)
    earlier = None
    if options.resume is None:
        command.require_source(options, settings)
        recipe = load_recipe(options.source)
        config = configured(recipe, settings)
    else:
        earlier, recipe = _run_to_resume(options.resume), load_recipe(None)
        config = configured(recipe, settings, earlier.config)
        if options.source is not None:
            raise ConfigError(f"{options.source}: --resume continues with the folder's own configuration; leave it out")
        check_changes(earlier.config, config)
        if earlier.has_ended(config.train.max_steps):
            if processes.first:
                say(f"finished: {earlier.path / 'final'}")
            return 0
    _check(options.num_processes, recipe, config, processes, earlier)
    name = config.name or run_name(recipe.name)
    if earlier is None:
        check_name(name)
    count = options.num_processes or processes.world
    if count > processes.world:
        return _launch(args, count, config, name, earlier)
    processes.join()
    with _run_folder(processes, config, name, earlier) as folder:
        if folder is None:
            return USER_MISTAKE
        from opasd.trainer.session import ending, opened

        with opened(folder.shared_by(folder.config, processes.world), folder.path) as trainer:
            trainer.train((earlier is not None and trainer.has_begun()) or None)
        ended = ending(trainer)
    if not processes.first:
        return 0  # the first process speaks for all; the launcher would cut its saving short if another one failed
    if ended == "stopped":
        again = shlex.quote(str(folder.path)) + (f" --num-processes {processes.world}" if processes.world > 1 else "")
        how = "checkpoint saved" if any(folder.path.glob("checkpoint-*")) else "before its first checkpoint"
        say(f"stopped by a signal, {how}; continue with: opasd train --resume {again}")
        return STOPPED
    say(f"finished: {folder.path / 'final'}")
    return 0


def _run_to_resume(path: str) -> RunFolder:
    """Return the folder that --resume names; its configuration is what other flags are laid over."""
    if not path.strip():
        raise ConfigError(f"--resume: got {path!r}; give the run's folder, such as runs/NAME, or leave --resume out")
    return RunFolder.open(Path(path))


def _check(
    count: int | None, recipe: Recipe, config: RunConfig, processes: Processes, earlier: RunFolder | None
) -> None:
    """Refuse what cannot run, before anything heavy is loaded, and print warnings."""
    if recipe.evaluate_only:
        model = shlex.quote(config.model.name_or_path)
        raise ConfigError(f"{recipe.name} is for evaluation, nothing is trained; use `opasd evaluate {model}`")
    if count is not None and processes.world > 1 and count != processes.world:
        raise ConfigError(f"--num-processes {count} inside a launch of {processes.world}; give the number once")
    shared = config if earlier is None else earlier.shared_by(config, count or processes.world)
    for warning in check(shared, count or processes.world):
        if processes.first and count in (None, 1):  # otherwise the launched processes print it
            say(f"warning: {warning}")


def _launch(args: list[str], count: int, config: RunConfig, name: str, earlier: RunFolder | None) -> int:
    """Run the same command in `count` processes, which must agree on the run's name."""
    if earlier is None and os.path.lexists(path := Path(config.output_dir).expanduser() / name):
        raise ConfigError(f"{path} exists and a run is never overwritten; use --resume {path} or another --name")
    rest = without_flags(args, ["--num-processes"])
    return relaunch(rest if config.name or earlier else [*rest, "--name", name], count)


@contextmanager
def _run_folder(
    processes: Processes, config: RunConfig, name: str, earlier: RunFolder | None
) -> Iterator[RunFolder | None]:
    """Hold the run's folder, and undo the first process's changes if a mistake is found before the first step.

    Yield None in the other processes if the first one could not make the folder.
    """
    with ExitStack() as lock:
        if processes.first:
            try:
                folder = _enter_folder(config, name, earlier, lock)
            except OpasdError:
                processes.announce(None)
                raise
            processes.announce(folder.path)
            say(f"run folder: {folder.path}")
        else:
            known = earlier.path if earlier else Path(config.output_dir).expanduser() / name if config.name else None
            path = processes.wait_for_folder(known, in_use)
            folder = None if path is None else RunFolder(path, config)
        before = _traces(folder)
        try:
            yield folder
        except OpasdError:
            # A new run's name can be used again, unless other processes may still look into the folder.
            if folder and processes.world == 1 and earlier is None and not _traces(folder):
                shutil.rmtree(folder.path, ignore_errors=True)
            # A resumed run keeps the configuration that it had.
            if processes.first and earlier is not None and _traces(folder) == before:
                earlier.undo_continued()
            raise


def _enter_folder(config: RunConfig, name: str, earlier: RunFolder | None, lock: ExitStack) -> RunFolder:
    command = ["opasd", *sys.argv[1:]]
    if earlier is None:
        folder = RunFolder.create(config, name, command=command)
        lock.enter_context(hold(folder.path, "run"))
        return folder
    lock.enter_context(hold(earlier.path, "run"))
    return earlier.continued(config, command=command)


def _traces(folder: RunFolder | None) -> list[tuple[str, int]]:
    """Return the names and sizes of the files that a run leaves once it has begun."""
    paths = (path for pattern in _TRACES for path in folder.path.glob(pattern)) if folder else ()
    return sorted((path.name, path.stat().st_size) for path in paths)


def check_changes(old: RunConfig, new: RunConfig) -> None:
    """Refuse to resume a run with a configuration that would have changed its earlier steps."""
    changed = differing_fields(old, _moved_back(old, new))
    if refused := [field for field in changed if not any(f"{field}.".startswith(f"{name}.") for name in HARMLESS)]:
        raise ConfigError(
            f"--resume with a changed {', '.join(refused)} would mix two runs; only {', '.join(HARMLESS)} may change, "
            "and where model and data lie that were moved under their old names. Start a new run for anything else"
        )
    if new.train.max_steps < old.train.max_steps:
        raise ConfigError(
            f"train.max_steps: got {new.train.max_steps}, the run was started with {old.train.max_steps}; "
            "it may only grow"
        )
    schedule = new.train.lr_scheduler_type
    if "train.max_steps" in changed and not schedule.startswith("constant"):
        raise ConfigError(
            f"train.max_steps: the {schedule} schedule of the learning rate depends on it; it may only grow with a "
            "constant one. Start a new run"
        )


def _moved_back(old: RunConfig, new: RunConfig) -> RunConfig:
    """Return `new` with the old paths of model and data where the new ones are the same file or folder, moved."""

    def back(before: str, now: str) -> str:
        now_full = os.path.expanduser(now)
        if not os.path.isabs(before) or not os.path.exists(now_full):  # a local one is on record by its full path
            return now
        if os.path.exists(before):
            return before if os.path.samefile(before, now_full) else now
        return before if Path(before).name == Path(now_full).name else now

    def data(before: DataConfig | None, now: DataConfig) -> DataConfig:
        return now.model_copy(update={"source": back(before.source, now.source)}) if before else now

    model = new.model.model_copy(update={"name_or_path": back(old.model.name_or_path, new.model.name_or_path)})
    held_out = {name: data(old.validation_data.get(name), now) for name, now in new.validation_data.items()}
    return new.model_copy(update={"model": model, "data": data(old.data, new.data), "validation_data": held_out})
