"""The runs of a sweep as commands for a shell or for Slurm."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from opasd.errors import ConfigError
from opasd.sweep.job import Job, Stage
from opasd.sweep.spec import SweepRun


def divided(run: SweepRun, processes: int) -> SweepRun:
    """Return the run for several processes, with as many problems in a step as on one."""
    if processes == 1 or run.evaluate_only:
        return run
    train = run.config.train
    for name in ("gradient_accumulation_steps", "per_device_train_batch_size"):
        share, rest = divmod(getattr(train, name), processes)
        if not rest:
            config = run.config.model_copy(update={"train": train.model_copy(update={name: share})})
            return replace(run, config=config, settings={**run.settings, f"train.{name}": share})
    raise ConfigError(
        f"{run.name}: neither train.gradient_accumulation_steps {train.gradient_accumulation_steps} nor "
        f"train.per_device_train_batch_size {train.per_device_train_batch_size} can be divided by {processes} "
        "processes; give another --gpus-per-run"
    )


def as_shell(jobs: Sequence[Job]) -> str:
    """Return one line for each run, to be pasted into a shell."""
    lines = []
    for job in jobs:
        stages: list[Stage] = ["evaluate"] if job.run.evaluate_only else ["train", "evaluate"]
        stages = stages if job.run.evaluate else ["train"]
        lines.append(" && ".join(f"opasd {' '.join(map(quoted, job.command(stage)))}" for stage in stages))
    return "".join(f"{line}\n" for line in lines)


def quoted(word: str) -> str:
    """Return the word for a shell, on one line."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = {chr(code): f"\\x{code:02x}" for code in range(32)} | {"\n": "\\n", "\\": "\\\\", "'": "\\'"}
    return "$'" + "".join(escaped.get(letter, letter) for letter in word) + "'"


def as_slurm(
    sweep: str, jobs: Sequence[Job], args: Sequence[str], *, most: int | None, gpus: int, time: str, options: list[str]
) -> str:
    """Return a script for `sbatch` with one task of an array for each run, at most `most` of them at a time.

    `args` are the sweep's own arguments without the choice of a run: a task repeats them with `--only`, so that a task
    that is requeued resumes. `options` are further #SBATCH lines.
    """
    for option in options:
        if not option.isprintable():
            raise ConfigError(f"a Slurm option has characters that cannot be printed: {option!r:.60}; give one line")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", sweep)
    limit = f"%{most}" if most else ""
    header = [f"--job-name=opasd-{name}", f"--array=0-{len(jobs) - 1}{limit}", f"--time={time}"]
    header += [f"--gpus-per-task={gpus}"] * (gpus > 0)
    header += ["--ntasks=1", "--requeue", "--signal=B:TERM@120", *options]
    output = str(jobs[0].folder.absolute())
    command = shlex.join([sys.executable, "-m", "opasd.cli", "sweep", *args, "--output", output])
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in header),
        "# The table, when all tasks have ended:",
        f"#   {command} --table",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        "runs=(",
        *(f"  {shlex.quote(job.run.name)}" for job in jobs),
        ")",
        f'exec {command} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}"',
    ]
    return "".join(f"{line}\n" for line in lines)
