"""The problem sets of a run: checked problems from a source, from memory or made by code."""

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from opasd.choices import StopOrSkip, check_choice
from opasd.config import ColumnConfig, DataConfig
from opasd.data.made import TASKS, Split, make_problems, task_split
from opasd.data.problems import DataReport, Problem, ProblemSet, load_problems

Problems = Iterable[Problem] | Iterable[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class RunSet(ProblemSet):
    """Problems, and what to do with one that has no usable prompt."""

    on_bad_row: StopOrSkip = "stop"


def as_set(dataset: Problems, on_bad_row: StopOrSkip = "stop", *, solutions: bool) -> RunSet:
    """Return rows in memory as a checked set; each must have a solution if `solutions`.

    Rows are mapped with the default columns and deduplicated, unless they are a ProblemSet or problems with ids. A
    RunSet is returned unchanged.
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
    checked = load_problems(rows, config)
    report = checked.report
    if isinstance(dataset, ProblemSet):
        bad, faults = dataset.report.bad + report.bad, [*dataset.report.faults, *report.faults]
        report = replace(dataset.report, kept=report.kept, bad=bad, faults=faults)
    return RunSet(checked.problems, report, on_bad_row)


def load_set(config: DataConfig, purpose: Split) -> RunSet:
    """Return the problems of a data section; the tasks of this package have a split for each purpose."""
    if config.source not in TASKS:
        loaded = load_problems(config=config)
        return RunSet(loaded.problems, loaded.report, config.on_bad_row)
    made = make_problems(config.source, task_split(config, purpose), config.sample, config.seed)
    return RunSet(tuple(made), DataReport(config.source, None, len(made), len(made)), config.on_bad_row)


def digest(problems: Iterable[Problem]) -> str:
    """Return a hash of all questions, solutions, answers and pointers."""
    total = hashlib.sha256()
    for problem in problems:
        texts = [problem.question, problem.solution, problem.answer]
        total.update(json.dumps(texts if problem.pointers is None else [*texts, problem.pointers]).encode())
    return total.hexdigest()
