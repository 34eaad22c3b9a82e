"""A sweep on Slurm: one array with a task for each run, submitted once, requeued until the run is done.

FOLDER/slurm/N.sh            the script of the Nth submission, with what is left to do
FOLDER/slurm/submitted.json  the job's number and the runs of each
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from opasd.errors import ConfigError
from opasd.files import read_object, write_json, write_text
from opasd.progress import say
from opasd.sweep.job import STOPPED, Job

SAVES_S = 120
"""Seconds before the end of its time in which a task saves; a run needs 30."""


def as_slurm(
    sweep: str, jobs: Sequence[Job], args: Sequence[str], *, most: int | None, gpus: int, time: str, options: list[str]
) -> str:
    """Return a script for `sbatch` with one task of an array for each run, at most `most` of them at a time.

    `args` are the sweep's own arguments without the choice of a run: a task repeats them with `--only`, so that a task
    that is requeued resumes. `options` are further #SBATCH lines. A task that was stopped before its run was done, by
    its time limit or by preemption, is put back into the queue; one that was cancelled is not.
    """
    for option in options:
        if not option.isprintable():
            raise ConfigError(f"a Slurm option has characters that cannot be printed: {option!r:.60}; give one line")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", sweep)
    limit = f"%{most}" if most else ""
    output = jobs[0].folder.absolute()
    header = [f"--job-name=opasd-{name}", f"--array=0-{len(jobs) - 1}{limit}", f"--time={time}"]
    header += [f"--gpus-per-task={gpus}"] * (gpus > 0)
    header += ["--ntasks=1", "--requeue", "--open-mode=append", f"--signal=B:TERM@{SAVES_S}", *options]
    command = shlex.join([sys.executable, "-m", "opasd.cli", "sweep", *args, "--output", str(output)])
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in header),
        "# The table, when all tasks have ended:",
        f"#   {command} --table",
        "set -u",
        f"cd {shlex.quote(str(Path.cwd()))} || exit",
        "runs=(",
        *(f"  {shlex.quote(job.run.name)}" for job in jobs),
        ")",
        f'{command} --only "${{runs[$SLURM_ARRAY_TASK_ID]}}" &',
        "child=$! again=1",
        "trap 'kill -TERM \"$child\" 2>/dev/null; again=1' TERM  # it saves, and ends `wait`",
        'while [ "$again" = 1 ]; do again=0; wait "$child"; code=$?; done',
        "task=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID",
        'state=$(squeue --noheader --format=%T --jobs="$task")',
        # 143: the signal came before the command could hear it
        f'if {{ [ "$code" = {STOPPED} ] || [ "$code" = 143 ]; }} && [ "$state" = RUNNING ]; then',
        '  scontrol requeue "$task"  # stopped, but not cancelled: it continues later',
        "fi",
        'exit "$code"',
    ]
    return "".join(f"{line}\n" for line in lines)


def left_to_submit(jobs: Sequence[Job]) -> list[Job]:
    """Return the runs that are not done, failed by a mistake, or still in Slurm's queue; say which are left out."""
    queued = {run: number for number in _records(jobs[0].folder) for run in _queued(jobs[0].folder, number)}
    left = []
    for job in jobs:
        name = job.run.name
        if job.next_stage() is None:
            say(f"{name}: done before")
        elif (message := job.mistake()) is not None:
            say(f"{name}: failed before and is not submitted without --retry: {message}")
        elif name in queued:
            say(f"{name}: in the queue as job {queued[name]}")
        else:
            left.append(job)
    return left


def submit(folder: Path, script: str, jobs: Sequence[Job]) -> str:
    """Keep the script, hand it to `sbatch`, write down the job's number, and return it."""
    if shutil.which("sbatch") is None:
        raise ConfigError(
            "there is no `sbatch` here; print the script with --slurm --dry-run, and submit it where Slurm is"
        )
    records = _records(folder)
    place = folder / "slurm"
    place.mkdir(parents=True, exist_ok=True)
    path = place / f"{len(records) + 1}.sh"
    write_text(path, script)
    logs = place / "%A_%a.log"
    done = _slurm("sbatch", "--parsable", f"--output={logs.absolute()}", str(path))
    if done.returncode:
        path.unlink()
        words = " ".join(done.stderr.split())[:500]
        raise ConfigError(f"sbatch refuses the sweep ({words}); change --time or --slurm-option")
    number = done.stdout.strip().partition(";")[0]
    write_json(place / "submitted.json", {**records, number: [job.run.name for job in jobs]})
    return number


def _records(folder: Path) -> dict[str, list[str]]:
    """Return the runs of each submission by the job's number, in the order of the array."""
    records = read_object(folder / "slurm" / "submitted.json")
    return {number: runs for number, runs in records.items() if number.isdecimal() and isinstance(runs, list)}


def _queued(folder: Path, number: str) -> list[str]:
    """Return the runs of a submission that wait or run."""
    if shutil.which("squeue") is None:
        return []
    done = _slurm("squeue", "--noheader", "--array", "--format=%K", f"--jobs={number}")  # fails for an old job
    places = [int(line) for line in done.stdout.split() if line.isdecimal()] if done.returncode == 0 else []
    runs = _records(folder)[number]
    return [runs[place] for place in places if place < len(runs)]


def _slurm(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"{command[0]} does not answer ({error}); try again when Slurm does") from error
