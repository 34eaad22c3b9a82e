"""The tasks of this package, made by code: the data sources `lab` (counts), `lookup`, `ledger` and `arithmetic`."""

import functools
from typing import get_args

from opasd.config import DataConfig
from opasd.data.made import arithmetic, counts, ledger, lookup
from opasd.data.made.arithmetic import Split
from opasd.data.made.needs import Need
from opasd.data.made.splits import DEFAULT_PROBLEMS
from opasd.data.problems import Problem
from opasd.errors import ConfigError

TASKS = ("lab", "lookup", "ledger", "arithmetic")
_SEEDED = {"lab": counts, "lookup": lookup, "ledger": ledger}


def task_split(config: DataConfig, purpose: Split) -> Split:
    """Return the split to use: `train`, the default of a data section, means the split of that purpose.

    Refuse a section that sets columns, rows or another field that tasks made by code do not have.
    """
    known = {"source", "split", "sample", "on_bad_row"} | ({"seed"} if config.source in _SEEDED else set())
    default = DataConfig().model_dump()
    if unknown := sorted(name for name, value in config.model_dump(exclude=known).items() if value != default[name]):
        raise ConfigError(
            f"data source {config.source} is made by code and has no {', '.join(unknown)}; leave that out"
        )
    for split in get_args(Split):
        if config.split == split:
            return purpose if split == "train" else split
    raise ConfigError(f"data source {config.source} has the splits {', '.join(get_args(Split))}, got {config.split!r}")


@functools.lru_cache(maxsize=8)  # making thousands takes seconds, and a process may ask for them again
def make_problems(source: str, split: Split, count: int | None, seed: int = 0) -> tuple[Problem, ...]:
    """Return `count` problems of a split; the default is 4,096, and all of `arithmetic`, which has no seed."""
    number = count_problems(source, split, count)
    if source in _SEEDED:
        return tuple(_SEEDED[source].make_problems(split, number, seed))
    return tuple(arithmetic.make_problems(split, number))


def count_problems(source: str, split: Split, count: int | None) -> int:
    """Return the number of problems that `make_problems` makes."""
    if source in _SEEDED:
        return count or DEFAULT_PROBLEMS
    return min(count or arithmetic.SIZES[split], arithmetic.SIZES[split])


def needed_spans(source: str, problem: Problem, response: str) -> list[Need] | None:
    """Return what each step of a response to a task's problem needs from its question; None for other sources."""
    if source not in TASKS:
        return None
    return (arithmetic if source == "arithmetic" else _SEEDED[source]).needed_spans(problem, response)


def task_of(problem: Problem) -> str:
    """Return the task whose problem this seems to be, by its id; another's id gives some other word."""
    return problem.id.replace("/", "-").partition("-")[0]
