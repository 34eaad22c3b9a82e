"""`samples.jsonl`: every sample as it comes, one line each, that survives a kill at any moment.

A line is written whole or cut at the file's end; opening the file again takes off what is cut. A sample is known by
target, benchmark, problem and number, so none is drawn twice.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from opasd.choices import FinishReason
from opasd.grading.verdict import VERDICTS, Verdict

_CUT = {"verdict", "answer"}


class Key(NamedTuple):
    """Which sample."""

    target: str
    benchmark: str
    problem: str
    sample: int


class Outcome(NamedTuple):
    """What a sample came to at one budget."""

    tokens: int
    truncated: bool
    verdict: Verdict
    answer: str | None


@dataclass(frozen=True)
class Sample:
    """One line."""

    target: str
    benchmark: str
    problem: str
    sample: int
    seed: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    verdict: Verdict
    answer: str | None
    cuts: dict[str, dict[str, Any]]
    """By budget that the sample is longer than: verdict and answer of the sample cut there."""

    @property
    def key(self) -> Key:
        return Key(self.target, self.benchmark, self.problem, self.sample)

    def outcome(self, budget: int) -> Outcome:
        """The sample with at most `budget` tokens."""
        if cut := self.cuts.get(str(budget)):
            return Outcome(budget, True, cut["verdict"], cut["answer"])
        return Outcome(len(self.ids), self.finish_reason == "length", self.verdict, self.answer)


class SampleFile:
    """The file, and which samples it has."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.keys: set[Key] = set()
        if path.exists():
            self._repair()

    def append(self, samples: list[Sample]) -> None:
        """Write the samples that are not there yet."""
        new = [sample for sample in samples if sample.key not in self.keys]
        lines = "".join(f"{json.dumps(asdict(sample), ensure_ascii=False)}\n" for sample in new)
        with self.path.open("ab") as file:
            file.write(lines.encode(errors="backslashreplace"))
        self.keys.update(sample.key for sample in new)

    def __iter__(self) -> Iterator[Sample]:
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            for line in file:
                if (sample := _parsed(line)) is not None:
                    yield sample

    def _repair(self) -> None:
        """Note what is there; leave out what is cut, damaged or there twice, with the file written anew at once."""
        bad = 0
        with self.path.open("rb") as file:
            for line in file:
                key = _key(line)
                bad += key is None or key in self.keys
                self.keys.update([key] if key else [])
        if not bad:
            return
        staged, kept = self.path.with_name(f".{self.path.name}.new"), set[Key]()
        with self.path.open("rb") as file, staged.open("wb") as copy:
            for line in file:
                key = _key(line)
                if key is not None and key not in kept:
                    kept.add(key)
                    copy.write(line)
            copy.flush()
            os.fsync(copy.fileno())
        os.replace(staged, self.path)


def _key(line: bytes) -> Key | None:
    sample = _parsed(line) if line.endswith(b"\n") else None
    return None if sample is None else sample.key


def _parsed(line: bytes) -> Sample | None:
    try:
        sample = Sample(**json.loads(line))
        names = (sample.target, sample.benchmark, sample.problem)
        whole = all(isinstance(name, str) for name in names) and isinstance(sample.sample, int)
        whole &= isinstance(sample.ids, list) and all(cut.keys() == _CUT for cut in sample.cuts.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return sample if whole and sample.verdict in VERDICTS else None
