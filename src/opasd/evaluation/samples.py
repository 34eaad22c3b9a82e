"""`samples.jsonl`: one line for each sample, written as it is drawn; a kill at any moment cuts at most one line.

Opening the file again removes lines that are cut, damaged or repeated. A sample is known by its target, benchmark,
problem and number, so none is drawn twice.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from opasd.choices import FinishReason
from opasd.files import JsonLines
from opasd.grading.verdict import VERDICTS, Verdict

_CUT = {"verdict", "answer"}
"""What the verdict on a cut sample has at least."""
_LEFT_OUT = {"opened": "", "marks": (), "tokens": None, "asked": "", "source": ""}
"""Fields that a line leaves out if they say nothing."""


class SampleKey(NamedTuple):
    """Which sample."""

    target: str
    benchmark: str
    problem: str
    sample: int


class GradedSample(NamedTuple):
    """The length and the verdict of a sample at one budget."""

    tokens: int
    truncated: bool
    verdict: Verdict
    answer: str | None


@dataclass(frozen=True)
class Sample:
    """One line of the file."""

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
    """The verdict on the sample cut at a budget and the answer there, by each budget that the sample exceeds; `chars`
    is how much of the text is left."""
    opened: str = ""
    """The mark of reasoning that the prompt opened."""
    marks: Sequence[Sequence[str]] = ()
    """Marks of reasoning, opening and closing, that are not among the known ones."""
    tokens: int | None = None
    """How many tokens a server counted, where it gave no ids."""
    asked: str = ""
    """What the engine was asked: see `opasd.evaluation.reuse`."""
    source: str = ""
    """FOLDER#TARGET that it was taken over from, if it was not drawn here."""

    @property
    def key(self) -> SampleKey:
        return SampleKey(self.target, self.benchmark, self.problem, self.sample)

    def row(self) -> dict[str, Any]:
        """Return its line."""
        return {name: value for name, value in vars(self).items() if _LEFT_OUT.get(name, ...) != value}

    def at_budget(self, budget: int) -> GradedSample:
        """Return the sample with at most `budget` tokens."""
        if cut := self.cuts.get(str(budget)):
            return GradedSample(budget, True, cut["verdict"], cut["answer"])
        length = len(self.ids) if self.tokens is None else self.tokens
        return GradedSample(length, self.finish_reason == "length", self.verdict, self.answer)


class SampleFile:
    """The file, and the keys of its samples."""

    def __init__(self, path: Path) -> None:
        self.path, self._rows = path, JsonLines(path)
        self.keys = {sample.key for sample in self}
        if len(self.keys) < sum(1 for _ in self._lines()):
            self.replace(self)

    def append(self, samples: list[Sample]) -> None:
        """Write the samples that the file does not have yet."""
        new = [sample for sample in samples if sample.key not in self.keys]
        self._rows.append(*(sample.row() for sample in new))
        self.keys.update(sample.key for sample in new)

    def replace(self, samples: Iterable[Sample]) -> None:
        """Replace all samples at once."""
        self._rows.replace(sample.row() for sample in samples)

    def __iter__(self) -> Iterator[Sample]:
        """Yield every whole sample once."""
        seen: set[SampleKey] = set()
        for line in self._lines():
            sample = parse_line(line)
            if sample is not None and sample.key not in seen:
                seen.add(sample.key)
                yield sample

    def _lines(self) -> Iterator[bytes]:
        if self._rows.path.is_file():
            with self._rows.path.open("rb") as file:
                yield from file


def parse_line(line: bytes) -> Sample | None:
    """Return the sample in a line, or None if the line is cut, damaged or holds something else."""
    try:
        sample = Sample(**json.loads(line))
        texts = (sample.target, sample.benchmark, sample.problem, sample.text, sample.answer or "", sample.opened)
        whole = all(isinstance(text, str) for text in texts) and sample.finish_reason in get_args(FinishReason)
        whole &= all(isinstance(number, int) for number in (sample.sample, *sample.ids))
        whole &= isinstance(sample.ids, list) and all(cut.keys() >= _CUT for cut in sample.cuts.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
    return sample if whole and sample.verdict in VERDICTS and line.endswith(b"\n") else None
