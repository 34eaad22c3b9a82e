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
    """The tokens of the reference's own text (solution, answer or pointers), without the words around it."""
    attention: "PromptPair | None" = None
    """The same student's context beside the teacher's with `prompts.attention_reference`, for the attention loss. None:
    this pair is for both losses."""

    @property
    def teacher_tokens(self) -> int:
        """The tokens of the teacher's longest context."""
        return max(len(self.teacher_ids), len(self.attention.teacher_ids) if self.attention else 0)


class PromptPairs(Sequence[PromptPair]):
    """A list of pairs that stores a token id in four bytes: a data set has a hundred million of them."""

    def __init__(self, pairs: Iterable[PromptPair] = ()) -> None:
        self._packed: list[tuple[PromptPair, array[int], array[int], array[int]]] = []
        for pair in pairs:
            self.append(pair)

    def append(self, pair: PromptPair) -> None:
        """Add a pair."""
        own, own_ids = pair.attention, array("i")
        if own is not None:
            own, own_ids = replace(own, student_ids=(), teacher_ids=()), array("i", own.teacher_ids)
        without_ids = replace(pair, student_ids=(), teacher_ids=(), attention=own)
        self._packed.append((without_ids, array("i", pair.student_ids), array("i", pair.teacher_ids), own_ids))

    def extend(self, pairs: "PromptPairs") -> None:
        """Add the pairs of another list."""
        self._packed += pairs._packed

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> PromptPair: ...
    @overload
    def __getitem__(self, index: slice) -> "PromptPairs": ...
    def __getitem__(self, index: int | slice) -> "PromptPair | PromptPairs":
        if isinstance(index, slice):
            return PromptPairs(self[position] for position in range(*index.indices(len(self))))
        pair, student, teacher, own_ids = self._packed[index]
        student_ids, own = tuple(student), pair.attention
        if own is not None:
            own = replace(own, student_ids=student_ids, teacher_ids=tuple(own_ids))
        return replace(pair, student_ids=student_ids, teacher_ids=tuple(teacher), attention=own)

    @property
    def longest(self) -> dict[Role, int]:
        """The tokens of each role's longest context."""
        return {
            "student": max(len(ids) for _, ids, *_ in self._packed),
            "teacher": max(len(ids) for *_, teacher, own in self._packed for ids in (teacher, own)),
        }

    @property
    def problems(self) -> list[Problem]:
        """The problems alone."""
        return [pair.problem for pair, *_ in self._packed]


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
        cut = pair.solution_tokens_cut + (pair.attention.solution_tokens_cut if pair.attention else 0)
        self.rows += 1
        self.solutions_cut += cut > 0
        self.solution_tokens_cut += cut
        self.neutralised += pair.neutralised

    def skip(self, problem: Problem, reason: str) -> None:
        """Count a row that is skipped."""
        self.rows += 1
        self.skipped[reason] += 1
        ids = self.skipped_ids.setdefault(reason, [])
        if len(ids) < _EXAMPLES:
            ids.append(problem.id)

    def add(self, later: "PromptReport") -> None:
        """Count the rows of a report on later rows too."""
        self.rows += later.rows
        self.skipped += later.skipped
        for reason, ids in later.skipped_ids.items():
            self.skipped_ids[reason] = [*self.skipped_ids.get(reason, []), *ids][:_EXAMPLES]
        self.solutions_cut += later.solutions_cut
        self.solution_tokens_cut += later.solution_tokens_cut
        self.neutralised += later.neutralised

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
