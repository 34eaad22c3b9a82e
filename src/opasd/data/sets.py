"""The problem sets of a run: rows from a source, from memory or made by code, as checked problems."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opasd.choices import StopOrSkip, check_choice
from opasd.config import ColumnConfig, DataConfig
from opasd.data.made import TASKS, Split, make_problems, own_split
from opasd.data.problems import DataReport, Problem, ProblemSet, load_problems

Problems = Iterable[Problem] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RunSet(ProblemSet):
    """Problems, and what to do about one that no prompt can be made of."""

    on_bad_row: StopOrSkip = "stop"


def as_set(dataset: Problems, on_bad_row: StopOrSkip = "stop", *, solutions: bool) -> RunSet:
    """Rows checked and mapped with the defaults, `solutions` if needed; of sets and problems with an id, all that pass.

    A run's own set stays as it is.
    """
    if isinstance(dataset, RunSet):
        return dataset
    check_choice("on_bad_row", on_bad_row, StopOrSkip)
    rows = list(dataset)
    if not rows:
        return RunSet((), DataReport("memory"), on_bad_row)
    config = DataConfig(on_bad_row=on_bad_row, columns=ColumnConfig() if solutions else ColumnConfig(solution=None))
    if isinstance(dataset, ProblemSet) or all(isinstance(row, Problem) and row.id for row in rows):
        config = config.model_copy(update={"deduplicate": False, "solution_limit": sys.maxsize})
    found = load_problems(rows, config)
    report = found.report
    if isinstance(dataset, ProblemSet):
        bad, faults = dataset.report.bad + report.bad, [*dataset.report.faults, *report.faults]
        report = replace(dataset.report, kept=report.kept, bad=bad, faults=faults)
    return RunSet(found.problems, report, on_bad_row)


def problems(config: DataConfig, needed: Split) -> RunSet:
    """The problems of a data section; of an embedded task the split of its own for what they are needed for."""
    if config.source not in TASKS:
        found = load_problems(config=config)
        return RunSet(found.problems, found.report, config.on_bad_row)
    made = make_problems(config.source, own_split(config, needed), config.sample, config.seed)
    return RunSet(tuple(made), DataReport(config.source, None, len(made), len(made)), config.on_bad_row)


def digest(problems: Iterable[Problem]) -> str:
    """A fingerprint of what is asked, shown and wanted."""
    found = hashlib.sha256()
    for problem in problems:
        found.update(json.dumps([problem.question, problem.solution, problem.answer]).encode())
    return found.hexdigest()
