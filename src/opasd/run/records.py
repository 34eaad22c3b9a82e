"""Append-only JSON lines: a run's metrics and samples, which survive a kill at any moment.

Every row has a `step`. NaN and infinity, which JSON does not have, are written as null. A resumed run first rewinds its
records to the step of its checkpoint; one that has none sets them aside.
"""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO


class Records:
    """One file of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *rows: dict[str, Any]) -> None:
        """Write rows at the end; a row is there whole or, if the machine stopped in between, cut at the file's end."""
        text = b"".join(map(_line, rows))
        with self.path.open("ab+") as file:
            if _is_cut(file):
                text = b"\n" + text
            file.write(text)

    def rewind(self, step: int) -> None:
        """Keep the rows up to and including `step`."""
        if self.path.exists():
            self.replace(row for row in self if row["step"] <= step)

    def set_aside(self) -> None:
        """Give the file another name, `<name>.before-<number>`, and begin anew."""
        number = 1
        while (kept := self.path.with_name(f"{self.path.name}.before-{number}")).exists():
            number += 1
        if self.path.exists():
            self.path.rename(kept)

    def replace(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the file anew, at once."""
        staged = self.path.with_name(f".{self.path.name}.new")
        with staged.open("wb") as file:
            file.writelines(map(_line, rows))
            file.flush()
            os.fsync(file.fileno())
        os.replace(staged, self.path)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The whole rows of the file; what is cut or damaged is passed over."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                row = _parsed(line)
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield row
                if not line.endswith("\n"):
                    return  # still being written: what comes next is the rest of it


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _line(row: dict[str, Any]) -> bytes:
    # A lone surrogate has no UTF-8; its backslash form is the escape that JSON has for it.
    return f"{json.dumps(_finite(row), ensure_ascii=False, allow_nan=False)}\n".encode(errors="backslashreplace")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    return [_finite(part) for part in value] if isinstance(value, list | tuple) else value


def _is_cut(file: BinaryIO) -> bool:
    """Whether the last row has no end: it must not swallow the next one."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"
