"""Append-only JSON lines: a run's metrics and samples, which survive a kill at any moment.

Every row has a `step`. A resumed run first rewinds its records to the step of its checkpoint.
"""

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


class Records:
    """One file of rows."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, *rows: dict[str, Any]) -> None:
        """Write rows at the end; a row is there whole or, if the machine stopped in between, cut at the file's end."""
        text = "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)
        with self.path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)

    def rewind(self, step: int) -> None:
        """Keep the rows up to and including `step`."""
        if self.path.exists():
            self.replace(row for row in self if row["step"] <= step)

    def replace(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write the file anew, at once."""
        staged = Records(self.path.with_name(f".{self.path.name}.new"))
        staged.path.unlink(missing_ok=True)
        staged.path.touch()
        staged.append(*rows)
        os.replace(staged.path, self.path)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The whole rows of the file; what is cut or damaged is passed over."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                except ValueError:
                    continue
                if isinstance(row, dict) and isinstance(row.get("step"), int):
                    yield row
