"""Rows ─► Problem(question, solution, answer), checked, filtered and sampled.

Everything streams: a source yields `(name, row number, row)`, each row is checked and becomes a `Problem`, and
filters, deduplication and the sample are generators on top. So a file larger than memory can be read, and an
error names the file and the row. Row numbers count from 1: the line of a jsonl file, the record of any other.

    problems = load_problems("math_train.jsonl", DataConfig(sample=1000))
    print(problems.report)
"""

import dataclasses
import difflib
import hashlib
import heapq
import math
import numbers
import random
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any, cast, overload

from opasd.config import ColumnConfig, DataConfig
from opasd.data.sources import ANSWER_COLUMNS, BadRow, Origin, Rows, Source, listing, rows_of, show
from opasd.errors import DataError

DEFAULT = DataConfig()
NAMED_FAULTS = 20
"""How many bad rows a report keeps by name; it counts them all."""

_UNREADABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a verified worked solution, or "" where it is only to be answered; `id` says where it is from."""

    question: str
    solution: str = ""
    answer: str | None = None
    id: str = ""


@dataclass(frozen=True, slots=True)
class RowFault:
    """A row that cannot be used: where it stands and what was found there."""

    source: str
    row: int
    column: str | None
    found: str

    def __str__(self) -> str:
        subject = "" if self.column is None else f'column "{show(self.column)}" '
        return f"{self.source}, row {self.row}: {subject}{self.found}"


@dataclass
class DataReport(Origin):
    """What became of the rows: rows = kept + bad + the sum of `left_out`, which counts by the setting that did it."""

    rows: int = 0
    kept: int = 0
    bad: int = 0
    faults: list[RowFault] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON types."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        revision = f" at revision {self.revision}" if self.revision else ""
        text = f"{self.source}{revision}: {self.kept} of {self.rows} rows used."
        if self.left_out:
            text += " Left out: " + ", ".join(f"{n} by {setting}" for setting, n in self.left_out.items()) + "."
        if self.bad:
            more = f"; and {self.bad - 5} more" if self.bad > 5 else ""
            text += f" Bad rows skipped: {self.bad} ({'; '.join(map(str, self.faults[:5]))}{more})."
        return text


@dataclass(frozen=True, slots=True)
class ProblemSet(Sequence[Problem]):
    """The problems in the order of the source, and the report on how they came to be these."""

    problems: tuple[Problem, ...] = field(repr=False)
    report: DataReport

    def __len__(self) -> int:
        return len(self.problems)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Problem, ...]: ...
    def __getitem__(self, index: int | slice) -> Problem | tuple[Problem, ...]:
        return self.problems[index]


def load_problems(source: Source | None = None, config: DataConfig = DEFAULT) -> ProblemSet:
    """The problems of `source` (unset: of `config.source`), checked, filtered and sampled as `config` says."""
    report = DataReport()
    return ProblemSet(tuple(iter_problems(source, config, report)), report)


def iter_problems(
    source: Source | None = None, config: DataConfig = DEFAULT, report: DataReport | None = None
) -> Iterator[Problem]:
    """`load_problems` as a stream that never holds the source, filling `report` on the way.

    Deduplication remembers 16 bytes a question; a sample holds its own problems and yields them after one whole pass.
    """
    report = DataReport() if report is None else report
    rows = islice(rows_of(config.source if source is None else source, config, report), *config.bounds)
    problems = _filtered(_checked(rows, config, report), config, report)
    for problem in _sampled(problems, config, report):
        report.kept += 1
        yield problem
    if not report.kept:
        part = "" if config.rows is None else f"data.rows {config.rows!r}, "
        raise DataError(f"no problem is left to use. {report} Check data.source, {part}data.columns and data's filters")


def _checked(rows: Rows, config: DataConfig, report: DataReport) -> Iterator[Problem]:
    for name, number, row in rows:
        report.rows += 1
        try:
            problem = _to_problem(row, f"{name}:{number}", config)
        except BadRow as bad:
            named = isinstance(row, Problem) and row.id
            fault = RowFault(f'problem "{show(named)}"' if named else name, number, bad.column, bad.found)
            if config.on_bad_row == "stop":
                # Where the first row already lacks a column, the mapping is wrong rather than the row.
                unmapped = report.rows == 1 and isinstance(row, Mapping) and bad.column not in row
                advice = _mapping_advice(str(bad.column), row) if unmapped else "fix the row"
                if unmapped and bad.column == config.columns.solution and "did you mean" not in advice:
                    advice += ", set data.columns.solution: null to show the teacher the {answer} alone,"
                raise DataError(f"{fault}; {advice} or set data.on_bad_row: skip") from None
            report.bad += 1
            if len(report.faults) < NAMED_FAULTS:
                report.faults.append(fault)
        else:
            yield problem


def _to_problem(row: object, default_id: str, config: DataConfig) -> Problem:
    if isinstance(row, BadRow):
        raise row
    columns, own_id = config.columns, ""
    if isinstance(row, Problem):
        shown = columns.solution is not None or str(row.solution or "").strip()
        columns = ColumnConfig(question="question", solution="solution" if shown else None, answer="answer")
        own_id, row = row.id, dataclasses.asdict(row)
    if not isinstance(row, Mapping):
        raise BadRow(None, f"is {_found(row)}, not an object with columns")
    question = _text(row, columns.question)
    solution = "" if columns.solution is None else _text(row, columns.solution)
    if len(solution) > config.solution_limit:
        excess = f"has {len(solution)} characters, more than data.solution_limit {config.solution_limit}"
        raise BadRow(columns.solution, excess)
    return Problem(question, solution, _answer(row, columns), own_id or default_id)


def _text(row: Mapping[str, Any], column: str) -> str:
    value = _cell(row, column)
    if not isinstance(value, str):
        raise BadRow(column, f"is {_found(value)}, not text")
    if not value or value.isspace():
        raise BadRow(column, "is empty")
    return _readable(value, column)


def _answer(row: Mapping[str, Any], columns: ColumnConfig) -> str | None:
    """The answer as text, None where it is null or blank; a number becomes what Python prints for it."""
    column = columns.answer or next((name for name in ANSWER_COLUMNS if name in row), None)
    value = None if column is None else _cell(row, column)
    if column is None or value is None:
        return None
    if isinstance(value, str):
        text = _readable(value, column)
        if columns.answer_pattern and (found := re.search(columns.answer_pattern, text)):
            text = found[1] or ""
        return text if text.strip() else None
    if not _is_number(value):
        raise BadRow(column, f"is {_found(value)}, not text or a number")
    try:
        return str(value)
    except ValueError:  # longer than Python writes out
        raise BadRow(column, "is a number of too many digits") from None


def _is_number(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, bool | numbers.Rational):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _cell(row: Mapping[str, Any], column: str) -> object:
    if column not in row:
        raise BadRow(column, f"is missing; the row has {listing(row)}")
    return row[column]


def _readable(text: str, column: str) -> str:
    """The text unchanged, if a tokenizer can encode it. Readers turn a byte that is not UTF-8 into a surrogate."""
    if match := _UNREADABLE.search(text):
        what = "NUL" if match[0] == "\0" else "half a surrogate pair, or a byte that is not UTF-8"
        raise BadRow(column, f"holds U+{ord(match[0]):04X} ({what}) at character {match.start() + 1}")
    return text


def _mapping_advice(column: str, row: object) -> str:
    names = map(str, cast("Mapping[str, Any]", row))
    close = difflib.get_close_matches(column, names, n=1)
    return f'did you mean "{show(close[0])}"? name it in data.columns' if close else "map it in data.columns"


def _found(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {reprlib.repr(value)}"


def _filtered(problems: Iterable[Problem], config: DataConfig, report: DataReport) -> Iterator[Problem]:
    max_question = config.max_question_chars or math.inf
    max_solution = config.max_solution_chars or math.inf
    seen: set[bytes] = set()
    for problem in problems:
        digest = hashlib.blake2b(" ".join(problem.question.split()).encode(), digest_size=16).digest()
        if len(problem.question) > max_question:
            reason = "max_question_chars"
        elif len(problem.solution) > max_solution:
            reason = "max_solution_chars"
        elif config.deduplicate and digest in seen:
            reason = "deduplicate"
        else:
            if config.deduplicate:
                seen.add(digest)
            yield problem
            continue
        report.left_out[reason] = report.left_out.get(reason, 0) + 1


def _sampled(problems: Iterable[Problem], config: DataConfig, report: DataReport) -> Iterable[Problem]:
    """The `sample` problems with the smallest random keys: uniform, one pass, and a larger sample contains a smaller.

    `Random.random` is the one draw whose sequence Python promises not to change.
    """
    if config.sample is None:
        return problems
    draw = random.Random(config.seed).random
    chosen = heapq.nsmallest(config.sample, ((draw(), place, problem) for place, problem in enumerate(problems)))
    if missed := report.rows - report.bad - sum(report.left_out.values()) - report.kept - len(chosen):
        report.left_out["sample"] = missed
    return [problem for _, _, problem in sorted(chosen, key=lambda item: item[1])]
