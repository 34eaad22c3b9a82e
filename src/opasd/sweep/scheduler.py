"""Run the jobs of a sweep in processes of their own, some at a time, until all are done or a signal comes."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType

from opasd.files import parse_row
from opasd.progress import StatusLine, clock
from opasd.sweep.job import MISTAKE, STOPPED, Job, Stage
from opasd.sweep.logs import OTHER_PROCESS, last_words, tail
from opasd.sweep.machine import Machine

_DOING: dict[Stage, str] = {"train": "training", "evaluate": "evaluating"}
_DONE: dict[Stage, str] = {"train": "trained", "evaluate": "evaluated"}
_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1


@dataclass
class RunningStage:
    """A stage of a job in its process."""

    job: Job
    stage: Stage
    slot: int
    process: "subprocess.Popen[bytes]"
    log_start: int
    alone: bool
    """Whether nothing else may use its GPUs."""
    neighbours: int = 0
    """The most other stages that have shared a GPU with it at one time."""
    began: float = field(default_factory=time.monotonic)

    def progress(self) -> str:
        if self.stage == "evaluate":
            return f"evaluating {clock(time.monotonic() - self.began)}"
        row = parse_row(tail(self.job.path / "metrics.jsonl").rstrip().rpartition(b"\n")[2]) or {}
        return f"step {row.get('step', 0)}/{self.job.run.config.train.max_steps}"


class Scheduler:
    """Works through jobs; `failed` has the exit code and message of each that failed, by name."""

    def __init__(self, jobs: Sequence[Job], machine: Machine) -> None:
        self.waiting = list(jobs)
        self.machine = machine
        self.running: list[RunningStage] = []
        self.failed: dict[str, tuple[int, str]] = {}
        self.done = 0
        self.total = len(jobs)
        self.stopping = False
        self._reported_busy: set[str] = set()
        self._to_run_alone: set[str] = set()
        self._line = StatusLine(terminal_every=1, log_every=60)

    def run(self) -> None:
        """Work until everything is done, or until all processes have ended after a signal."""
        self._skip()
        under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        wanted = (signal.SIGTERM, signal.SIGINT, *(() if under_nohup else (signal.SIGHUP,)))
        previous = {number: signal.signal(number, self._stop) for number in wanted}
        try:
            while (self.waiting and not self.stopping) or self.running:
                self._start()
                for stage in [stage for stage in self.running if stage.process.poll() is not None]:
                    self._end(stage)
                if self._line.due():
                    self._line.show(self._status())
                time.sleep(_POLL_S)
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
        self._line.clear()

    def _stop(self, number: int, _frame: FrameType | None) -> None:
        """Let every run save and end after SIGTERM, SIGHUP and the first Ctrl-C; kill them after the second Ctrl-C."""
        kill = self.stopping and number == signal.SIGINT
        self.stopping = True
        for stage in self.running:
            if stage.process.poll() is None and kill:
                os.killpg(stage.process.pid, signal.SIGKILL)
            elif stage.process.poll() is None:
                stage.process.terminate()

    def _skip(self) -> None:
        """Leave out jobs that are done, or that failed by a mistake."""
        for job in list(self.waiting):
            if job.next_stage() is None:
                self.done += 1
                self._line.say(f"{job.run.name}: done before")
                self.waiting.remove(job)
            elif (message := job.mistake()) is not None:
                self.failed[job.run.name] = (MISTAKE, message)
                self._line.say(f"{job.run.name}: failed before and is not tried again without --retry: {message}")
                self.waiting.remove(job)

    def _start(self) -> None:
        for job in list(self.waiting):
            name = job.run.name
            alone = name in self._to_run_alone
            slot = self._free_slot(alone=alone)
            if self.stopping or slot is None:
                continue
            if not job.busy():
                self.waiting.remove(job)
                self._launch(job, slot, alone=alone)
            elif name not in self._reported_busy:
                self._reported_busy.add(name)
                self._line.say(f"{name}: another process works on it; waiting")

    def _free_slot(self, *, alone: bool) -> int | None:
        """Return a slot without a stage that must be alone on its GPUs; if `alone`, one without any stage on them."""
        for slot in sorted(set(range(self.machine.jobs)) - {stage.slot for stage in self.running}):
            sharing = (stage for stage in self.running if self.machine.shared(stage.slot, slot))
            if not any(alone or stage.alone for stage in sharing):
                return slot
        return None

    def _launch(self, job: Job, slot: int, *, alone: bool) -> None:
        """Start what is left to do first, if anything is."""
        stage = job.next_stage()
        if stage is None:
            self.done += 1
            return
        command = job.command(stage, resume=job.begun())
        job.log.parent.mkdir(parents=True, exist_ok=True)
        with job.log.open("ab") as log:
            start = log.tell()
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} $ opasd {' '.join(command)}\n".encode(errors="replace"))
            log.flush()
            process = subprocess.Popen(
                [sys.executable, "-m", "opasd.cli", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | self.machine.environment(slot),
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which passes it on once
                preexec_fn=_die_with_parent(),
            )
        self._line.say(f"{job.run.name}: {'resuming training' if '--resume' in command else _DOING[stage]}")
        self.running.append(RunningStage(job, stage, slot, process, start, alone))
        for running in self.running:
            users = sum(self.machine.shared(running.slot, other.slot) for other in self.running)
            running.neighbours = max(running.neighbours, users - 1)
        if self.stopping:  # the signal came while the process was being made
            process.terminate()

    def _end(self, ended: RunningStage) -> None:
        self.running.remove(ended)
        job, name, code = ended.job, ended.job.run.name, ended.process.returncode
        seconds = time.monotonic() - ended.began
        if code == 0 and (ended.stage == "evaluate" or job.trained()):
            job.record(ended.stage, 0, seconds, "")
            self._line.say(f"{name}: {_DONE[ended.stage]} in {clock(seconds)}")
            if self.stopping and job.next_stage():
                self.waiting.insert(0, job)
            else:
                self._launch(job, ended.slot, alone=ended.alone)
            return
        if self.stopping:
            self._line.say(f"{name}: stopped")
            self.waiting.insert(0, job)
            return
        message, out_of_memory = last_words(job.log, ended.log_start)
        if code != 0 and out_of_memory and not ended.alone and (ended.neighbours or OTHER_PROCESS.search(message)):
            self._try_again_alone(ended)
            return
        job.record(ended.stage, code, seconds, message)
        self.failed[name] = (code, message)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        self._line.say(f"{name}: failed ({how}): {message}\n  {job.log}")

    def _try_again_alone(self, ended: RunningStage) -> None:
        """Queue a job that was out of memory beside others; nothing is recorded, since it has not failed yet."""
        self._to_run_alone.add(ended.job.run.name)
        self.waiting.append(ended.job)
        how = "beside processes of others; tried again at the end"
        if ended.neighbours:
            others = f"{ended.neighbours} others" if ended.neighbours > 1 else "another run"
            how = f"beside {others}; tried again alone when they are done (fewer --jobs avoid this)"
        self._line.say(f"{ended.job.run.name}: out of GPU memory {how}")

    def _status(self) -> str:
        retried = sum(job.run.name in self._to_run_alone for job in self.waiting)
        words = [f"{self.done} of {self.total} done"]
        words += [f"{len(self.failed)} failed"] * bool(self.failed)
        words += [f"{retried} to be tried again alone"] * bool(retried)
        words += ["stopping"] * self.stopping
        return "  ".join([*words, *(f"{stage.job.run.name} {stage.progress()}" for stage in self.running)])


def _die_with_parent() -> Callable[[], None] | None:
    """Return a function that, on Linux, makes the runs of a killed sweep get SIGTERM, so that they save and end."""
    if not sys.platform.startswith("linux"):
        return None
    prctl, parent = ctypes.CDLL(None).prctl, os.getpid()

    def prepare() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(STOPPED)

    return prepare
