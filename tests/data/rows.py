"""Rows in files of every format, and the errors of reading them."""

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from opasd.config import DataConfig
from opasd.data.problems import Problem, load_problems
from opasd.errors import DataError

ROWS = [
    {"problem": "What is $1+1$?", "solution": "Add: \\boxed{2}.", "answer": "2"},
    {"problem": 'Löse\n\t$\\frac{x}{2} = "3"$, x ∈ ℝ', "solution": "x = 6,\r\nalso 𝟞", "answer": "007"},
    {"problem": "What is 2+2?", "solution": "4", "answer": None},
]
PROBLEMS = [Problem(row["problem"], row["solution"], row["answer"]) for row in ROWS]

Row = Mapping[str, Any]


def write_jsonl(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8", newline="")


def write_jsonl_gz(path: Path, rows: Sequence[Row]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def write_json(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8", newline="")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Sequence[Row], **options: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, **options)


WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    ".jsonl": write_jsonl,
    ".jsonl.gz": write_jsonl_gz,
    ".json": write_json,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
each_format = pytest.mark.parametrize("suffix", WRITERS)


def write(folder: Path, suffix: str, rows: Sequence[Row], stem: str = "math") -> Path:
    path = folder / (stem + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[suffix](path, rows)
    return path


def bare(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without their ids."""
    return [Problem(p.question, p.solution, p.answer) for p in problems]


def error_of(source: Any, config: DataConfig | None = None) -> str:
    with pytest.raises(DataError) as caught:
        load_problems(source, config or DataConfig())
    return str(caught.value)


def row(question: str = "q", solution: Any = "s", **more: Any) -> dict[str, Any]:
    return {"problem": question, "solution": solution, **more}


def numbered(count: int) -> list[Problem]:
    return [Problem(f"question {n}", "s", id=str(n)) for n in range(count)]


SKIP = DataConfig(on_bad_row="skip")
