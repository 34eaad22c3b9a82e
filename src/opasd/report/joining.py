"""Which evaluations share a row of a report, and what the rows are called."""

import os
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from opasd.report.run import Run


def join(rows: Sequence[Run], model: Run) -> bool:
    """Add an evaluation to the first row that was evaluated in the same way, and return whether there is one."""
    row = next((row for row in rows if row.conditions.agree_with(model.conditions)), None)
    if row is None:
        return False
    known = {(result.benchmark, result.budget) for result in model.results}
    row.results = [own for own in row.results if (own.benchmark, own.budget) not in known] + model.results
    _join_answers(row, model)
    row.notes += model.notes
    if model.evaluation and (row.evaluation is None or model.evaluation.is_dir() > row.evaluation.is_dir()):
        row.evaluation = model.evaluation
    row.conditions = row.conditions.joined_with(model.conditions)
    return True


def _join_answers(row: Run, model: Run) -> None:
    """Keep the answers of the larger budget for each benchmark, and the longer ones of the same budget.

    Answers of two budgets are never mixed: without fixed seeds they are other answers."""
    smaller = {name for name, most in row.conditions.budgets.items() if most < model.conditions.budgets.get(name, 0)}
    larger = {name for name, most in model.conditions.budgets.items() if most < row.conditions.budgets.get(name, 0)}
    for own, added in ((row.samples, model.samples), (row.without_text, model.without_text)):
        own[:] = [sample for sample in own if sample.dataset not in smaller]
        added[:] = [sample for sample in added if sample.dataset not in larger]
    # With the same seeds, an answer that was cut short is the beginning of the longer one.
    lengths = {sample.key: sample.tokens for sample in (*model.samples, *model.without_text)}
    row.samples = [sample for sample in row.samples if sample.tokens > lengths.get(sample.key, -1)]
    row.without_text = [sample for sample in row.without_text if sample.tokens > lengths.get(sample.key, -1)]
    longer = {sample.key for sample in (*row.samples, *row.without_text)}
    row.samples += [sample for sample in model.samples if sample.key not in longer]
    row.without_text += [sample for sample in model.without_text if sample.key not in longer]


def attach(runs: list[Run], model: Run) -> None:
    """Add an evaluated model to the row of its run or as a row; a base model comes first, to compare others with."""
    same = [
        run
        for run in runs
        if same_folder(model.origin, run.path)
        or (run.state == model.state and (run.name, run.origin) == (model.name, model.origin))
    ]
    # A sweep's folder may have been moved: then NAME is still beside NAME.evaluation.
    if not same and model.beside and model.beside.name == Path(model.origin).name:
        same = [run for run in runs if run.path.resolve() == model.beside]
    if join(same, model):
        return
    if same:
        runs.insert(runs.index(same[-1]) + 1, model)
    else:
        runs.insert(len(runs) if model.origin or (model.samples and not model.results) else 0, model)


def distinguish(runs: list[Run]) -> None:
    """Put the parent folder in front of equal names, and the one above it; the evaluation behind those still equal, or
    else a number."""
    renamings: list[Callable[[Run, int], str]] = [
        lambda run, _: f"{unresolved(run.path).parent.name}/{run.name}",
        lambda run, _: f"{unresolved(run.path).parent.parent.name}/{run.name}",
        lambda run, _: f"{run.name} ({unresolved(run.evaluation).name})" if run.evaluation else run.name,
        lambda run, _: (
            f"{run.name} ({'/'.join(unresolved(run.evaluation).parts[-2:])})" if run.evaluation else run.name
        ),
        lambda run, n: f"{run.name} ({n})",
    ]
    for rename in renamings:
        groups: defaultdict[str, list[Run]] = defaultdict(list)
        for run in runs:
            groups[run.name].append(run)
        for group in groups.values():
            names = [rename(run, n) for n, run in enumerate(group, 1)]
            if len(set(names)) > 1:
                for run, name in zip(group, names, strict=True):
                    run.name = name


def same_folder(recorded: Any, path: Path) -> bool:
    """Return whether a folder on record is this one; a relative one may be relative to any folder."""
    if not recorded or not isinstance(recorded, str):
        return False
    try:
        if Path(recorded).expanduser().resolve() == path.resolve():
            return True
    except (OSError, ValueError, RuntimeError):
        return False
    parts = Path(recorded).parts
    return not Path(recorded).is_absolute() and ".." not in parts and path.resolve().parts[-len(parts) :] == parts


def unresolved(path: Path) -> Path:
    """Return the absolute path without following links, so that a link keeps its own name."""
    return Path(os.path.abspath(path))
