"""Grading with algebra: math-verify in worker processes that are killed when they take too long.

    with Grader() as grader:
        verdict, found = grader.grade(Job(r"… \\boxed{2\\sqrt{3}}", gold=r"\\sqrt{12}"))

Equal texts, numbers and letters are decided at once, in this process; the rest goes to a worker. No comparison takes
longer than `SECONDS`, whatever it says.
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
"""Processor time a comparison may take; twice that on the clock."""
_SLACK = 0.5
"""A worker keeps the time itself; one that is later than this is lost."""
_START_SECONDS = 120.0
_STILLBORN = 2
"""Workers that may end before they have begun; one more, and it is no accident."""

Pair = tuple[str, str]


class Job(NamedTuple):
    """A completion to grade."""

    text: str
    gold: str
    kind: AnswerKind = "expression"
    finish_reason: FinishReason = "stop"


class Graded(NamedTuple):
    """What became of a completion, and the answer that was found in it."""

    verdict: Verdict
    answer: str | None


class Grader:
    """A few workers, one comparison each at a time; a pair is compared once."""

    def __init__(self, workers: int | None = None, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self._count = workers or max(1, min(4, os.cpu_count() or 1))
        self._workers: list[_Worker] = []
        self._known: dict[Pair, bool | None] = {}
        self._stillborn = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Begin to start the workers, which takes them a second or two; otherwise the first hard pair does."""
        self._workers += [_Worker() for _ in range(self._count - len(self._workers))]

    def close(self) -> None:
        """End the workers at once."""
        while self._workers:
            self._workers.pop().kill()

    def grade(self, job: Job) -> Graded:
        """The verdict on one completion."""
        return self.grade_all([job])[0]

    def grade_all(self, jobs: Iterable[Job]) -> list[Graded]:
        """The verdicts in order, with all workers at work."""
        jobs = list(jobs)
        found = [boxed_answer(job.text) for job in jobs]
        equal = [
            quick_verdict(mine, job.gold, job.kind) if mine else False for mine, job in zip(found, jobs, strict=True)
        ]
        hard = {index: (jobs[index].gold, found[index] or "") for index, verdict in enumerate(equal) if verdict is None}
        self._compare(dict.fromkeys(hard.values()))
        for index, pair in hard.items():
            equal[index] = self._known[pair]
        return [_graded(job, mine, same) for job, mine, same in zip(jobs, found, equal, strict=True)]

    def _compare(self, pairs: Iterable[Pair]) -> None:
        todo = [pair for pair in pairs if pair not in self._known][::-1]
        if todo:
            self.start()
        busy: dict[_Worker, Pair] = {}
        again: set[Pair] = set()
        while todo or busy:
            for worker in self._workers:
                if todo and worker not in busy:
                    busy[worker] = todo.pop()
                    worker.ask(busy[worker], self.seconds)
            left = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            ready = select.select(list(busy), [], [], left)[0]
            for worker in list(busy):
                answer = worker.answer() if worker in ready else None
                if answer is not None:
                    self._known[busy.pop(worker)] = answer["equal"]
                elif worker.lost():
                    pair = busy.pop(worker)
                    if not worker.began or (worker.ended and pair not in again):
                        again.add(pair)  # the process was killed from outside: a pair only ends its own
                        todo.append(pair)
                    else:
                        self._known[pair] = None
                    self._replace(worker)

    def _replace(self, worker: "_Worker") -> None:
        worker.kill()
        self._stillborn += not worker.began
        if self._stillborn > _STILLBORN:
            raise RuntimeError("the grading process does not start; run python -m opasd.grading.worker to see why")
        self._workers[self._workers.index(worker)] = _Worker()


def _graded(job: Job, found: str | None, equal: bool | None) -> Graded:
    if not found:
        return Graded("truncated" if job.finish_reason == "length" else "no_answer", None)
    return Graded("grader_failed" if equal is None else "correct" if equal else "wrong", found)


class _Worker:
    """A process that compares. It says when it is ready; its deadline counts from then."""

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
        self.began = False
        self.deadline = time.monotonic() + _START_SECONDS
        self._allowed = 0.0
        self._received = b""
        self.ended = False

    def fileno(self) -> int:
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def ask(self, pair: Pair, seconds: float) -> None:
        """Give it a pair to compare."""
        self._allowed = 2 * seconds + _SLACK
        if self.began:
            self.deadline = time.monotonic() + self._allowed
        line = json.dumps({"gold": pair[0], "found": pair[1], "seconds": seconds})
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(f"{line}\n".encode())
        except BrokenPipeError:
            self.ended = True

    def answer(self) -> dict[str, bool | None] | None:
        """Its answer, if that is there whole."""
        part = os.read(self.fileno(), 4096)
        self.ended = self.ended or not part
        self._received += part
        while b"\n" in self._received:
            line, _, self._received = self._received.partition(b"\n")
            answer = json.loads(line)
            if "equal" in answer:
                return answer
            self.began, self.deadline = True, time.monotonic() + self._allowed
        return None

    def lost(self) -> bool:
        """Whether no answer will come."""
        return self.ended or time.monotonic() > self.deadline

    def kill(self) -> None:
        """End the process; a comparison it waits for ends with it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
