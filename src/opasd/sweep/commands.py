"""A run as the commands that make it: for this machine, for a shell, for Slurm."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opasd.errors import ConfigError
from opasd.recipes.evaluate import template_option
from opasd.recipes.fields import to_flags, value_of
from opasd.sweep.spec import EVALUATION, Sweep, SweepRun

_BATCH = "train.per_device_train_batch_size"
_ACCUMULATION = "train.gradient_accumulation_steps"


def train_command(run: SweepRun, folder: Path, processes: int = 1, *, resume: bool = False) -> list[str]:
    """Return the arguments of `opasd` that train the run in `folder`."""
    launch = ["--num-processes", str(processes)] if processes > 1 else []
    if resume:
        return ["train", "--resume", str(folder / run.name), *launch]
    where = ["--name", run.name, "--output-dir", str(folder)]
    return ["train", run.recipe, *to_flags(run.settings), *where, *launch]


def evaluate_command(run: SweepRun, folder: Path) -> list[str]:
    """Return the arguments of `opasd` that evaluate the run in `folder`, in a folder beside it."""
    path = str(folder / run.name)
    target = run.base_target() if run.evaluate_only else [path]
    flags = run.evaluate.flags() if run.evaluate else []
    options = run.config.prompts.template_options
    flags += [f"--template-option={template_option(name, value)}" for name, value in options.items()]
    return ["evaluate", *target, *flags, "--output", f"{path}{EVALUATION}"]


def divided(run: SweepRun, processes: int) -> SweepRun:
    """Return the run for several processes, with as many problems in a step as on one."""
    if processes == 1 or run.evaluate_only:
        return run
    for field in (_ACCUMULATION, _BATCH):
        value = value_of(run.config, field)
        if value % processes == 0:
            share = value // processes
            train = run.config.train.model_copy(update={field.split(".")[1]: share})
            config = run.config.model_copy(update={"train": train})
            return replace(run, config=config, settings={**run.settings, field: share})
    raise ConfigError(
        f"{run.name}: neither {_ACCUMULATION} {value_of(run.config, _ACCUMULATION)} nor {_BATCH} "
        f"{value_of(run.config, _BATCH)} can be divided by {processes} processes; give another --gpus-per-run"
    )


def as_shell(sweep: Sweep, folder: Path, processes: int) -> str:
    """Return one line for each run, to be pasted into a shell."""
    lines = []
    for run in sweep.runs:
        commands = [] if run.evaluate_only else [train_command(run, folder, processes)]
        commands += [evaluate_command(run, folder)] if run.evaluate else []
        lines.append(" && ".join(f"opasd {' '.join(map(quoted, command))}" for command in commands))
    return "".join(f"{line}\n" for line in lines)


def quoted(word: str) -> str:
    """Return the word for a shell, on one line."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = {chr(code): f"\\x{code:02x}" for code in range(32)} | {"\n": "\\n", "\\": "\\\\", "'": "\\'"}
    return "$'" + "".join(escaped.get(letter, letter) for letter in word) + "'"


def as_slurm(
    sweep: Sweep, folder: Path, args: Sequence[str], *, jobs: int | None, gpus: int, time: str, options: Sequence[str]
) -> str:
    """Return a script for `sbatch` with one task of an array for each run, at most `jobs` of them at a time.

    `args` are the sweep's own arguments without the choice of a run: a task repeats them with `--only`, so that a task
    that is requeued resumes. `options` are further #SBATCH lines.
    """
    for option in (time, *options):
        if not option.isprintable():
            raise ConfigError(f"a Slurm option has characters that cannot be printed: {option!r:.60}; give one line")
    limit = f"%{jobs}" if jobs else ""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", sweep.name)
    header = [f"--job-name=opasd-{name}", f"--array=0-{len(sweep.runs) - 1}{limit}", f"--time={time}"]
    header += [f"--gpus-per-task={gpus}"] * (gpus > 0)
    header += ["--ntasks=1", "--requeue", "--signal=B:TERM@120", *options]
    command = shlex.join([sys.executable, "-m", "opasd.cli", "sweep", *args, "--output", str(folder.absolute())])
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in header),
        "# The table, when all tasks have ended:",
        f"#   {command} --table",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        "runs=(",
        *(f"  {shlex.quote(run.name)}" for run in sweep.runs),
        ")",
        f'exec {command} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}"',
    ]
    return "".join(f"{line}\n" for line in lines)
