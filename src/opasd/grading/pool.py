"""Grading with algebra: math-verify in worker processes that are killed when they take too long.

    with Grader() as grader:
        verdict, answer = grader.grade(Job(r"… \\boxed{2\\sqrt{3}}", gold=r"\\sqrt{12}"))

This process decides equal texts, numbers and letters at once; the rest goes to a worker. No comparison takes more
processor time than `SECONDS`, whatever the answer says. One that fails is tried once more, alone and with twice the
time, before its failure stands; so no pair takes more than three times `SECONDS`. A busy machine changes no verdict.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from multiprocessing import Pipe
from pathlib import Path
from typing import NamedTuple, Self

from opasd.choices import FinishReason
from opasd.data.problems import Problem
from opasd.grading.reading import Reading, boxed_answer
from opasd.grading.verdict import AnswerKind, Verdict, quick_verdict

SECONDS = 1.3
"""Processor time that a comparison may take at first."""
_PATIENCE = 600.0
"""Seconds on the clock after which a worker, which keeps the time itself, is lost."""
_FAILED_STARTS = 2
"""Workers that may end before their first reply; after one more the grader gives up."""

Pair = tuple[str, str, float]
"""The known answer, the one to compare with it, and the tolerance."""


class Job(NamedTuple):
    """A completion to grade."""

    text: str
    gold: str
    kind: AnswerKind = "expression"
    finish_reason: FinishReason = "stop"
    problem: Problem | None = None
    """Needed by a grader from outside alone."""
    reading: Reading = Reading()
    tolerance: float = 0.0
    """How far a number may be from the known one, as a share of it."""


class Graded(NamedTuple):
    """The verdict on a completion, and the answer that it gives."""

    verdict: Verdict
    answer: str | None


class Grader:
    """A few workers with one comparison each at a time; a pair is compared only once."""

    def __init__(self, workers: int | None = None, seconds: float = SECONDS, function: str = "") -> None:
        """`function` is the `module:function` of a grader from outside (`grading.outside`)."""
        self.seconds = seconds
        self.function = function
        self._count = workers or max(1, min(4, os.cpu_count() or 1))
        self._workers: list[_Worker] = []
        self._known: dict[Pair, bool | None] = {}
        self._failed_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the workers, which need a second or two; without this call the first hard pair starts them."""
        self._workers += [_Worker(self.function) for _ in range(self._count - len(self._workers))]

    def close(self) -> None:
        """End the workers at once."""
        while self._workers:
            self._workers.pop().kill()

    def grade(self, job: Job) -> Graded:
        """Return the verdict on one completion."""
        return self.grade_all([job])[0]

    def grade_all(self, jobs: Iterable[Job]) -> list[Graded]:
        """Return the verdicts in order; all workers share the work."""
        if self.function:
            return self._grade_outside(list(jobs))
        answered = [(job, boxed_answer(job.text, job.reading)) for job in jobs]
        equal = [
            quick_verdict(answer, job.gold, job.kind, job.tolerance) if answer else False for job, answer in answered
        ]
        hard = {
            index: (job.gold, answer or "", job.tolerance)
            for index, (job, answer) in enumerate(answered)
            if equal[index] is None
        }
        self._compare(dict.fromkeys(hard.values()))
        for index, pair in hard.items():
            equal[index] = self._known[pair]
        return [_graded(job, answer, same) for (job, answer), same in zip(answered, equal, strict=True)]

    def _grade_outside(self, jobs: Sequence[Job]) -> list[Graded]:
        pairs = [(json.dumps(asdict(job.problem)) if job.problem else "null", job.text, 0.0) for job in jobs]
        self._compare(dict.fromkeys(pairs))
        verdicts: dict[bool | None, Verdict] = {None: "grader_failed", True: "correct", False: "wrong"}
        return [
            Graded(verdicts[self._known[pair]], boxed_answer(job.text, job.reading))
            for job, pair in zip(jobs, pairs, strict=True)
        ]

    def _compare(self, pairs: Iterable[Pair]) -> None:
        """Compare the pairs side by side, and those that fail once more, one at a time with twice the seconds."""
        todo = [pair for pair in pairs if pair not in self._known]
        if todo:
            self.start()
        self._compare_side_by_side(todo, self.seconds)
        for pair in todo:
            if self._known[pair] is None:
                self._compare_side_by_side([pair], 2 * self.seconds)

    def _compare_side_by_side(self, pairs: Sequence[Pair], seconds: float) -> None:
        todo = list(reversed(pairs))
        busy: dict[_Worker, Pair] = {}
        repeated: set[Pair] = set()
        while todo or busy:
            for worker in self._workers:
                if todo and worker not in busy:
                    busy[worker] = todo.pop()
                    worker.ask(busy[worker], seconds)
            seconds_left = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            for worker in select.select(list(busy), [], [], seconds_left)[0]:
                if worker.receive():
                    self._known[busy.pop(worker)] = worker.equal
            for worker in [worker for worker in busy if worker.lost()]:
                pair = busy.pop(worker)
                if not worker.replied or (worker.ended and pair not in repeated):
                    repeated.add(pair)  # something outside killed the worker: a pair can only kill its child
                    todo.append(pair)
                else:
                    self._known[pair] = None
                self._replace(worker)

    def _replace(self, worker: "_Worker") -> None:
        worker.kill()
        self._failed_starts += not worker.replied
        if self._failed_starts > _FAILED_STARTS:
            raise RuntimeError("the grading process does not start; import opasd.grading.worker in Python to see why")
        self._workers[self._workers.index(worker)] = _Worker(self.function)


def _graded(job: Job, answer: str | None, equal: bool | None) -> Graded:
    if not answer:
        return Graded("truncated" if job.finish_reason == "length" else "no_answer", None)
    return Graded("grader_failed" if equal is None else "correct" if equal else "wrong", answer)


class _Worker:
    """A process that compares. It may take longer for its first pair, since it has to start."""

    def __init__(self, function: str = "") -> None:
        self._connection, worker_end = Pipe()
        self.fileno = self._connection.fileno
        root = str(Path(__file__).parents[2])
        # A grader from outside may lie where only this process looks, such as the folder of a plugin.
        others = sys.path if function else [os.environ.get("PYTHONPATH")]
        path = os.pathsep.join(filter(None, (root, *others)))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "opasd.grading.worker", str(worker_end.fileno()), *filter(None, [function])],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[worker_end.fileno()],
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent to handle
        )
        worker_end.close()
        self.replied = self.ended = False
        self.equal: bool | None = None
        """The last verdict."""
        self.deadline = 0.0

    def ask(self, pair: Pair, seconds: float) -> None:
        """Send the process a pair to compare."""
        self.deadline = time.monotonic() + _PATIENCE
        try:
            self._connection.send((pair, seconds))
        except OSError:
            self.ended = True

    def receive(self) -> bool:
        """Read the process's verdict; return whether there was one."""
        try:
            self.equal = self._connection.recv()
        except (EOFError, OSError):
            self.ended = True
        self.replied |= not self.ended
        return not self.ended

    def lost(self) -> bool:
        """Return whether no reply will come."""
        return self.ended or time.monotonic() > self.deadline

    def kill(self) -> None:
        """End the process; its child, which compares, ends with it."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
