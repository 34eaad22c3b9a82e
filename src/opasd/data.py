"""Rows ─► Problem(question, solution, answer): the only place that knows where problems come from.

Everything streams: a source yields `(name, row number, row)`, each row is checked and becomes a `Problem`, and
filters, deduplication and the sample are generators on top. So a file larger than memory can be read, and an
error names the file and the row. Row numbers count from 1: the line of a jsonl file, the record of any other.

    problems = load_problems("math_train.jsonl", DataConfig(sample=1000))
    print(problems.report)
"""

import csv
import dataclasses
import difflib
import gzip
import hashlib
import heapq
import json
import math
import numbers
import os
import random
import re
import reprlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, TextIO, cast, overload

from opasd.config import ColumnConfig, DataConfig
from opasd.errors import DataError

DEFAULT = DataConfig()
NAMED_FAULTS = 20
"""How many bad rows a report keeps by name; it counts them all."""

_ANSWER_COLUMNS = ("answer", "Answer")
_CHUNK = 1 << 16
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_HUB_SHARD = re.compile(r"^data/(\w[\w.]*)-\d{5}-of-\d{5}[^/]*$")
_HUB_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "dev", "val"},
    "test": {"test", "testing", "eval", "evaluation"},
}
_NOT_DATA = {"config.json", "dataset_info.json", "dataset_infos.json"}
_UNREADABLE = re.compile("[\0\ud800-\udfff]")
_ARRAY_MARK = re.compile(r"\s*(\[\s*\]|[\[,\]]|)\s*")


@dataclass(frozen=True, slots=True)
class Problem:
    """A question with a verified worked solution; `id` says where it came from."""

    question: str
    solution: str
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
        subject = "" if self.column is None else f'column "{_show(self.column)}" '
        return f"{self.source}, row {self.row}: {subject}{self.found}"


@dataclass(slots=True)
class DataReport:
    """What became of the rows: rows = kept + bad + the sum of `left_out`, which counts by the setting that did it."""

    source: str = ""
    revision: str | None = None
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


Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]] | Iterable[Problem]
"""A path, a hub data set's name, or rows in memory (mappings, `Problem`s, a `datasets.Dataset`)."""
_Rows = Iterator[tuple[str, int, object]]
_Numbered = Iterator[tuple[int, object]]


class _BadRow(Exception):
    """Raised by a check, or yielded by a reader in place of a row it cannot decode."""

    def __init__(self, column: str | None, found: str) -> None:
        super().__init__(column, found)
        self.column, self.found = column, found


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
    rows = _rows_of(config.source if source is None else source, config, report)
    problems = _filtered(_checked(rows, config, report), config, report)
    for problem in _sampled(problems, config, report):
        report.kept += 1
        yield problem
    if not report.kept:
        raise DataError(f"no problem is left to use. {report} Check data.source, data.columns and the filters of data")


def _checked(rows: _Rows, config: DataConfig, report: DataReport) -> Iterator[Problem]:
    for name, number, row in rows:
        report.rows += 1
        try:
            problem = _to_problem(row, f"{name}:{number}", config)
        except _BadRow as bad:
            fault = RowFault(name, number, bad.column, bad.found)
            if config.on_bad_row == "stop":
                # Where the first row already lacks a column, the mapping is wrong rather than the row.
                unmapped = report.rows == 1 and isinstance(row, Mapping) and bad.column not in row
                advice = _mapping_advice(str(bad.column), row) if unmapped else "fix the row"
                raise DataError(f"{fault}; {advice} or set data.on_bad_row: skip") from None
            report.bad += 1
            if len(report.faults) < NAMED_FAULTS:
                report.faults.append(fault)
        else:
            yield problem


def _to_problem(row: object, default_id: str, config: DataConfig) -> Problem:
    if isinstance(row, _BadRow):
        raise row
    columns, own_id = config.columns, ""
    if isinstance(row, Problem):
        columns, own_id = ColumnConfig(question="question", answer="answer"), row.id
        row = dataclasses.asdict(row)
    if not isinstance(row, Mapping):
        raise _BadRow(None, f"is {_found(row)}, not an object with columns")
    question, solution = _text(row, columns.question), _text(row, columns.solution)
    if len(solution) > config.solution_limit:
        excess = f"has {len(solution)} characters, more than data.solution_limit {config.solution_limit}"
        raise _BadRow(columns.solution, excess)
    return Problem(question, solution, _answer(row, columns), own_id or default_id)


def _text(row: Mapping[str, Any], column: str) -> str:
    value = _cell(row, column)
    if not isinstance(value, str):
        raise _BadRow(column, f"is {_found(value)}, not text")
    if not value or value.isspace():
        raise _BadRow(column, "is empty")
    return _readable(value, column)


def _answer(row: Mapping[str, Any], columns: ColumnConfig) -> str | None:
    """The answer as text, None where it is null or blank; a number becomes what Python prints for it."""
    column = columns.answer or next((name for name in _ANSWER_COLUMNS if name in row), None)
    value = None if column is None else _cell(row, column)
    if column is None or value is None:
        return None
    if isinstance(value, str):
        return _readable(value, column) if value.strip() else None
    if isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise _BadRow(column, f"is {_found(value)}, not text or a number")


def _cell(row: Mapping[str, Any], column: str) -> object:
    if column not in row:
        raise _BadRow(column, f"is missing; the row has {_listing(row)}")
    return row[column]


def _readable(text: str, column: str) -> str:
    """The text unchanged, if a tokenizer can encode it. Readers turn a byte that is not UTF-8 into a surrogate."""
    if match := _UNREADABLE.search(text):
        what = "NUL" if match[0] == "\0" else "half a surrogate pair, or a byte that is not UTF-8"
        raise _BadRow(column, f"holds U+{ord(match[0]):04X} ({what}) at character {match.start() + 1}")
    return text


def _mapping_advice(column: str, row: object) -> str:
    names = map(str, cast("Mapping[str, Any]", row))
    close = difflib.get_close_matches(column, names, n=1)
    return f'did you mean "{_show(close[0])}"? name it in data.columns' if close else "map it in data.columns"


def _found(value: object) -> str:
    return "null" if value is None else f"{type(value).__name__} {reprlib.repr(value)}"


def _show(text: object, limit: int = 200) -> str:
    """Text from outside, short and printable."""
    return str(text)[:limit].encode("utf-8", "backslashreplace").decode()


def _listing(names: Iterable[object]) -> str:
    return _show(", ".join(f'"{name}"' for name in names) or "none", 500)


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


def _rows_of(source: Source, config: DataConfig, report: DataReport) -> _Rows:
    if not isinstance(source, str | os.PathLike):
        report.source = "memory"
        rows = _pick(source, config.split, "memory") if isinstance(source, Mapping) else source
        yield from (("memory", number, row) for number, row in enumerate(rows, 1))
        return
    report.source = os.fspath(source)
    path = Path(os.path.expanduser(source))
    if report.source and os.path.isdir(path):
        yield from _folder_rows(path / (config.subset or ""), config)
    elif report.source and os.path.exists(path):
        yield from _file_rows(path, path.name, config.columns)
    elif _HUB_NAME.fullmatch(report.source) and _reader(path) is None:
        yield from _hub_rows(report.source, config, report)
    else:
        raise DataError(
            f'data.source "{_show(source)}" is neither a file or folder here nor the name of a hub data set; '
            "give an existing path or `organisation/name`"
        )


def _pick(splits: Mapping[Any, Any], split: str, name: object) -> Any:
    if split not in splits:
        raise DataError(f'{name}: no split "{split}"; there is {_listing(splits)}; set data.split to one of these')
    return splits[split]


def _hub_rows(name: str, config: DataConfig, report: DataReport) -> _Rows:
    advice = (
        "no such path is here either. Check data.source, subset, split and revision; a gated or private one needs "
        f"`hf auth login`; without network, fetch it elsewhere (hf download {name} --repo-type dataset "
        "--local-dir FOLDER) and set data.source to the folder"
    )
    with _told_clearly(f"{name} on the Hugging Face hub", advice):
        from huggingface_hub import HfApi

        report.revision = HfApi().dataset_info(name, revision=config.revision, timeout=30).sha
        yield from _streamed_rows(name, config, report.revision)


def _streamed_rows(name: str, config: DataConfig, revision: str | None) -> _Rows:
    """Rows of anything `datasets.load_dataset` can stream."""
    from datasets import IterableDataset, load_dataset

    loaded = load_dataset(name, config.subset, split=config.split, revision=revision, streaming=True)
    dataset = cast("IterableDataset", loaded)
    if wanted := _wanted(dataset.column_names or [], config.columns):
        dataset = dataset.select_columns(wanted)
    yield from ((name, number, row) for number, row in enumerate(dataset, 1))


def _saved_rows(folder: Path, config: DataConfig) -> _Rows:
    """Rows of what `datasets` wrote with `save_to_disk`."""
    with _told_clearly(folder, "write it again with save_to_disk"):
        from datasets import Dataset, load_from_disk

        saved = load_from_disk(str(folder))
        if isinstance(saved, Dataset):
            saved = {str(saved.split or config.split).partition("[")[0]: saved}
        dataset: Dataset = _pick(saved, config.split, folder)
        if wanted := _wanted(dataset.column_names, config.columns):
            dataset = dataset.select_columns(wanted)
        yield from ((folder.name, number, row) for number, row in enumerate(dataset, 1))


@contextmanager
def _told_clearly(name: object, advice: str) -> Iterator[None]:
    try:
        yield
    except DataError:
        raise
    except Exception as error:  # whatever the library and the network think of
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise DataError(f"{name} cannot be loaded ({_show(reason)}); {advice}") from error


def _folder_rows(folder: Path, config: DataConfig) -> _Rows:
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        yield from _saved_rows(folder, config)
        return
    files = _files_by_split(folder)
    if not files:
        raise DataError(f"{folder}: no data file in this folder; put a {', '.join(_READERS)} file there")
    for file in _pick(files, config.split, folder):
        yield from _file_rows(file, file.relative_to(folder).as_posix(), config.columns)


def _files_by_split(folder: Path) -> dict[str, list[Path]]:
    """The folder's data files as the hub assigns them: by shard name, else by directory, else by file name."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and _reader(path))
    visible = [path for path in paths if path.name not in _NOT_DATA and not any(p.startswith(".") for p in path.parts)]
    rules: list[Callable[[PurePath], Iterable[str]]] = [
        lambda path: _HUB_SHARD.findall(path.as_posix()),
        lambda path: _split_words(path.parent.parts),
        lambda path: _split_words([path.name]),
        lambda path: ["train"],
    ]
    for rule in rules:
        found: dict[str, list[Path]] = {}
        for path in visible:
            for split in rule(path):
                found.setdefault(split, []).append(folder / path)
        if found:
            return found
    return {}


def _split_words(parts: Iterable[str]) -> list[str]:
    words = {word for part in parts for word in re.split(r"[-._ 0-9]+", part)}
    return [split for split, names in _HUB_SPLIT_WORDS.items() if words & names]


def _file_rows(path: Path, name: str, columns: ColumnConfig) -> _Rows:
    reader = _reader(path)
    if reader is None:
        raise DataError(f"{name}: unknown kind of file; give a {', '.join(_READERS)} file")
    number = 0
    try:
        for number, row in reader(path, columns):
            yield name, number, row
    except (OSError, EOFError, ValueError, NotImplementedError, RecursionError, zlib.error, csv.Error) as error:
        # Nothing after a broken place in a container can be trusted, so `skip` does not apply.
        raise DataError(
            f"{name}, row {number + 1}: cannot be read ({_show(error)}); "
            "the file is cut off, damaged or not what its name says: write or fetch it again"
        ) from error


def _open_text(path: Path, newline: str) -> TextIO:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    return cast("TextIO", opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline))


def _read_jsonl(path: Path, _: ColumnConfig) -> _Numbered:
    with _open_text(path, "\n") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                row = _BadRow(None, f"is not valid JSON in UTF-8 ({error})")
            yield number, row


def _read_json(path: Path, _: ColumnConfig) -> _Numbered:
    """The items of an array, decoded one by one from a buffer that holds little more than the current one."""
    decode = json.JSONDecoder().raw_decode
    with _open_text(path, "\n") as file:
        text, at, number = file.read(_CHUNK), 0, 0
        while True:
            mark = cast("re.Match[str]", _ARRAY_MARK.match(text, at))
            if mark[1].endswith("]") and (mark[1] == "]") == (number > 0):
                break
            try:
                if mark[1] != ("," if number else "["):
                    expected = ", or ]" if number else "an array; one object a line is for .jsonl"
                    raise json.JSONDecodeError(f"Expecting {expected}", text, mark.end())
                item, end = decode(text, mark.end())
                if end == len(text) and not isinstance(item, dict):  # a number may go on in the next chunk
                    raise json.JSONDecodeError("The array does not end", text, end)
            except json.JSONDecodeError as error:
                # An item the buffer cuts off fails near its end, or in a string that does not close.
                cut_off = error.pos > len(text) - 16 or error.msg.startswith("Unterminated string")
                # Reading as much again as is pending keeps the retries linear in an item's length.
                more = file.read(max(_CHUNK, len(text) - at)) if cut_off else ""
                if not more:
                    raise ValueError(error.msg) from error
                text, at = text[at:] + more, 0
            else:
                number, at = number + 1, end
                yield number, item
        if (text[mark.end() :] + file.read(_CHUNK)).strip():
            raise ValueError("there is text after the array")


def _read_csv(path: Path, _: ColumnConfig) -> _Numbered:
    csv.field_size_limit(max(csv.field_size_limit(), 2**31 - 1))  # the default is shorter than many solutions
    with _open_text(path, "") as file:
        records = filter(None, csv.reader(file, strict=True))
        header = next(records, [])
        if len(set(header)) < len(header):
            raise ValueError("the header names a column twice")
        for number, cells in enumerate(records, 1):
            if len(cells) == len(header):
                yield number, dict(zip(header, cells, strict=True))
            else:
                yield number, _BadRow(None, f"has {len(cells)} cells, the header {len(header)}")


def _read_parquet(path: Path, columns: ColumnConfig) -> _Numbered:
    from pyarrow.parquet import ParquetFile

    number = 0
    with ParquetFile(path) as file:
        for batch in file.iter_batches(256, columns=_wanted(file.schema_arrow.names, columns)):
            for index in range(batch.num_rows):
                number += 1
                try:
                    row = {name: batch.column(name)[index].as_py() for name in batch.schema.names}
                except UnicodeDecodeError as error:
                    row = _BadRow(None, f"is not UTF-8 ({error})")
                yield number, row


def _wanted(names: Iterable[str], columns: ColumnConfig) -> list[str] | None:
    """The columns worth decoding; None, for all, if one is missing, so that the error can say which are there."""
    needed = {columns.question, columns.solution} | ({columns.answer} if columns.answer else set())
    optional = set() if columns.answer else set(_ANSWER_COLUMNS)
    return sorted(needed | optional & set(names)) if needed <= set(names) else None


_READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet, ".csv": _read_csv}


def _reader(path: PurePath) -> Callable[[Path, ColumnConfig], _Numbered] | None:
    return _READERS.get(PurePath(path.name.lower().removesuffix(".gz")).suffix)
