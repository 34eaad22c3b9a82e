"""`calls.jsonl`: what every call of an evaluation took and where it ran, written as it goes; a kill loses one group.

costs = Costs(path, gpus=1)       # a row with the environment
costs.follow(groups)              # a row for each group of samples, and one for what ends after them
costs.calls()                     # one row a call, earlier ones too
costs.total()                     # their sum
"""

import resource
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from opasd.files import JsonLines
from opasd.run.environment import environment

_SUMS = ("samples", "tokens", "seconds", "wall_seconds", "cpu_seconds", "gpu_seconds")


class Costs:
    """The costs of this call, behind those of earlier ones."""

    def __init__(self, path: Path, gpus: int | None) -> None:
        """`gpus` work while samples are drawn; None if that is not known, as with servers elsewhere."""
        self._rows, self._gpus = JsonLines(path), gpus
        self.call = 1 + max((row["call"] for row in self._rows if isinstance(row.get("call"), int)), default=0)
        self._wall, self._cpu = time.monotonic(), _cpu_seconds()
        self._started = False

    def start(self) -> None:
        """Write where this call runs; a call that draws nothing writes nothing."""
        self._started = True
        self._rows.append({"call": self.call, "environment": environment()})

    def add(self, samples: int, tokens: int, seconds: float) -> None:
        """Write what a group took: `seconds` for its tokens, and wall clock and processor since the last group."""
        if not self._started:
            self.start()
        wall, cpu = time.monotonic(), _cpu_seconds()
        gpu = None if self._gpus is None else self._gpus * seconds
        values = (samples, tokens, seconds, wall - self._wall, cpu - self._cpu, gpu)
        self._rows.append({"call": self.call, **dict(zip(_SUMS, values, strict=True))})
        self._wall, self._cpu = wall, cpu

    def follow(self, drawn: Iterable[tuple[int, int, float]]) -> Iterator[tuple[int, int, float]]:
        """Yield the groups and write what each took, then what was spent after the last, as by graders that end."""
        for group in drawn:
            self.add(*group)
            yield group
        if self._started:
            self.add(0, 0, 0.0)

    def calls(self) -> list[dict[str, Any]]:
        """Return for each call its environment and its sums."""
        calls: dict[int, dict[str, Any]] = {}
        for row in self._rows:
            if not isinstance(row.get("call"), int):
                continue
            call = calls.setdefault(row["call"], {"environment": None, **dict.fromkeys(_SUMS, 0)})
            if "environment" in row:
                call["environment"] = row["environment"]
            for name in _SUMS:
                if name in row:
                    call[name] = None if None in (call[name], row[name]) else call[name] + row[name]
        return [calls[number] for number in sorted(calls)]

    def total(self) -> dict[str, Any]:
        """Return the sums over all calls; GPU seconds are None if one call does not know them."""
        calls = self.calls()
        sums = {name: [call[name] for call in calls] for name in _SUMS}
        return {"calls": len(calls)} | {name: None if None in own else sum(own) for name, own in sums.items()}


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its children that have ended, such as graders."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
