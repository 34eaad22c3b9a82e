"""Grading with algebra: math-verify in worker processes that are killed when they take too long.

    with Grader() as grader:
        verdict, answer = grader.grade(Job(r"… \\boxed{2\\sqrt{3}}", gold=r"\\sqrt{12}"))

This process decides equal texts, numbers and letters at once; the rest goes to a worker. No comparison takes longer
than `SECONDS`, whatever the answer says.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self

from opasd.choices import FinishReason
from opasd.grading.verdict import AnswerKind, Verdict, boxed_answer, quick_verdict

SECONDS = 1.5
"""Processor time that a comparison may take; on the clock it may take twice as much."""
_SLACK = 0.5
"""Seconds beyond that after which a worker, which keeps the time itself, is lost."""
_START_SECONDS = 120.0
_FAILED_STARTS = 2
"""Workers that may end before they are ready; after one more the grader gives up."""

Pair = tuple[str, str]
"""The known answer and the one to compare with it."""


class Job(NamedTuple):
    """A completion to grade."""

    text: str
    gold: str
    kind: AnswerKind = "expression"
    finish_reason: FinishReason = "stop"


class Graded(NamedTuple):
    """The verdict on a completion, and the answer that it gives."""

    verdict: Verdict
    answer: str | None


class Grader:
    """A few workers with one comparison each at a time; a pair is compared only once."""

    def __init__(self, workers: int | None = None, seconds: float = SECONDS) -> None:
        self.seconds = seconds
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
        self._workers += [_Worker() for _ in range(self._count - len(self._workers))]

    def close(self) -> None:
        """End the workers at once."""
        while self._workers:
            self._workers.pop().kill()

    def grade(self, job: Job) -> Graded:
        """Return the verdict on one completion."""
        return self.grade_all([job])[0]

    def grade_all(self, jobs: Iterable[Job]) -> list[Graded]:
        """Return the verdicts in order; all workers share the work."""
        answered = [(job, boxed_answer(job.text)) for job in jobs]
        equal = [quick_verdict(answer, job.gold, job.kind) if answer else False for job, answer in answered]
        hard = {index: (job.gold, answer or "") for index, (job, answer) in enumerate(answered) if equal[index] is None}
        self._compare(dict.fromkeys(hard.values()))
        for index, pair in hard.items():
            equal[index] = self._known[pair]
        return [_graded(job, answer, same) for (job, answer), same in zip(answered, equal, strict=True)]

    def _compare(self, pairs: Iterable[Pair]) -> None:
        todo = [pair for pair in pairs if pair not in self._known][::-1]
        if todo:
            self.start()
        busy: dict[_Worker, Pair] = {}
        repeated: set[Pair] = set()
        while todo or busy:
            for worker in self._workers:
                if todo and worker not in busy:
                    busy[worker] = todo.pop()
                    worker.ask(busy[worker], self.seconds)
            seconds_left = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            replying = select.select(list(busy), [], [], seconds_left)[0]
            for worker in list(busy):
                reply = worker.reply() if worker in replying else None
                if reply is not None:
                    self._known[busy.pop(worker)] = reply["equal"]
                elif worker.lost():
                    pair = busy.pop(worker)
                    if not worker.ready or (worker.ended and pair not in repeated):
                        repeated.add(pair)  # something outside killed the worker: a pair can only kill its child
                        todo.append(pair)
                    else:
                        self._known[pair] = None
                    self._replace(worker)

    def _replace(self, worker: "_Worker") -> None:
        worker.kill()
        self._failed_starts += not worker.ready
        if self._failed_starts > _FAILED_STARTS:
            raise RuntimeError("the grading process does not start; run python -m opasd.grading.worker to see why")
        self._workers[self._workers.index(worker)] = _Worker()


def _graded(job: Job, answer: str | None, equal: bool | None) -> Graded:
    if not answer:
        return Graded("truncated" if job.finish_reason == "length" else "no_answer", None)
    return Graded("grader_failed" if equal is None else "correct" if equal else "wrong", answer)


class _Worker:
    """A process that compares. It reports when it is ready; the deadline of its first pair counts from then."""

    def __init__(self) -> None:
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "opasd.grading.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,  # Ctrl-C is for the parent to handle
        )
        self.ready = False
        self.deadline = time.monotonic() + _START_SECONDS
        self._allowed = 0.0
        self._received = b""
        self.ended = False

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, pair: Pair, seconds: float) -> None:
        """Send the process a pair to compare."""
        self._allowed = 2 * seconds + _SLACK
        if self.ready:
            self.deadline = time.monotonic() + self._allowed
        line = json.dumps({"gold": pair[0], "answer": pair[1], "seconds": seconds})
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            self.ended = True

    def reply(self) -> dict[str, bool | None] | None:
        """Return the process's reply, None as long as it is not whole."""
        received = os.read(self.fileno(), 4096)
        self.ended = self.ended or not received
        self._received += received
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            reply = json.loads(line)
            if "equal" in reply:
                return reply
            self.ready, self.deadline = True, time.monotonic() + self._allowed
        return None

    def lost(self) -> bool:
        """Return whether no reply will come."""
        return self.ended or time.monotonic() > self.deadline

    def kill(self) -> None:
        """End the process; its child, which compares, ends with it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
