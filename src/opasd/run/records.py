"""A run's metrics and samples: JSON lines that each have a `step`."""

from collections.abc import Iterator
from typing import Any

from opasd.files import JsonLines


class Records(JsonLines):
    """One file of rows; rows without a step are skipped like damaged ones."""

    def rewind(self, step: int) -> None:
        """Keep the rows up to and including `step`: a resumed run repeats the later ones."""
        if self.path.exists():
            self.replace(row for row in self if row["step"] <= step)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the whole rows that have a step."""
        return (row for row in super().__iter__() if isinstance(row.get("step"), int))
