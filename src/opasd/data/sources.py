"""Read rows from files, folders, the hub or memory, as a stream of (name, row number, row).

Row numbers count from 1: lines of a jsonl file, records of any other.
"""

import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, TextIO, cast

from opasd.config import ColumnConfig, DataConfig
from opasd.errors import DataError

MEMORY = "memory"
"""Source of rows that were given as Python objects."""
ANSWER_COLUMNS = ("answer", "Answer")
"""Columns that may hold the answer if the configuration names none."""
CHUNK = 1 << 16
"""Characters of a json file that are read at a time."""
_LONGEST_LONE_ROW = 1 << 23
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_HUB_SHARD = re.compile(r"^data/(\w[\w.]*)-\d{5}-of-\d{5}[^/]*$")
_ARRAY_MARK = re.compile(r"\s*(\[\s*\]|[\[,\]]|)\s*")
_NOT_DATA = {"config.json", "dataset_info.json", "dataset_infos.json"}
_HUB_SPLIT_WORDS = {
    "train": {"train", "training"},
    "validation": {"validation", "valid", "dev", "val"},
    "test": {"test", "testing", "eval", "evaluation"},
}

Source = str | os.PathLike[str] | Iterable[Any]
"""A path, a hub data set's name, or rows in memory (mappings, `Problem`s, a `datasets.Dataset`)."""
Rows = Iterator[tuple[str, int, object]]
Numbered = Iterator[tuple[int, object]]


@dataclass
class Origin:
    """The source that rows came from."""

    source: str = ""
    revision: str | None = None
    """The commit of a hub data set."""


class RowError(Exception):
    """A row that cannot be used: raised by a check, or yielded by a reader in place of a row that it cannot decode."""

    def __init__(self, column: str | None, found: str) -> None:
        super().__init__(column, found)
        self.column, self.found = column, found


def printable(text: object, limit: int = 200) -> str:
    """Return foreign text in a short form that any terminal can print."""
    return str(text)[:limit].encode("utf-8", "backslashreplace").decode()


def listing(names: Iterable[object]) -> str:
    """Return names in quotes, for an error message."""
    return printable(", ".join(f'"{name}"' for name in names) or "none", 500)


def read_rows(source: Source, config: DataConfig, origin: Origin) -> Rows:
    """Yield the rows of `source`, and write into `origin` where they come from."""
    if not isinstance(source, str | os.PathLike):
        origin.source = MEMORY
        rows = _pick_split(source, config.split, MEMORY) if isinstance(source, Mapping) else source
        yield from ((MEMORY, number, row) for number, row in enumerate(rows, 1))
        return
    origin.source = os.fspath(source)
    path = Path(os.path.expanduser(source))
    if origin.source and os.path.isdir(path):
        yield from _folder_rows(path / (config.subset or ""), config)
    elif origin.source and os.path.exists(path):
        yield from _file_rows(path, path.name, config.columns)
    elif _HUB_NAME.fullmatch(origin.source) and _reader(path) is None:
        yield from hub_rows(origin.source, config, origin)
    elif origin.source == MEMORY:
        raise DataError(
            "data.source is memory: the run was made in Python and its problems are in no file; continue it there, or "
            "set data.source to a file with the same problems"
        )
    else:
        raise DataError(
            f'data.source "{printable(source)}" is neither a file or folder here nor the name of a hub data set; '
            "give an existing path or `organisation/name`"
        )


def _pick_split(splits: Mapping[Any, Any], split: str, name: object) -> Any:
    if split not in splits:
        raise DataError(f'{name}: no split "{split}"; there is {listing(splits)}; set data.split to one of these')
    return splits[split]


def hub_rows(name: str, config: DataConfig, origin: Origin) -> Rows:
    advice = (
        "no such path is here either. Check data.source, subset, split and revision; a gated or private one needs "
        f"`hf auth login`; without network, fetch it elsewhere (hf download {name} --repo-type dataset "
        "--local-dir FOLDER) and set data.source to the folder"
    )
    with _clear_errors(f"{name} on the Hugging Face hub", advice):
        from huggingface_hub import HfApi

        origin.revision = HfApi().dataset_info(name, revision=config.revision, timeout=30).sha
        yield from streamed_rows(name, config, origin.revision)


def streamed_rows(name: str, config: DataConfig, revision: str | None) -> Rows:
    """Yield the rows of anything that `datasets.load_dataset` can stream."""
    from datasets import load_dataset

    dataset = load_dataset(name, config.subset, split=config.split, revision=revision, streaming=True)
    yield from _dataset_rows(dataset, name, config.columns)


def _saved_rows(folder: Path, config: DataConfig) -> Rows:
    """Yield the rows of a folder that `datasets` wrote with `save_to_disk`."""
    with _clear_errors(folder, "write it again with save_to_disk"):
        from datasets import Dataset, load_from_disk

        saved = load_from_disk(str(folder))
        if isinstance(saved, Dataset):
            saved = {str(saved.split or config.split).partition("[")[0]: saved}
        yield from _dataset_rows(_pick_split(saved, config.split, folder), folder.name, config.columns)


def _dataset_rows(dataset: Any, name: str, columns: ColumnConfig) -> Rows:
    if needed := _needed_columns(dataset.column_names or [], columns):
        dataset = dataset.select_columns(needed)
    yield from ((name, number, row) for number, row in enumerate(dataset, 1))


@contextmanager
def _clear_errors(name: object, advice: str) -> Iterator[None]:
    """Turn any error of a library or the network into one DataError with advice."""
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        raise DataError(f"{name} cannot be loaded ({printable(reason)}); {advice}") from error


def _folder_rows(folder: Path, config: DataConfig) -> Rows:
    if (folder / "dataset_dict.json").exists() or (folder / "state.json").exists():
        yield from _saved_rows(folder, config)
        return
    files = files_by_split(folder)
    if not files:
        raise DataError(f"{folder}: no data file in this folder; put a {', '.join(_READERS)} file there")
    for file in _pick_split(files, config.split, folder):
        yield from _file_rows(file, file.relative_to(folder).as_posix(), config.columns)


def files_by_split(folder: Path) -> dict[str, list[Path]]:
    """Assign a folder's data files to splits as the hub does: by shard name, else by directory, else by file name."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and _reader(path))
    visible = [path for path in paths if path.name not in _NOT_DATA and not any(p.startswith(".") for p in path.parts)]
    rules: list[Callable[[PurePath], Iterable[str]]] = [
        lambda path: _HUB_SHARD.findall(path.as_posix()),
        lambda path: _split_words(path.parent.parts),
        lambda path: _split_words([path.name]),
        lambda path: ["train"],
    ]
    for rule in rules:
        files: dict[str, list[Path]] = {}
        for path in visible:
            for split in rule(path):
                files.setdefault(split, []).append(folder / path)
        if files:
            return files
    return {}


def _split_words(parts: Iterable[str]) -> list[str]:
    words = {word for part in parts for word in re.split(r"[-._ 0-9]+", part)}
    return [split for split, names in _HUB_SPLIT_WORDS.items() if words & names]


def _file_rows(path: Path, name: str, columns: ColumnConfig) -> Rows:
    reader = _reader(path)
    if reader is None:
        raise DataError(f"{name}: unknown kind of file; give a {', '.join(_READERS)} file")
    number = 0
    try:
        for number, row in reader(path, columns):
            yield name, number, row
    except (OSError, EOFError, ValueError, NotImplementedError, RecursionError, zlib.error, csv.Error) as error:
        # No row after the damage can be trusted, so `on_bad_row: skip` does not apply.
        raise DataError(
            f"{name}, row {number + 1}: cannot be read ({printable(error)}); "
            "the file is cut off, damaged or not what its name says: write or fetch it again"
        ) from error


def _open_text(path: Path, newline: str) -> TextIO:
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    return cast("TextIO", opener(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline=newline))


def _read_jsonl(path: Path, _: ColumnConfig) -> Numbered:
    with _open_text(path, "\n") as file:
        for number, line in enumerate(file, 1):
            if line.isspace():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                row = RowError(None, f"is not valid JSON in UTF-8 ({error})")
            yield number, row


def _read_json(path: Path, _: ColumnConfig) -> Numbered:
    """Yield the items of an array, or the lines of a file that is JSON lines in truth, as often on the hub.

    A file may also be one object over several lines: MATH was published with one file for each row.
    """
    with _open_text(path, "\n") as file:
        start = file.read(CHUNK)
        if not start.lstrip().startswith("{"):
            yield from _read_array(file, start)
            return
        try:
            yield 1, json.loads(start + file.read(_LONGEST_LONE_ROW))
            return
        except (ValueError, RecursionError):
            pass
    yield from _read_jsonl(path, _)


def _read_array(file: TextIO, text: str) -> Numbered:
    """Decode the items one by one; the buffer `text` holds little more than the current one."""
    decode = json.JSONDecoder().raw_decode
    at = number = 0
    while True:
        mark = cast("re.Match[str]", _ARRAY_MARK.match(text, at))
        if mark[1].endswith("]") and (mark[1] == "]") == (number > 0):
            break
        try:
            if mark[1] != ("," if number else "["):
                expected = ", or ]" if number else "an array or one object a line"
                raise json.JSONDecodeError(f"Expecting {expected}", text, mark.end())
            item, end = decode(text, mark.end())
            if end == len(text) and not isinstance(item, dict):  # a number may continue in the next chunk
                raise json.JSONDecodeError("The array does not end", text, end)
        except json.JSONDecodeError as error:
            # An item that the buffer cuts off fails near its end, or in an open string.
            cut_off = error.pos > len(text) - 16 or error.msg.startswith("Unterminated string")
            # Doubling the buffer keeps the retries linear in an item's length.
            more = file.read(max(CHUNK, len(text) - at)) if cut_off else ""
            if not more:
                raise ValueError(error.msg) from error
            text, at = text[at:] + more, 0
        else:
            number, at = number + 1, end
            yield number, item
    if (text[mark.end() :] + file.read(CHUNK)).strip():
        raise ValueError("there is text after the array")


def _read_csv(path: Path, _: ColumnConfig) -> Numbered:
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
                yield number, RowError(None, f"has {len(cells)} cells, the header {len(header)}")


def _read_parquet(path: Path, columns: ColumnConfig) -> Numbered:
    from pyarrow.parquet import ParquetFile

    number = 0
    with ParquetFile(path) as file:
        names = file.schema_arrow.names
        if len(set(names)) < len(names):
            raise ValueError("it names a column twice")
        for batch in file.iter_batches(256, columns=_needed_columns(names, columns)):
            for index in range(batch.num_rows):
                number += 1
                try:
                    row = {name: batch.column(name)[index].as_py() for name in batch.schema.names}
                except UnicodeDecodeError as error:
                    row = RowError(None, f"is not UTF-8 ({error})")
                yield number, row


def _needed_columns(names: Iterable[str], columns: ColumnConfig) -> list[str] | None:
    """Return the columns to decode; None, for all, if one is missing, so that the error can list the existing ones."""
    needed = {column for column in (columns.question, columns.solution, columns.answer, columns.pointers) if column}
    optional = set() if columns.answer else set(ANSWER_COLUMNS)
    return sorted(needed | optional & set(names)) if needed <= set(names) else None


_READERS = {".jsonl": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet, ".csv": _read_csv}


def _reader(path: PurePath) -> Callable[[Path, ColumnConfig], Numbered] | None:
    return _READERS.get(PurePath(path.name.lower().removesuffix(".gz")).suffix)
