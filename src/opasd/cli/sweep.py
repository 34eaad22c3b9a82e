"""Run many recipes or settings, evaluate them, and end in a table.

WHAT is a sweep that comes with the package (--list), a sweep's file, or recipes by name. Runs are made in
sweeps/NAME, each in a folder named by what differs. The same command resumes: what is done is skipped, what was cut
short continues, and what failed by a mistake is reported and not tried again (--retry does). A run that fails does not
stop the others; one that is out of GPU memory beside others is tried once more, alone, when they are done. Ctrl-C and
SIGTERM let every run save and end; a second Ctrl-C kills.

Any field of the configuration can be set for all runs, as in `opasd train` (--model MODEL, --steps 10,
--train.max-steps 10), and any option of the evaluation (--evaluate.problems 100).
"""

import argparse
import json
import re
import shlex
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from opasd.cli import STOPPED, USER_MISTAKE
from opasd.cli._flags import whole_number, without_flags
from opasd.cli._parser import Parser, listed
from opasd.cli._power import sweep_power
from opasd.errors import ConfigError, error_prefix
from opasd.progress import say

if TYPE_CHECKING:
    from opasd.recipes.fields import Settings
    from opasd.sweep.job import Job
    from opasd.sweep.scheduler import Scheduler
    from opasd.sweep.spec import Sweep

EPILOG = """\
examples:
  opasd sweep --list                           sweeps that come with the package
  opasd sweep lab-lambda                       the paper's table of attention
                                               weights, on the embedded model
  opasd sweep lab-lambda --dry-run             what there is to do
  opasd sweep main --seeds 1,42,123 --power    which difference it can find
  opasd sweep lab lab-opsd --seeds 1,42,123    two recipes, three seeds each
  opasd sweep main --jobs 4 --gpus-per-run 2   four at a time, two GPUs each
  opasd sweep lambda --reuse sweeps/main       λ = 0.5 is there already
  opasd sweep lambda --slurm --time 12:00:00   each run as a job on Slurm
  opasd report sweeps/lab-lambda               the page with every figure

Exit codes: 0 everything is done; 2 a mistake in what was given, or nothing but mistakes among the runs that failed;
1 a run failed otherwise; 75 stopped by a signal (the same command resumes)."""


def run(args: list[str]) -> int:
    """The command."""
    from opasd.config import RunConfig
    from opasd.recipes.evaluate import EvaluateConfig
    from opasd.recipes.fields import take_flags

    command = parser()
    rest, settings = take_flags(args, {"": RunConfig, "evaluate.": EvaluateConfig}, command.flags())
    options = command.parse_args(rest)
    if options.list:
        return _list(as_json=options.json)
    if not options.what:
        raise ConfigError("nothing to sweep; give a sweep's name (--list), a sweep's file, or recipes")
    from opasd.sweep.commands import as_shell, divided
    from opasd.sweep.job import Job
    from opasd.sweep.machine import Machine, visible_gpus
    from opasd.sweep.scheduler import Scheduler
    from opasd.sweep.spec import Changes, load_sweep

    changes = Changes(settings[""], settings["evaluate."], options.seeds, evaluated=not options.no_evaluation)
    sweep = load_sweep(options.what, changes)
    folder = options.output or Path("sweeps") / sweep.name
    processes = max(1, options.gpus_per_run)
    every_job = [Job(divided(run, processes), folder, processes, options.reuse) for run in sweep.runs]
    jobs = _chosen(every_job, options.only)
    _check_evaluations(jobs)
    if options.power:
        sys.stdout.write(sweep_power([job.run for job in jobs]))
        return 0
    if options.print_commands:
        sys.stdout.write(as_shell(jobs))
        return 0
    if options.slurm:
        return _on_slurm(args, sweep.name, jobs, folder, options)
    gpus = visible_gpus()
    if processes > max(1, len(gpus)):
        raise ConfigError(f"--gpus-per-run {processes}, but there are {len(gpus)} GPUs here; give at most that many")
    if options.table:
        _finish(sweep, every_job, folder, {}, json_output=options.json)
        return 0
    _check_jobs(jobs, options.reuse)
    if options.dry_run:
        sys.stdout.write(_dry_run(sweep, jobs, folder, options.reuse))
        return 0
    scheduler = Scheduler(jobs, Machine(options.jobs or 1, gpus, options.gpus_per_run))
    _work(scheduler, jobs, folder, options)
    if scheduler.stopping:
        say(f"stopped; continue with: opasd sweep {shlex.join(args)}")
        return STOPPED
    if not options.only:
        messages = {name: message for name, (_, message) in scheduler.failed.items()}
        _finish(sweep, every_job, folder, messages, json_output=options.json)
    for name, (code, message) in scheduler.failed.items():
        say(f"failed: {name} ({'mistake' if code == USER_MISTAKE else f'code {code}'}): {message[:200]}")
    codes = {code for code, _ in scheduler.failed.values()}
    return 0 if not codes else USER_MISTAKE if codes == {USER_MISTAKE} else 1


def _on_slurm(args: list[str], name: str, jobs: "list[Job]", folder: Path, options: argparse.Namespace) -> int:
    """Submit what is left to do as one array, or print its script."""
    from opasd.sweep.slurm import as_slurm, left_to_submit, submit

    if options.table:
        raise ConfigError("--slurm submits and --table reads what is there; give one of them")
    valued = ["--jobs", "--time", "--slurm-option", "--output", "--only"]
    own = without_flags(args, valued, switches=["--slurm", "--dry-run", "--retry"])
    limits = {"most": options.jobs, "gpus": options.gpus_per_run, "time": options.time}
    if options.dry_run:
        sys.stdout.write(as_slurm(name, jobs, own, **limits, options=options.slurm_option))
        return 0
    _check_jobs(jobs, options.reuse)
    if options.retry:
        for job in jobs:
            job.forget_failures()
    if left := left_to_submit(jobs):
        number = submit(folder, as_slurm(name, left, own, **limits, options=options.slurm_option), left)
        say(f"submitted {len(left)} runs as job {number}; see squeue --jobs {number}, logs in {folder / 'slurm'}")
        sys.stdout.write(f"{number}\n")
    return 0


def _check_evaluations(jobs: "list[Job]") -> None:
    """Refuse evaluations that cannot be made before anything is trained."""
    from opasd.evaluation.benchmarks import find_benchmarks

    with error_prefix("evaluate.benchmarks"):
        for names in dict.fromkeys(job.run.evaluate.benchmarks for job in jobs if job.run.evaluate):
            find_benchmarks(list(names))
    for job in jobs:
        job.run.profile()


def _check_jobs(jobs: "list[Job]", sources: list[Path]) -> None:
    """Refuse folders made with other settings, and runs that cannot start."""
    from opasd.cli._preview import check

    for job in jobs:
        job.check()
        if not job.trained():
            check(job.run.config, job.processes, job.run.name)
    for source in sources:
        if not source.is_dir():
            raise ConfigError(f"--reuse: no folder {source}; give another sweep's, such as sweeps/main")


def _work(scheduler: "Scheduler", jobs: "list[Job]", folder: Path, options: argparse.Namespace) -> None:
    """Link what other sweeps have, and do the rest."""
    from opasd.run.locks import hold

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for job in jobs:
            if options.retry:
                job.forget_failures()
            for path in (path for source in options.reuse for path in job.reuse(source)):
                say(f"{job.run.name}: from {path}")
        # Tasks of a cluster work in one folder, each on its own run.
        with nullcontext() if options.only else hold(folder, "sweep"):
            scheduler.run()
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written ({error.strerror}); free space or rights, and give the "
            "same command again"
        ) from error


def _finish(sweep: "Sweep", jobs: "list[Job]", folder: Path, failed: dict[str, str], *, json_output: bool) -> None:
    """Write and print the table."""
    from opasd.sweep.results import RunResult, as_json, read_run_result
    from opasd.sweep.tables import as_text, make_table, seed_tables, write

    results = []
    for job in jobs:
        try:
            job.check()
        except ConfigError as error:
            say(f"{job.run.name} is left out: {error}")
            results.append(RunResult(job.run, done=False, failed=str(error)))
            continue
        message = failed.get(job.run.name) or job.mistake() or ""
        results.append(read_run_result(job, sweep.table.metrics, message))
    table, record = make_table(sweep, results), as_json(sweep, results)
    tables = folder / "tables"
    try:
        write(tables, [table, *seed_tables(results)], record)
    except OSError as error:
        raise ConfigError(f"{tables} cannot be written ({error.strerror}); free space or rights") from error
    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n" if json_output else as_text(table))
    sys.stdout.flush()
    say(f"{tables}; the page with every figure: opasd report {shlex.quote(str(folder))}")


def _dry_run(sweep: "Sweep", jobs: "list[Job]", folder: Path, sources: list[Path]) -> str:
    """Return a line for each run: what is left to do, and its settings."""
    settings = [job.run.settings for job in jobs if not job.run.evaluate_only] or [{}]
    common = {field: value for field, value in settings[0].items() if all(s.get(field) == value for s in settings)}
    width = max(len(job.run.name) for job in jobs)
    lines = [f"{sweep.name}: {len(jobs)} runs in {folder}", *([f"  all: {_texts(common)}"] if common else [])]
    for job in jobs:
        run, todo = job.run, []
        matches = [job.find_in(source) for source in sources]
        trained = next((path for path, _ in matches if path), None)
        evaluated = next((other.evaluation for _, other in matches if other), None)
        if trained:
            todo.append(f"trained: {trained}")
        elif not job.trained():
            todo.append("resume training" if job.begun() else f"train {run.config.train.max_steps} steps")
        if evaluated:
            todo.append(f"evaluated: {evaluated}")
        elif run.evaluate is not None and not job.evaluated():
            todo.append(f"evaluate {', '.join(run.evaluate.benchmarks)}".strip())
        if (message := job.mistake()) is not None:
            todo = [f"failed before: {message}"]
        own = {} if run.evaluate_only else {k: v for k, v in run.settings.items() if k not in common}
        what = f"{run.recipe}{': ' if own else ''}{_texts(own)}"
        lines.append(f"  {run.name:<{width}}  {'; '.join(todo) or 'done'}  ({what})")
    return "".join(f"{line}\n" for line in lines)


def _texts(settings: "Settings") -> str:
    from opasd.sweep.names import value_text

    texts = {field: value if isinstance(value, str) else value_text(value) for field, value in settings.items()}
    return ", ".join(f"{field} {text if text.isprintable() else repr(text)}" for field, text in texts.items())


def _chosen(jobs: "list[Job]", only: list[str]) -> "list[Job]":
    names = [name for text in only for name in text.split(",") if name]
    known = {job.run.name: job for job in jobs}
    if unknown := [name for name in names if name not in known]:
        raise ConfigError(f"--only: no run {', '.join(unknown)}; the runs are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)] or jobs


def _list(*, as_json: bool) -> int:
    from opasd.sweep.spec import load_sweep, sweep_names

    sweeps = [load_sweep([name]) for name in sweep_names()]
    if as_json:
        rows = [{"name": s.name, "description": s.description, "runs": [run.name for run in s.runs]} for s in sweeps]
        sys.stdout.write(json.dumps(rows, indent=1) + "\n")
        return 0
    width = max(len(sweep.name) for sweep in sweeps)
    for sweep in sorted(sweeps, key=lambda sweep: (sweep.name.startswith("lab"), sweep.name)):
        sys.stdout.write(listed(sweep.name, f"{len(sweep.runs)} runs. {sweep.description}", width))
    return 0


def parser() -> Parser:
    """Return the command's parser."""
    command = Parser("sweep", __doc__, usage="opasd sweep WHAT [WHAT ...] [options]", more=EPILOG)
    command.add_argument("what", metavar="WHAT", nargs="*", help="A sweep's name or file, or recipes.")
    command.add_argument("--list", action="store_true", help="List the sweeps that come with the package.")
    command.add_argument("--output", metavar="DIR", type=Path, help="The sweep's folder. (default: sweeps/NAME)")
    command.add_argument("--seeds", metavar="A,B", type=_seeds, default=(), help="Every run with each of these seeds.")
    command.add_argument("--no-evaluation", action="store_true", help="Train only.")
    command.add_argument(
        "--reuse", metavar="DIR", type=Path, action="append", default=[],
        help="Link finished runs of the same settings from another sweep's folder, and do not make them again.",
    )  # fmt: skip
    command.add_argument("--only", metavar="RUN", action="append", default=[], help="These runs alone; no table.")
    command.add_argument("--retry", action="store_true", help="Try again what failed by a mistake.")
    command.add_argument("--json", action="store_true", help="Print the results as one JSON object.")
    machine = command.add_argument_group("this machine")
    machine.add_argument("--jobs", metavar="N", type=whole_number(1), help="Runs at a time. (default: 1)")
    machine.add_argument(
        "--gpus-per-run", metavar="N", type=whole_number(0, 1024), default=1,
        help="GPUs, and processes, of each run; 0 hides them. Runs take turns on the GPUs, and a step has as many "
        "problems as on one. (default: 1)",
    )  # fmt: skip
    instead = command.add_argument_group("instead of running").add_mutually_exclusive_group()
    instead.add_argument("--dry-run", action="store_true", help="Say what there is to do.")
    instead.add_argument("--power", action="store_true", help="Say which difference the evaluations can find.")
    instead.add_argument("--table", action="store_true", help="Make the table of the results so far.")
    instead.add_argument("--print-commands", action="store_true", help="Print the commands, one line for each run.")
    cluster = command.add_argument_group("Slurm")
    cluster.add_argument(
        "--slurm", action="store_true",
        help="Submit what is left as an array, a task for each run and --jobs at a time; with --dry-run print the "
        "script. A task that is stopped goes back into the queue and continues.",
    )  # fmt: skip
    cluster.add_argument(
        "--time", metavar="TIME", type=_time, default="24:00:00", help="Time limit of a task. (default: 24:00:00)"
    )
    cluster.add_argument(
        "--slurm-option", metavar="OPTION", action="append", default=[],
        help="Another #SBATCH line, such as --slurm-option=--partition=gpu. May be repeated.",
    )  # fmt: skip
    return command


def _seeds(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(re.fullmatch(r"-?[0-9]{1,20}", word) for word in words):
        raise argparse.ArgumentTypeError(f"got {text!r:.60}; give whole numbers such as 1,42,123")
    return tuple(map(int, words))


def _time(text: str) -> str:
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}|UNLIMITED", text, re.ASCII):
        raise argparse.ArgumentTypeError(f"expected a time such as 12:00:00 or 2-00:00:00, got {text!r:.40}")
    return text
