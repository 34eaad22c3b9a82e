"""Turn rows into problems (question, solution, answer): checked, filtered and sampled.

Everything streams: a source yields `(name, row number, row)`, each row is checked and becomes a `Problem`, and
filters, deduplication and the sample are generators on top. So a file may be larger than memory, and an error names
the file and the row.

    problems = load_problems("math_train.jsonl", DataConfig(sample=1000))
    print(problems.report)
"""

import dataclasses
import difflib
import hashlib
import heapq
import math
import numbers
import os
import random
import re
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import Any, overload

from opasd.config import ColumnConfig, DataConfig
from opasd.data.sources import ANSWER_COLUMNS, Origin, RowError, Rows, Source, listing, printable, read_rows
from opasd.errors import DataError

DEFAULT = DataConfig()
NAMED_FAULTS = 20
"""Number of bad rows that a report describes; it counts them all."""

_TRL = ("prompt", "privileged_context")
"""Columns of TRL's trainers: what the student sees, and what only the teacher sees."""
_UNREADABLE = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a verified worked solution, "" if there is none; `id` says where the problem comes from."""

    question: str
    solution: str = ""
    answer: str | None = None
    id: str = ""
    pointers: str | None = None
    """What points at the needed parts of the question without saying what they hold, such as "3, 17, 9"."""


@dataclass(frozen=True, slots=True)
class RowFault:
    """The place of a row that cannot be used, and what was found there."""

    source: str
    row: int
    column: str | None
    found: str

    def __str__(self) -> str:
        subject = "" if self.column is None else f'column "{printable(self.column)}" '
        return f"{self.source}, row {self.row}: {subject}{self.found}"


@dataclass
class DataReport(Origin):
    """Counts of rows: rows = kept + bad + the sum of `left_out`, which counts by the setting that left a row out."""

    rows: int = 0
    kept: int = 0
    bad: int = 0
    faults: list[RowFault] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)

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
    """Problems in the order of the source, and the report on the rows that they come from."""

    problems: tuple[Problem, ...] = field(repr=False)
    report: DataReport
    config: DataConfig = field(default=DEFAULT, repr=False, kw_only=True)
    """How the problems were loaded; its `source` is the report's."""

    def __len__(self) -> int:
        return len(self.problems)

    @overload
    def __getitem__(self, index: int) -> Problem: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Problem, ...]: ...
    def __getitem__(self, index: int | slice) -> Problem | tuple[Problem, ...]:
        return self.problems[index]


def load_problems(source: Source | None = None, config: DataConfig = DEFAULT) -> ProblemSet:
    """Return the problems of `source` (default: `config.source`), checked, filtered and sampled as `config` says."""
    report, given = DataReport(), config.source if source is None else source
    path = os.path.expanduser(given) if isinstance(given, str | os.PathLike) else ""
    if os.path.exists(path) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise DataError(f"{given} is no file but a pipe, a socket or a device; give a file")
    problems = tuple(iter_problems(source, config, report))
    return ProblemSet(problems, report, config=config.model_copy(update={"source": report.source}))


def iter_problems(
    source: Source | None = None, config: DataConfig = DEFAULT, report: DataReport | None = None
) -> Iterator[Problem]:
    """Yield the problems of `load_problems` without holding the source in memory, and fill `report` on the way.

    Deduplication stores 16 bytes per question. A sample stores its problems and yields them after one whole pass.
    """
    report = DataReport() if report is None else report
    rows = islice(read_rows(config.source if source is None else source, config, report), *config.bounds)
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
        except RowError as error:
            own_id = isinstance(row, Problem) and row.id
            fault = RowFault(f'problem "{printable(own_id)}"' if own_id else name, number, error.column, error.found)
            if config.on_bad_row == "stop":
                advice = "fix the row"
                if report.rows == 1 and isinstance(row, Mapping) and error.column not in row:
                    # The first row lacks the column, so the mapping is wrong rather than the row.
                    advice = _mapping_advice(str(error.column), row, config)
                raise DataError(f"{fault}; {advice} or set data.on_bad_row: skip") from None
            report.bad += 1
            if len(report.faults) < NAMED_FAULTS:
                report.faults.append(fault)
        else:
            yield problem


def _to_problem(row: object, default_id: str, config: DataConfig) -> Problem:
    if isinstance(row, RowError):
        raise row
    columns, own_id = config.columns, ""
    if isinstance(row, Problem):
        shown = columns.solution is not None or str(row.solution or "").strip()
        columns = ColumnConfig(
            question="question", solution="solution" if shown else None, answer="answer", pointers="pointers"
        )
        own_id, row = row.id, dataclasses.asdict(row)
    if not isinstance(row, Mapping):
        raise RowError(None, f"is {_describe(row)}, not an object with columns")
    if columns.question == DEFAULT.columns.question not in row and _TRL[0] in row:
        columns, row = _from_trl(columns, row)
    question = _text(row, columns.question)
    solution = "" if columns.solution is None else _text(row, columns.solution)
    pointers = None if columns.pointers is None else _pointers(row, columns.pointers)
    answer, names = _answer(row, columns), (columns.question, columns.solution, columns.answer or "answer")
    for name, text in zip((*names, columns.pointers), (question, solution, answer, pointers), strict=True):
        if len(text or "") > config.solution_limit:
            excess = f"has {len(text or '')} characters, more than data.solution_limit {config.solution_limit}"
            raise RowError(name, excess)
    return Problem(question, solution, answer, own_id or default_id, pointers)


def _from_trl(columns: ColumnConfig, row: Mapping[str, Any]) -> tuple[ColumnConfig, Mapping[str, Any]]:
    """Return the columns of a row of TRL's form, and the row with the text of each conversation of one message."""
    plain = dict(row)
    for name in _TRL:
        match row.get(name):
            case [{"role": "user" | "assistant", "content": str(text)}]:
                plain[name] = text
    names = {"question": _TRL[0]}
    if columns.solution == DEFAULT.columns.solution and (_TRL[1] in row or columns.solution not in row):
        names["solution"] = _TRL[1]
    return columns.model_copy(update=names), plain


def _text(row: Mapping[str, Any], column: str) -> str:
    value = _cell(row, column)
    if not isinstance(value, str):
        raise RowError(column, f"is {_describe(value)}, not text")
    if not value or value.isspace():
        raise RowError(column, "is empty")
    return _readable(value, column)


def _answer(row: Mapping[str, Any], columns: ColumnConfig) -> str | None:
    """Return the answer as text, None if it is null or blank; a number as Python prints it, a list of texts joined."""
    column = columns.answer or next((name for name in ANSWER_COLUMNS if name in row), None)
    return None if column is None else _as_text(row, column, columns.answer_pattern)


def _pointers(row: Mapping[str, Any], column: str) -> str | None:
    """Return the pointers as text; in a list of them, each may be a number."""
    value = _cell(row, column)
    if isinstance(value, list):
        value = [str(part) if isinstance(part, int) and not isinstance(part, bool) else part for part in value]
    return _as_text({column: value}, column)


def _as_text(row: Mapping[str, Any], column: str, pattern: str | None = None) -> str | None:
    """Return a cell as text, or what the pattern's first group finds in it; None if it is null or blank."""
    value = _cell(row, column)
    if value is None:
        return None
    if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
        value = ", ".join(value)
    if isinstance(value, str):
        text = _readable(value, column)
        if pattern and (match := re.search(pattern, text)):
            text = match[1] or ""
        return text if text.strip() else None
    if not _is_number(value):
        raise RowError(column, f"is {_describe(value)}, not text or a number")
    try:
        return str(value)
    except ValueError:  # Python refuses to print it
        raise RowError(column, "is a number of too many digits") from None


def _is_number(value: object) -> bool:
    if isinstance(value, Decimal):
        return value.is_finite()
    if isinstance(value, bool | numbers.Rational):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real) and math.isfinite(value)


def _cell(row: Mapping[str, Any], column: str) -> object:
    if column not in row:
        raise RowError(column, f"is missing; the row has {listing(row)}")
    return row[column]


def _readable(text: str, column: str) -> str:
    """Return the text if a tokenizer can encode it. Readers turn a byte that is not UTF-8 into a surrogate."""
    if match := _UNREADABLE.search(text):
        name = "NUL" if match[0] == "\0" else "half a surrogate pair, or a byte that is not UTF-8"
        raise RowError(column, f"holds U+{ord(match[0]):04X} ({name}) at character {match.start() + 1}")
    return text


def _mapping_advice(column: str, row: Mapping[str, Any], config: DataConfig) -> str:
    if close := difflib.get_close_matches(column, map(str, row), n=1):
        return f'did you mean "{printable(close[0])}"? name it in data.columns'
    if column != config.columns.solution:
        return "map it in data.columns"
    return "map it in data.columns, set data.columns.solution: null to show the teacher the {answer} alone,"


def _describe(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {reprlib.repr(value)}"


def _filtered(problems: Iterable[Problem], config: DataConfig, report: DataReport) -> Iterator[Problem]:
    seen: set[bytes] = set()
    for problem in problems:
        digest = hashlib.blake2b(" ".join(problem.question.split()).encode(), digest_size=16).digest()
        if len(problem.question) > (config.max_question_chars or math.inf):
            setting = "max_question_chars"
        elif len(problem.solution) > (config.max_solution_chars or math.inf):
            setting = "max_solution_chars"
        elif config.deduplicate and digest in seen:
            setting = "deduplicate"
        else:
            if config.deduplicate:
                seen.add(digest)
            yield problem
            continue
        report.left_out[setting] = report.left_out.get(setting, 0) + 1


def _sampled(problems: Iterable[Problem], config: DataConfig, report: DataReport) -> Iterable[Problem]:
    """Return the `sample` problems with the smallest random keys: uniform, and a larger sample contains a smaller one.

    Python promises not to change the sequence of `Random.random`, and of no other draw.
    """
    if config.sample is None:
        return problems
    draw = random.Random(config.seed).random
    chosen = heapq.nsmallest(config.sample, ((draw(), index, problem) for index, problem in enumerate(problems)))
    if missed := report.rows - report.bad - sum(report.left_out.values()) - report.kept - len(chosen):
        report.left_out["sample"] = missed
    return [problem for _, _, problem in sorted(chosen, key=lambda item: item[1])]
