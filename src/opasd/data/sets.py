"""The problem sets of a run: checked problems from a source, from memory or made by code."""

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from opasd.choices import StopOrSkip, check_choice
from opasd.config import ColumnConfig, DataConfig
from opasd.data.made import TASKS, Split, make_problems, task_split
from opasd.data.problems import DataReport, Problem, ProblemSet, load_problems
from opasd.data.sources import listing
from opasd.errors import ConfigError, DataError

Problems = Iterable[Problem] | Iterable[Mapping[str, Any]] | str | os.PathLike[str]
"""Rows in memory (mappings, `Problem`s, a `datasets.Dataset`), or a source by name: file, folder, hub name, task."""
Columns = ColumnConfig | Mapping[str, str | None]
"""Which column holds the question, the solution and the answer."""


@dataclass(frozen=True, slots=True)
class RunSet(ProblemSet):
    """Problems, and what to do with one that has no usable prompt."""

    on_bad_row: StopOrSkip = "stop"


def as_set(
    dataset: Problems, on_bad_row: StopOrSkip = "stop", *, solutions: bool, columns: Columns | None = None,
    purpose: Split = "train",
) -> RunSet:  # fmt: skip
    """Return what a caller in Python gives as a checked set; each problem must have a solution if `solutions`.

    Rows are deduplicated, unless they are a ProblemSet or problems with ids. A RunSet is returned unchanged. Errors
    name the arguments of `OPASDTrainer`.
    """
    if isinstance(dataset, RunSet):
        return dataset
    check_choice("on_bad_row", on_bad_row, StopOrSkip)
    given = as_columns(columns)
    with _naming_arguments("train_dataset" if purpose == "train" else "eval_dataset"):
        if isinstance(dataset, str | os.PathLike):
            named = _wanted(given or ColumnConfig(), solutions)
            return load_set(DataConfig(source=os.fspath(dataset), columns=named, on_bad_row=on_bad_row), purpose)
        if isinstance(dataset, Mapping):
            raise DataError(f"data.source is a mapping of {listing(dataset)}, not rows; give one of its splits")
        return _checked(dataset, on_bad_row, given, solutions=solutions)


def as_columns(columns: Columns | None) -> ColumnConfig | None:
    """Return a mapping of columns as its configuration; refuse a name that is no field."""
    if columns is None or isinstance(columns, ColumnConfig):
        return columns
    if unknown := sorted(map(str, set(columns) - set(ColumnConfig.model_fields))):
        fields = ", ".join(ColumnConfig.model_fields)
        raise ConfigError(f"columns: got {', '.join(unknown)}; give the columns of {fields}")
    try:
        return ColumnConfig.model_validate(dict(columns))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"columns.{'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _wanted(columns: ColumnConfig, solutions: bool) -> ColumnConfig:
    return columns if solutions else columns.model_copy(update={"solution": None})


def _checked(
    dataset: Iterable[Any], on_bad_row: StopOrSkip, columns: ColumnConfig | None, *, solutions: bool
) -> RunSet:
    rows = list(dataset)
    if not rows:
        return RunSet((), DataReport("memory"), on_bad_row, config=DataConfig(source="memory"))
    config = DataConfig(on_bad_row=on_bad_row, columns=_wanted(columns or ColumnConfig(), solutions))
    if isinstance(dataset, ProblemSet) or all(isinstance(row, Problem) and row.id for row in rows):
        config = config.model_copy(update={"deduplicate": False, "solution_limit": sys.maxsize})
    checked = load_problems(rows, config)
    report, origin = checked.report, checked.config
    if isinstance(dataset, ProblemSet):
        bad, faults = dataset.report.bad + report.bad, [*dataset.report.faults, *report.faults]
        report, origin = replace(dataset.report, kept=report.kept, bad=bad, faults=faults), dataset.config
    return RunSet(checked.problems, report, on_bad_row, config=origin)


@contextmanager
def _naming_arguments(dataset: str) -> Iterator[None]:
    """Put the arguments of a call in Python in place of the settings that an error names."""
    try:
        yield
    except DataError as error:
        message = str(error)
        for pattern, text in (
            (r"set data\.columns\.solution: null", "give columns={'solution': None}"),
            (r"(map|name) it in data\.columns", r"\1 it in columns={…}"),
            (r"set data\.on_bad_row: skip", "set on_bad_row='skip'"),
            (r"data\.source\b", dataset),
            (r"set data\.split to one of these", "give one of these"),
            (r" and data's filters", ""),
            (r"\bdata\.(?=columns|rows|solution_limit|split|subset|revision)", ""),
        ):
            message = re.sub(pattern, text, message)
        raise DataError(message) from error


def load_set(config: DataConfig, purpose: Split) -> RunSet:
    """Return the problems of a data section; the tasks of this package have a split for each purpose."""
    if config.source not in TASKS:
        loaded = load_problems(config=config)
        return RunSet(loaded.problems, loaded.report, config.on_bad_row, config=loaded.config)
    made = make_problems(config.source, task_split(config, purpose), config.sample, config.seed)
    report = DataReport(config.source, None, len(made), len(made))
    return RunSet(made, report, config.on_bad_row, config=config)


def digest(problems: Iterable[Problem]) -> str:
    """Return a hash of all questions, solutions, answers and pointers."""
    total = hashlib.sha256()
    for problem in problems:
        texts = [problem.question, problem.solution, problem.answer]
        total.update(json.dumps(texts if problem.pointers is None else [*texts, problem.pointers]).encode())
    return total.hexdigest()
