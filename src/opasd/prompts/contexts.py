"""The two contexts of a problem as token ids, a compact list of them, and counts of the rows they come from."""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import overload

from opasd.choices import Role
from opasd.data.problems import Problem

_EXAMPLES = 5
"""Skipped rows that a report names for each reason."""


@dataclass(frozen=True)
class PromptPair:
    """The two contexts of one problem, before any rollout, and the token positions of their parts."""

    problem: Problem
    student_ids: tuple[int, ...]
    teacher_ids: tuple[int, ...]
    student_question: range
    """The question's tokens in the student's context; they equal `teacher_question`'s one by one."""
    teacher_question: range
    """The question's tokens in the teacher's context."""
    reference: range
    """The reference block's tokens in the teacher's context: markers, solution, transition."""
    neutralised: bool = False
    """Whether the problem or its solution imitated the chat template and was made plain text."""
    solution_tokens_cut: int = 0
    """How many of the solution's tokens did not fit."""
    student_template: tuple[range, ...] = ()
    """The chat template's own tokens in the student's context: not the message's, nor a configured system prompt's."""
    shown: range = range(0)
    """The tokens of the solution's (or answer's) own text within the reference block, without the words around it."""


class PromptPairs(Sequence[PromptPair]):
    """A list of pairs that stores a token id in four bytes: a data set has a hundred million of them."""

    def __init__(self, pairs: Iterable[PromptPair] = ()) -> None:
        self._packed: list[tuple[PromptPair, array[int], array[int]]] = []
        for pair in pairs:
            self.append(pair)

    def append(self, pair: PromptPair) -> None:
        """Add a pair."""
        without_ids = replace(pair, student_ids=(), teacher_ids=())
        self._packed.append((without_ids, array("i", pair.student_ids), array("i", pair.teacher_ids)))

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> PromptPair: ...
    @overload
    def __getitem__(self, index: slice) -> "PromptPairs": ...
    def __getitem__(self, index: int | slice) -> "PromptPair | PromptPairs":
        if isinstance(index, slice):
            return PromptPairs(self[position] for position in range(*index.indices(len(self))))
        pair, student, teacher = self._packed[index]
        return replace(pair, student_ids=tuple(student), teacher_ids=tuple(teacher))

    @property
    def longest(self) -> dict[Role, int]:
        """The tokens of each role's longest context."""
        return {
            "student": max(len(ids) for _, ids, _ in self._packed),
            "teacher": max(len(i) for *_, i in self._packed),
        }

    @property
    def problems(self) -> list[Problem]:
        """The problems alone."""
        return [pair.problem for pair, _, _ in self._packed]


@dataclass
class PromptReport:
    """Counts of the rows that were used, changed or skipped, for the metrics."""

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of skipped rows by reason."""
    skipped_ids: dict[str, list[str]] = field(default_factory=dict)
    """The first few skipped rows by reason."""
    solutions_cut: int = 0
    solution_tokens_cut: int = 0
    neutralised: int = 0

    def keep(self, pair: PromptPair) -> None:
        """Count a row that is used."""
        self.rows += 1
        self.solutions_cut += pair.solution_tokens_cut > 0
        self.solution_tokens_cut += pair.solution_tokens_cut
        self.neutralised += pair.neutralised

    def skip(self, problem: Problem, reason: str) -> None:
        """Count a row that is skipped."""
        self.rows += 1
        self.skipped[reason] += 1
        ids = self.skipped_ids.setdefault(reason, [])
        if len(ids) < _EXAMPLES:
            ids.append(problem.id)

    def to_dict(self) -> dict[str, int]:
        """Return all counts by name; a reason is listed only if it occurred."""
        return {
            "rows": self.rows,
            "used": self.rows - self.skipped.total(),
            "skipped": self.skipped.total(),
            **{f"skipped_{reason}": count for reason, count in sorted(self.skipped.items())},
            "solutions_cut": self.solutions_cut,
            "solution_tokens_cut": self.solution_tokens_cut,
            "neutralised": self.neutralised,
        }
