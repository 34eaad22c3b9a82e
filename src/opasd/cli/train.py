"""Train a model: from a recipe, a YAML file or the defaults, with any field overridden by a flag.

The run gets a folder of its own in `output_dir`, which is never overwritten: it holds the resolved configuration, the
environment, metrics, samples, checkpoints and, in `final`, the result.
"""

import os
import shlex
import shutil
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from opasd.cli import EXIT_CODES, STOPPED, USER_MISTAKE
from opasd.cli._options import ConfigOptions, parse
from opasd.cli._plan import check
from opasd.cli._processes import Processes, relaunch
from opasd.config import DataConfig, RunConfig
from opasd.errors import ConfigError, OpasdError
from opasd.recipes.checking import leaves
from opasd.run.folder import RunFolder, check_name, run_name
from opasd.run.locks import hold, in_use

HARMLESS = (
    "train.max_steps", "train.save_steps", "train.save_total_limit", "train.report_to", "save_samples_every",
    "saved_samples", "validation.every", "objective.token.chunk_tokens", "objective.attention.chunk_queries",
    "rollout.servers", "rollout.drift", "rollout.vllm.memory_share", "rollout.vllm.cache_bytes", "rollout.vllm.sleep",
)  # fmt: skip
"""What may change when a run is continued, fields and whole sections: nothing that alters what a step computes."""


_TRACES = ("metrics.jsonl", "samples.jsonl", "checkpoint-*", "non_finite.jsonl")
"""What a run leaves as soon as it has done something."""


@dataclass(frozen=True)
class TrainOptions(ConfigOptions):
    """The command's own options."""

    resume: Annotated[str | None, tyro.conf.arg(metavar="FOLDER")] = None
    """Continue the run in this folder from its newest checkpoint, with the configuration it was started with. Only
    what does not alter a step may change, such as a larger train.max_steps, or where model and data lie that were
    moved under their old names."""
    num_processes: int | None = None
    """Train with this many processes on this machine, through `accelerate launch`. Unset: one, or what launched us."""


def run(args: list[str]) -> int:
    """The command."""
    processes = Processes.current()
    resumed = _value_of("--resume", args)
    if resumed is not None and not resumed.strip():
        raise ConfigError(f"--resume: got {resumed!r}; give the run's folder, such as runs/NAME, or leave --resume out")
    earlier = RunFolder.open(Path(resumed)) if resumed else None
    options, recipe, config = parse(
        TrainOptions, args, prog="opasd train", about=f"{__doc__}\n{EXIT_CODES}", base=earlier and earlier.config
    )
    if earlier is not None:
        if options.source is not None:
            raise ConfigError(f"{options.source}: --resume continues with the folder's own configuration; leave it out")
        check_changes(earlier.config, config)
        if earlier.has_ended(config.train.max_steps):
            if processes.first:
                sys.stderr.write(f"finished: {earlier.path / 'final'}\n")
            return 0
    if recipe.evaluate_only:
        model = shlex.quote(config.model.name_or_path)
        raise ConfigError(f"{recipe.name} is for evaluation, nothing is trained; use `opasd evaluate {model}`")
    count = options.num_processes
    if count is not None and count < 1:
        raise ConfigError(f"--num-processes: got {count}; give 1 or more")
    if count is not None and processes.world > 1 and count != processes.world:
        raise ConfigError(f"--num-processes {count} inside a launch of {processes.world}; give the number once")
    for warning in check(config, count or processes.world):
        if processes.first and count in (None, 1):  # else those that are launched tell it
            sys.stderr.write(f"warning: {warning}\n")
    if earlier is not None:
        earlier.check_processes(count or processes.world)
    name = config.name or run_name(recipe.name)
    if earlier is None:
        check_name(name)
    if count is not None and count > 1 and processes.world == 1:
        if earlier is None and os.path.lexists(path := Path(config.output_dir).expanduser() / name):
            raise ConfigError(f"{path} exists and a run is never overwritten; use --resume {path} or another --name")
        rest = _without("--num-processes", args)
        return relaunch(rest if config.name or earlier else [*rest, "--name", name], count)
    return _train(processes, config, name, earlier)


def _train(processes: Processes, config: RunConfig, name: str, earlier: RunFolder | None) -> int:
    processes.join()
    with ExitStack() as held:
        if processes.first:
            try:
                folder = _folder(config, name, earlier, held)
            except OpasdError:
                processes.tell(None)
                raise
            processes.tell(folder.path)
            path, config = folder.path, folder.config
            sys.stderr.write(f"run folder: {path}\n")
        else:
            known = earlier.path if earlier else Path(config.output_dir).expanduser() / name if config.name else None
            heard = processes.hear(known, in_use)
            if heard is None:
                return USER_MISTAKE
            path = heard
        from opasd.trainer import session as training

        before = _traces(path)
        try:
            outcome = training.train(config, path, resume=earlier is not None)
        except OpasdError:
            # A mistake found before the first step must not use the name up; other processes may still look into it.
            if processes.world == 1 and earlier is None and not _traces(path):
                shutil.rmtree(path, ignore_errors=True)
            # Nor must one found before a run goes on change how it goes on the next time.
            if processes.first and earlier is not None and _traces(path) == before:
                earlier.undo_continued()
            raise
    if not processes.first:
        return 0  # the first process speaks for all; the launcher would cut its saving short if another one failed
    if outcome == "stopped":
        again = shlex.quote(str(path)) + (f" --num-processes {processes.world}" if processes.world > 1 else "")
        sys.stderr.write(f"stopped by a signal, checkpoint saved; continue with: opasd train --resume {again}\n")
        return STOPPED
    sys.stderr.write(f"finished: {path / 'final'}\n")
    return 0


def _traces(path: Path) -> list[tuple[str, int]]:
    """What a run leaves once it has begun, with sizes."""
    found = (one for trace in _TRACES for one in path.glob(trace))
    return sorted((one.name, one.stat().st_size) for one in found)


def _folder(config: RunConfig, name: str, earlier: RunFolder | None, held: ExitStack) -> RunFolder:
    command = ["opasd", *sys.argv[1:]]
    if earlier is None:
        folder = RunFolder.create(config, name, command=command)
        held.enter_context(hold(folder.path, "run"))
        return folder
    held.enter_context(hold(earlier.path, "run"))
    return earlier.continued(config, command=command)


def check_changes(old: RunConfig, new: RunConfig) -> None:
    """Refuse to continue a run with a configuration under which its earlier steps would have been others."""
    moved = _moved_back(old, new)
    changed = [".".join(path) for path, _ in leaves() if _at(old, path) != _at(moved, path)]
    if refused := [path for path in changed if not any(f"{path}.".startswith(f"{name}.") for name in HARMLESS)]:
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
    """`new` with model and data where `old` has them, if they are the same or gone from there, and named as before."""

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
    changes = {"model": model, "data": data(old.data, new.data), "validation_data": held_out}
    return new.model_copy(update=changes)


def _at(config: RunConfig, path: tuple[str, ...]) -> Any:
    value: Any = config
    for key in path:
        value = getattr(value, key)
    return value


def _value_of(flag: str, args: list[str]) -> str | None:
    for place, word in enumerate(args):
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
        if word == flag and place + 1 < len(args):
            return args[place + 1]
    return None


def _without(flag: str, args: list[str]) -> list[str]:
    rest = list(args)
    while place := next((i + 1 for i, word in enumerate(rest) if word.replace("_", "-").split("=")[0] == flag), 0):
        del rest[place - 1 : place + (0 if "=" in rest[place - 1] else 1)]
    return rest
