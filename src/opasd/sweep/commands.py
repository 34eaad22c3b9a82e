"""A run as the commands that make it: for this machine, for a shell, for Slurm."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opasd.errors import ConfigError
from opasd.recipes.evaluate import template_option
from opasd.recipes.fields import to_flags, value_of
from opasd.sweep.spec import EVALUATION, Planned, Sweep

_BATCH = "train.per_device_train_batch_size"
_ACCUMULATION = "train.gradient_accumulation_steps"


@dataclass(frozen=True)
class Commands:
    """The arguments of `opasd` that make a run; what does not apply is None."""

    train: list[str] | None
    resume: list[str] | None
    evaluate: list[str] | None

    @classmethod
    def of(cls, run: Planned, folder: Path, processes: int = 1) -> "Commands":
        """With the run's folder in `folder`, and its evaluation's beside it."""
        path = folder / run.name
        several = ["--num-processes", str(processes)] if processes > 1 else []
        where = ["--name", run.name, "--output-dir", str(folder)]
        train = ["train", run.recipe, *to_flags(run.settings), *where, *several]
        resume = ["train", "--resume", str(path), *several]
        evaluate = None
        if run.evaluate is not None:
            target = run.untrained() if run.evaluate_only else [str(path)]
            options = run.config.prompts.template_options
            variables = [f"--template-option={template_option(name, value)}" for name, value in options.items()]
            evaluate = ["evaluate", *target, *run.evaluate.flags(), *variables, "--output", f"{path}{EVALUATION}"]
        return cls(None if run.evaluate_only else train, None if run.evaluate_only else resume, evaluate)


def divided(run: Planned, processes: int) -> Planned:
    """The run on several processes, with as many problems in a step as on one."""
    if processes == 1 or run.evaluate_only:
        return run
    train = run.config.train
    for field in (_ACCUMULATION, _BATCH):
        value = value_of(run.config, field)
        if value % processes == 0:
            changed = train.model_copy(update={field.split(".")[1]: value // processes})
            config = run.config.model_copy(update={"train": changed})
            return replace(run, config=config, settings={**run.settings, field: value // processes})
    raise ConfigError(
        f"{run.name}: neither {_ACCUMULATION} {train.gradient_accumulation_steps} nor {_BATCH} "
        f"{train.per_device_train_batch_size} can be divided by {processes} processes; give another --gpus-per-run"
    )


def as_shell(sweep: Sweep, folder: Path, processes: int) -> str:
    """One line for each run, to be pasted into a shell."""
    lines = []
    for run in sweep.runs:
        made = Commands.of(run, folder, processes)
        commands = (command for command in (made.train, made.evaluate) if command is not None)
        lines.append(" && ".join(f"opasd {' '.join(map(_quoted, command))}" for command in commands))
    return "".join(f"{line}\n" for line in lines)


def _quoted(word: str) -> str:
    """For a shell, on one line."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = {chr(code): f"\\x{code:02x}" for code in range(32)} | {"\n": "\\n", "\\": "\\\\", "'": "\\'"}
    return "$'" + "".join(escaped.get(letter, letter) for letter in word) + "'"


@dataclass(frozen=True)
class Slurm:
    """What a cluster is asked for."""

    jobs: int | None = None
    gpus: int = 1
    time: str = "24:00:00"
    options: tuple[str, ...] = ()


def as_slurm(sweep: Sweep, folder: Path, again: Sequence[str], asked: Slurm) -> str:
    """A script for `sbatch`: one task of an array for each run. `again` is the sweep's own command line without the
    choice of a run: a task calls it with `--only`, so that a task that is put back in the queue goes on."""
    for option in (asked.time, *asked.options):
        if not option.isprintable():
            raise ConfigError(f"a Slurm option has characters that cannot be printed: {option!r:.60}; give one line")
    at_once = f"%{asked.jobs}" if asked.jobs else ""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", sweep.name)
    options = [f"--job-name=opasd-{name}", f"--array=0-{len(sweep.runs) - 1}{at_once}", f"--time={asked.time}"]
    options += [f"--gpus-per-task={asked.gpus}"] * (asked.gpus > 0)
    options += ["--ntasks=1", "--requeue", "--signal=B:TERM@120", *asked.options]
    command = shlex.join([sys.executable, "-m", "opasd.cli", "sweep", *again, "--output", str(folder.absolute())])
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {option}" for option in options),
            "# The table, when all tasks have ended:",
            f"#   {command} --table",
            "set -eu",
            f"cd {shlex.quote(str(Path.cwd()))}",
            "runs=(",
            *(f"  {shlex.quote(run.name)}" for run in sweep.runs),
            ")",
            f'exec {command} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}"',
            "",
        ]
    )
