"""The long suite (`make test-faults`): every fault is done to a real run, and docs/reliability.md says what happened.

    python -m tests.faults.whole [--jobs N] [--quick] [NAME ...]

Its parts need nothing of each other and leave their results in .faults, so the same command continues a suite that was
cut short, until the code changes. Training, evaluation and merging run in forked processes, so that a fault costs no
import. All of it takes about 35 minutes on one core, and some four on sixteen.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from opasd.files import read_object, write_json
from tests.faults import soaking
from tests.faults.cases import cases
from tests.faults.commands_killed import evaluations, merges, ranks, sweeps
from tests.faults.common import EXACT, QUICK, Result, child, end_of, same, train, undisturbed
from tests.faults.fuzz import fuzz
from tests.faults.load import load
from tests.faults.page import page, results_of
from tests.faults.targets import TARGETS, Draw
from tests.processes import ROOT, environment
from tests.training import rows

PAGE = ROOT / "docs" / "reliability.md"


def kills(place: Path) -> list[Result]:
    """SIGKILL at any moment."""
    result = Result("SIGKILL of a training at random moments", EXACT)
    _killed(place, result, 2 if QUICK else 10, lambda run, pid, lasts: time.sleep(random.uniform(0.05, lasts)))
    return [result]


def kills_while_saving(place: Path) -> list[Result]:
    """SIGKILL in the moments in which a checkpoint is written."""

    def written(run: Path, pid: int, _lasts: float) -> None:
        while not any((run / ".checkpoint").rglob("*")) and os.waitpid(pid, os.WNOHANG)[0] == 0:
            time.sleep(0.0005)
        time.sleep(random.uniform(0, 0.03))

    result = Result("SIGKILL while a checkpoint is written", EXACT)
    _killed(place, result, 2 if QUICK else 12, written)
    return [result]


def _killed(place: Path, result: Result, times: int, wait: Callable[[Path, int, float], None]) -> None:
    """Kill runs so many times in all, resume each until it ends, and compare it with the undisturbed one."""
    whole, lasts = undisturbed(place)
    number = 0
    while result.tried < times:
        number += 1
        run = place / f"run-{number}"
        code = -1
        while code:
            pid = child(lambda run=run: train(run), place / "log")
            try:
                if result.tried < times:
                    wait(run, pid, lasts)
                    os.kill(pid, signal.SIGKILL)
                code = end_of(pid)
            except (ProcessLookupError, ChildProcessError):  # it had ended before
                code = 0
            result.tried += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                result.failures.append(f"ended with {code}")
                return
        same(result, run, whole)


def signals(place: Path) -> list[Result]:
    """One signal at a random moment, and two."""
    whole, lasts = undisturbed(place)
    results = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        result = Result(f"{number.name} at random moments", f"a checkpoint within 30 s, exit code 75; {EXACT}")
        for index in range(1 if QUICK else 6):
            run = place / f"{number.name}-{index}"
            pid = child(lambda run=run: train(run), place / "log")
            while not rows(run):
                time.sleep(0.01)
            time.sleep(random.uniform(0, lasts / 2))
            began = time.monotonic()
            os.kill(pid, number)
            code = end_of(pid)
            result.slowest = max(result.slowest, time.monotonic() - began)
            result.tried += 1
            result.expect(code in (0, 75), f"exit code {code}")
            if code:
                result.expect(end_of(child(lambda run=run: train(run), place / "log")) == 0, "does not resume")
            same(result, run, whole)
        result.expect(result.slowest < 30, f"{result.slowest:.0f} s")
        results.append(result)
    twice = Result("SIGINT twice", "ends at once; what was saved stays")
    for index in range(1 if QUICK else 3):
        run = place / f"twice-{index}"
        pid = child(lambda run=run: train(run), place / "log")
        while not rows(run):
            time.sleep(0.01)
        for _ in range(2):
            os.kill(pid, signal.SIGINT)
            time.sleep(0.05)
        twice.tried += 1
        twice.expect(end_of(pid) in (0, 75, 130), "another exit code")
        twice.expect(end_of(child(lambda run=run: train(run), place / "log")) == 0, "does not resume")
        same(twice, run, whole)
    return [*results, twice, terminal(place, whole)]


def terminal(place: Path, whole: Path) -> Result:
    result = Result("a terminal that is closed", f"a checkpoint, exit code 75; {EXACT}")
    for index in range(1 if QUICK else 3):
        run = place / f"terminal-{index}"
        pid, master = os.forkpty()
        if pid == 0:
            code = 1
            try:
                code = 75 if train(run) == "stopped" else 0
            finally:
                os._exit(code)
        while not rows(run):
            os.set_blocking(master, False)
            try:
                os.read(master, 4096)
            except OSError:
                time.sleep(0.01)
        os.close(master)
        result.tried += 1
        result.expect(end_of(pid) in (0, 75), "another exit code")
        result.expect(end_of(child(lambda run=run: train(run), place / "log")) == 0, "does not resume")
        same(result, run, whole)
    return result


def full_disks(place: Path) -> list[Result]:
    """A small file system that runs full in the middle of a run, and one that turns read-only."""
    whole, _ = undisturbed(place)
    full = Result("a full disk (tmpfs)", f"one message; after space is freed, {EXACT}")
    read_only = Result("a file system that turns read-only", f"one message; when it can be written again, {EXACT}")
    disk = place / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=False).returncode:
        full.notes.append("not tried: no right to mount")
        read_only.notes.append("not tried: no right to mount")
        return [full, read_only]
    try:
        size = sum(path.stat().st_size for path in whole.rglob("*") if path.is_file())
        for index in range(1 if QUICK else 6):
            run, ballast = disk / f"full-{index}", disk / "ballast"
            shutil.rmtree(disk / f"full-{index - 1}", ignore_errors=True)
            log = place / f"full-{index}.log"
            free = shutil.disk_usage(disk).free
            ballast.write_bytes(bytes(max(free - int(size * random.uniform(0.05, 0.9)), 0)))
            code = end_of(child(lambda run=run: _told(run), log))
            ballast.unlink()
            full.tried += 1
            full.expect(code in (0, 2), f"exit code {code}: {log.read_text()[-300:]}")
            if code:
                full.expect("could not be written" in log.read_text(), "no message")
                full.expect(end_of(child(lambda run=run: train(run), log)) == 0, "does not resume")
            same(full, run, whole)
        shutil.rmtree(run)
        for index in range(1 if QUICK else 3):
            run, log = disk / f"ro-{index}", place / f"ro-{index}.log"
            pid = child(lambda run=run: _told(run), log)
            while len(rows(run)) < 3:
                time.sleep(0.01)
            subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=False, capture_output=True)
            code = end_of(pid)
            subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
            read_only.tried += 1
            read_only.expect(code in (0, 2), f"exit code {code}: {log.read_text()[-300:]}")
            read_only.expect(end_of(child(lambda run=run: train(run), log)) == 0, "does not resume")
            same(read_only, run, whole)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)
    return [full, read_only]


def _told(run: Path) -> None:
    """Train as the command does: a message and exit code 2."""
    from opasd.cli import _message
    from opasd.files import full_disk_errors

    try:
        with full_disk_errors(run):
            train(run)
    except Exception as error:
        message = _message(error)
        if message is None:
            raise
        sys.stderr.write(f"error: {message}\n")
        sys.stderr.flush()
        os._exit(2)


def soak(place: Path) -> list[Result]:
    steps = 60 if QUICK else 1000
    result = Result(f"a soak of {steps:,} steps of the embedded model", "memory, descriptors and step time stay flat")
    output = place / "soak.json"
    code = end_of(child(lambda: soaking.soak(place / "soak", output, steps)))
    result.tried = 1
    result.expect(code == 0, f"exit code {code}")
    if code == 0:
        for name, about in json.loads(output.read_text()).items():
            result.expect(about["flat"], name)
            result.notes.append(about["text"])
    return [result]


def fuzzing(target: Callable[[Path, Draw], None], place: Path) -> list[Result]:
    """Hostile input of one kind, for a minute of the processor."""
    about = target.__name__.replace("_", " ")
    result = Result(f"hostile input: {about}", "no traceback, no hang, nothing executed or written elsewhere")
    result.tried, failure = fuzz(target, 5 if QUICK else 60)
    result.expect(not failure, failure[-600:])
    return [result]


SLICES: dict[str, Callable[[Path], list[Result]]] = {
    "soak": soak, "ranks": ranks, "sweeps": sweeps, "signals": signals, "merges": merges, "evaluations": evaluations,
    **{f"kills-{number}": kills for number in range(1, 5)}, "kills_while_saving": kills_while_saving,
    "full_disks": full_disks, "load": load, "cases": cases,
    **{f"fuzz-{target.__name__}": partial(fuzzing, target) for target in TARGETS},
}  # fmt: skip
"""Parts of the suite that need nothing of each other; the longest come first."""


def main() -> int:
    options = arguments()
    if options.slice:
        return run_slice(options.slice, options.state)
    names = [name for name in SLICES if not options.names or name.partition("-")[0] in options.names]
    left = [name for name in names if not _record(options.state, name)]
    failed = work(left, options) if left else False
    records = {name: _record(options.state, name) for name in SLICES}
    if not QUICK and all(records.values()):
        PAGE.write_text(page([record for record in records.values() if record]), encoding="utf-8")
    return 1 if failed or any(result.failures for name in names for result in results_of(records[name])) else 0


def work(names: list[str], options: argparse.Namespace) -> bool:
    """Run slices in processes of their own, some at a time; return whether one of them broke down."""
    options.state.mkdir(parents=True, exist_ok=True)
    waiting, running, broken = list(names), {}, False
    while waiting or running:
        while waiting and len(running) < options.jobs:
            name = waiting.pop(0)
            words = ["--slice", name, "--state", str(options.state), *(["--quick"] if QUICK else [])]
            log = (options.state / f"{name}.log").open("w")
            running[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.faults.whole", *words],
                cwd=ROOT,
                env=environment(),
                stdout=log,
                stderr=log,
            )
        pid, status = os.wait()
        for name in [name for name, process in running.items() if process.pid == pid]:
            running.pop(name).returncode = os.waitstatus_to_exitcode(status)
            broken = broken or status != 0
            for result in results_of(_record(options.state, name)):
                sys.stdout.write(f"{result.line()}\n")
            sys.stdout.write(f"{name}: {'done' if status == 0 else f'broken, see {name}.log'}\n")
            sys.stdout.flush()
    return broken


def run_slice(name: str, state: Path) -> int:
    random.seed(name)
    torch.set_num_threads(1)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="opasd-faults-") as place:
        results = SLICES[name](Path(place))
    record = {"code": code_digest(), "seconds": round(time.monotonic() - began), "results": list(map(asdict, results))}
    write_json(state / f"{name}.json", record)
    return 0


def _record(state: Path, name: str) -> dict[str, Any]:
    """Return what a slice found with the code as it is, nothing if it has not run."""
    record = read_object(state / f"{name}.json")
    return record if record.get("code") == code_digest() else {}


@cache
def code_digest() -> str:
    """Return a digest of the package and of the suite."""
    paths = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests" / "faults").glob("*.py")]
    contents = b"".join(path.read_bytes() for path in sorted(paths))
    return hashlib.sha256(contents).hexdigest()[:12]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=", ".join(dict.fromkeys(name.partition("-")[0] for name in SLICES)))
    parser.add_argument("--jobs", type=int, default=1, help="Parts at a time; one a core.")
    parser.add_argument("--state", type=Path, default=ROOT / ".faults", help="Where each part leaves its results.")
    parser.add_argument("--quick", action="store_true", help="A few of each; writes no page.")
    parser.add_argument("--slice", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
