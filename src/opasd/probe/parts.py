"""A probe in several processes: each measures a part of the problems and writes its rows, and one joins them.

The rows are those of one process: an answer depends on its own seed, and a reading on its own answer, up to rounding.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from opasd.probe.look import Look
from opasd.probe.measure import GradedAnswer, Probe, Trajectory

ROWS = "rows.json"


def bounds(count: int, rank: int, world: int) -> slice:
    """Return which of `count` items a process has."""
    return slice(count * rank // world, count * (rank + 1) // world)


def write(folder: Path, measured: Probe, looks: Iterable[Look]) -> None:
    """Write what a process has measured."""
    student = [[asdict(row) for row in rows] for rows in measured.student]
    parts = {"student": student, "teacher": [asdict(row) for row in measured.teacher], "looks": [*map(asdict, looks)]}
    (folder / ROWS).write_text(json.dumps(parts), encoding="utf-8")


def join(folders: Iterable[Path]) -> tuple[Probe, list[Look]]:
    """Return what all processes have measured, in the order of the problems."""
    measured, looks = Probe([], []), list[Look]()
    for folder in folders:
        parts = json.loads((folder / ROWS).read_text(encoding="utf-8"))
        measured.student.extend([Trajectory(**row) for row in rows] for rows in parts["student"])
        measured.teacher.extend(GradedAnswer(**row) for row in parts["teacher"])
        looks += [Look(**row) for row in parts["looks"]]
    return measured, looks
