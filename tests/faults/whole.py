"""The long suite (`make test-faults`): every fault is done to a real run, and docs/reliability.md says what happened.

    python -m tests.faults.whole [--quick] [NAME ...]     all faults, a few of each, or those whose names are given

Training, evaluation and merging run in forked processes, so that a fault costs no import. It takes about 15 minutes.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as xml
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from tests.faults import soaking
from tests.faults.commands_killed import commands, ranks, sweeps
from tests.faults.common import EXACT, QUICK, Result, child, end_of, same, train, undisturbed
from tests.faults.page import page
from tests.processes import ROOT, environment
from tests.training import rows

PAGE = ROOT / "docs" / "reliability.md"


def kills(place: Path) -> list[Result]:
    """SIGKILL at any moment, and while a checkpoint is written."""
    whole, lasts = undisturbed(place)
    anywhere = Result("SIGKILL of a training at random moments", EXACT)
    saving = Result("SIGKILL while a checkpoint is written", EXACT)
    for result, times in ((anywhere, 4 if QUICK else 40), (saving, 2 if QUICK else 12)):
        number = 0
        while result.tried < times:
            number += 1
            run = place / f"{result.fault.split()[-1]}-{number}"
            for _ in range(200):
                pid = child(lambda run=run: train(run), place / "log")
                if result is anywhere:
                    time.sleep(random.uniform(0.05, lasts))
                elif result.tried < times:
                    while not any((run / ".checkpoint").rglob("*")) and os.waitpid(pid, os.WNOHANG)[0] == 0:
                        time.sleep(0.0005)
                    time.sleep(random.uniform(0, 0.03))
                try:
                    if result.tried < times:
                        os.kill(pid, signal.SIGKILL)
                    code = end_of(pid)
                except (ProcessLookupError, ChildProcessError):
                    code = 0
                result.tried += code == -signal.SIGKILL
                if code == 0:
                    break
                result.expect(code == -signal.SIGKILL, f"ended with {code}")
            same(result, run, whole)
        result.notes.append(f"{number} runs")
    return [anywhere, saving]


def signals(place: Path) -> list[Result]:
    """One signal at a random moment, and two."""
    whole, lasts = undisturbed(place)
    results = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        result = Result(f"{number.name} at random moments", f"a checkpoint within 30 s, exit code 75; {EXACT}")
        slowest = 0.0
        for index in range(1 if QUICK else 6):
            run = place / f"{number.name}-{index}"
            pid = child(lambda run=run: train(run), place / "log")
            while not rows(run):
                time.sleep(0.01)
            time.sleep(random.uniform(0, lasts / 2))
            began = time.monotonic()
            os.kill(pid, number)
            code = end_of(pid)
            slowest = max(slowest, time.monotonic() - began)
            result.tried += 1
            result.expect(code in (0, 75), f"exit code {code}")
            if code:
                result.expect(end_of(child(lambda run=run: train(run), place / "log")) == 0, "does not resume")
            same(result, run, whole)
        result.expect(slowest < 30, f"{slowest:.0f} s")
        result.notes.append(f"slowest {slowest:.1f} s")
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


def short_suite(place: Path) -> list[Result]:
    """The tests of the short form, counted by what they do."""
    report = place / "short.xml"
    command = [sys.executable, "-m", "pytest", "-q", "tests/faults", f"--junitxml={report}"]
    subprocess.run(command, cwd=ROOT, env=environment(), check=False, stdout=subprocess.DEVNULL)
    counts: dict[str, Result] = {}
    for case in xml.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('test_')[2]}: {case.get('name', '').partition('[')[0]}"
        about = name.replace("test_", "").replace("_", " ")
        result = counts.setdefault(about, Result(about, "the test of that name"))
        result.tried += 1
        result.expect(case.find("failure") is None and case.find("error") is None, case.get("name", ""))
    return list(counts.values())


SCENARIOS = {
    function.__name__: function for function in (kills, signals, full_disks, commands, sweeps, ranks, soak, short_suite)
}


def main() -> int:
    names = [word for word in sys.argv[1:] if not word.startswith("-")] or list(SCENARIOS)
    random.seed(0)
    torch.set_num_threads(1)
    results: list[Result] = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="opasd-faults-") as place:
            began = time.monotonic()
            made = SCENARIOS[name](Path(place))
            results += made
            for result in made:
                sys.stdout.write(f"{result.line()}\n")
            sys.stdout.write(f"{name}: {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    if not QUICK and set(names) == set(SCENARIOS):
        PAGE.write_text(page(result.line() for result in results), encoding="utf-8")
    return 1 if any(result.failures for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
