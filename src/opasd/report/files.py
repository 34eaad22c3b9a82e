"""Read the JSON files of a run's folder; a note names each file that is missing, damaged or cut.

rows = list(json_rows(path / "metrics.jsonl", notes, "there are no curves"))
"""

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any

from opasd.files import parse_row

_UNREADABLE = (OSError, EOFError, zlib.error, ValueError, RecursionError)


def json_object(path: Path, notes: list[str], consequence: str) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one and a note."""
    try:
        with _open(path) as file:
            value = json.loads(file.read().decode(errors="replace"))
    except _UNREADABLE as error:
        notes.append(_why_unreadable(path, error, consequence))
        return {}
    if isinstance(value, dict):
        return value
    notes.append(f"{path.name} holds no JSON object: {consequence}")
    return {}


def json_rows(path: Path, notes: list[str], consequence: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a JSON lines file; note if it is missing or empty and which lines are damaged or cut."""
    damaged: list[int] = []
    cut, count = False, 0
    try:
        with _open(path) as file:
            for number, line in enumerate(file, 1):
                if (row := parse_row(line)) is not None:
                    count += 1
                    yield row
                elif not line.endswith(b"\n"):
                    cut = True
                elif line.strip():
                    damaged.append(number)
    except _UNREADABLE as error:
        notes.append(_why_unreadable(path, error, "the rest is left out" if count else consequence))
        return
    if cut:
        notes.append(f"{path.name}: the last line is cut and left out")
    if damaged:
        lines = left_out(len(damaged), "damaged line", "damaged lines")
        notes.append(f"{path.name}: {lines} (line {first_few([*map(str, damaged)])})")
    if not count and not cut and not damaged:
        notes.append(f"{path.name} is empty: {consequence}")


def left_out(count: int, singular: str, plural: str) -> str:
    """Say how many things are left out."""
    return f"1 {singular} is left out" if count == 1 else f"{count} {plural} are left out"


def first_few(names: Sequence[str]) -> str:
    """Return the first three names, and … if there are more."""
    return ", ".join([*names[:3], *(["…"] if len(names) > 3 else [])])


def _why_unreadable(path: Path, error: BaseException, consequence: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path.name} is missing: {consequence}"
    reason = getattr(error, "strerror", None) or str(error)[:100]
    return f"{path.name} cannot be read ({reason}): {consequence}"


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open the file, or its gzipped form if the file is missing."""
    packed = path.with_name(f"{path.name}.gz")
    return gzip.open(packed) if packed.exists() and not path.exists() else path.open("rb")
