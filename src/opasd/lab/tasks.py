"""The tasks that come with the package, by the name of their data source."""

from typing import TYPE_CHECKING, get_args

from opasd.errors import ConfigError
from opasd.lab import arithmetic, task
from opasd.lab.arithmetic import Split

if TYPE_CHECKING:
    from opasd.data import Problem

TASKS = ("lab", "arithmetic")


def own_split(source: str, split: str, needed: Split) -> Split:
    """The split that is meant: `train`, the default of a data section, stands for what its problems are needed for."""
    for known in get_args(Split):
        if split == known:
            return needed if known == "train" else known
    raise ConfigError(f"data source {source} has the splits {', '.join(get_args(Split))}, got {split!r}")


def make_problems(source: str, split: Split, count: int | None, seed: int = 0) -> list["Problem"]:
    """Problems of a split, as many as there are or are drawn unless told; `arithmetic` has one order, whatever seed."""
    if source == "lab":
        return task.make_problems(split, count or task.DEFAULT_PROBLEMS, seed)
    return arithmetic.make_problems(split, size(source, split, count))


def size(source: str, split: Split, count: int | None) -> int:
    """How many those are."""
    if source == "lab":
        return count or task.DEFAULT_PROBLEMS
    return min(count or arithmetic.SIZES[split], arithmetic.SIZES[split])
