"""Files of a run's folder, whatever is in them: what is missing, damaged or cut becomes a note.

rows = list(json_rows(path / "metrics.jsonl", notes, "there are no curves"))
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

MAX_NAMED = 3
"""So many of what is odd are named in a note."""


def json_object(path: Path, notes: list[str], consequence: str) -> dict[str, Any]:
    """A JSON file with an object in it."""
    try:
        with _open(path) as file:
            found = json.loads(file.read().decode(errors="replace"))
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: {consequence}")
        return {}
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        notes.append(f"{path.name} cannot be read ({str(error)[:100]}): {consequence}")
        return {}
    if isinstance(found, dict):
        return found
    notes.append(f"{path.name} holds no JSON object: {consequence}")
    return {}


def json_rows(path: Path, notes: list[str], consequence: str) -> Iterator[dict[str, Any]]:
    """The rows of a JSON lines file; a note for what is missing, damaged or cut."""
    damaged: list[int] = []
    cut, count = False, 0
    try:
        with _open(path) as file:
            for place, line in enumerate(file, 1):
                row = _parsed(line)
                if row is not None:
                    count += 1
                    yield row
                elif not line.endswith(b"\n"):
                    cut = True
                elif line.strip():
                    damaged.append(place)
    except FileNotFoundError:
        notes.append(f"{path.name} is missing: {consequence}")
        return
    except (OSError, EOFError, zlib.error) as error:
        what = (isinstance(error, OSError) and error.strerror) or str(error)
        notes.append(f"{path.name} cannot be read ({what}): {consequence if not count else 'the rest is left out'}")
        return
    if cut:
        notes.append(f"{path.name}: the last line is cut and left out")
    if damaged:
        named = ", ".join(map(str, damaged[:MAX_NAMED])) + (", …" if len(damaged) > MAX_NAMED else "")
        notes.append(f"{path.name}: {left_out(len(damaged), 'damaged line', 'damaged lines')} (line {named})")
    if not count and not cut and not damaged:
        notes.append(f"{path.name} is empty: {consequence}")


def left_out(count: int, one: str, several: str) -> str:
    """So many of what the words name, and that they are not shown."""
    return f"1 {one} is left out" if count == 1 else f"{count} {several} are left out"


def _open(path: Path) -> gzip.GzipFile | BufferedReader:
    """The file, or where it is not there what `gzip` made of it."""
    packed = path.with_name(f"{path.name}.gz")
    return gzip.open(packed) if packed.exists() and not path.exists() else path.open("rb")


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
