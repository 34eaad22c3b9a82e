"""The runs of a sweep as commands for a shell."""

import shlex
from collections.abc import Sequence
from dataclasses import replace

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
