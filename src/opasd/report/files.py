"""Read the JSON files of a run's folder; a note names each file that is missing, damaged or cut.

rows = list(json_rows(path / "metrics.jsonl", notes, "there are no curves"))
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from opasd.files import parse_row

MAX_NAMED = 3
"""How many damaged things a note names."""


def json_object(path: Path, notes: list[str], consequence: str) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty one and a note."""
    try:
        with _open(path) as file:
            value = json.loads(file.read().decode(errors="replace"))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: {consequence}")
        return {}
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({str(error)[:100]}): {consequence}")
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
                row = parse_row(line)
                if row is not None:
                    count += 1
                    yield row
                elif not line.endswith(b"\n"):
                    cut = True
                elif line.strip():
                    damaged.append(number)
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: {consequence}")
        return
    except (OSError, EOFError, zlib.error) as error:
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        notes.append(f"{path.name} cannot be read ({reason}): {'the rest is left out' if count else consequence}")
        return
    if cut:
        notes.append(f"{path.name}: the last line is cut and left out")
    if damaged:
        named = ", ".join(map(str, damaged[:MAX_NAMED])) + (", …" if len(damaged) > MAX_NAMED else "")
        notes.append(f"{path.name}: {left_out(len(damaged), 'damaged line', 'damaged lines')} (line {named})")
    if not count and not cut and not damaged:
        notes.append(f"{path.name} is empty: {consequence}")


def left_out(count: int, singular: str, plural: str) -> str:
    """Say how many things are left out."""
    return f"1 {singular} is left out" if count == 1 else f"{count} {plural} are left out"


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    """Open the file, or its gzipped form if the file is missing."""
    packed = path.with_name(f"{path.name}.gz")
    return gzip.open(packed) if packed.exists() and not path.exists() else path.open("rb")
