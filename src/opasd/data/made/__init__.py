"""The tasks that come with the package, by the name of their data source."""

from typing import TYPE_CHECKING, get_args

from opasd.config import DataConfig
from opasd.data.made import arithmetic, counts
from opasd.data.made.arithmetic import Split
from opasd.errors import ConfigError

if TYPE_CHECKING:
    from opasd.data.problems import Problem

TASKS = ("lab", "arithmetic")


def own_split(config: DataConfig, needed: Split) -> Split:
    """The split that is meant: `train`, the default of a data section, stands for what its problems are needed for.

    A task that is made by code has no columns, rows and so on: an error where the section sets one."""
    known = {"source", "split", "sample", "on_bad_row"} | ({"seed"} if config.source == "lab" else set())
    default = DataConfig().model_dump()
    if odd := sorted(name for name, value in config.model_dump(exclude=known).items() if value != default[name]):
        raise ConfigError(f"data source {config.source} is made by code and knows no {', '.join(odd)}; leave that out")
    for split in get_args(Split):
        if config.split == split:
            return needed if split == "train" else split
    raise ConfigError(f"data source {config.source} has the splits {', '.join(get_args(Split))}, got {config.split!r}")


def make_problems(source: str, split: Split, count: int | None, seed: int = 0) -> list["Problem"]:
    """Problems of a split, as many as there are or are drawn unless told; `arithmetic` has one order, whatever seed."""
    if source == "lab":
        return counts.make_problems(split, count or counts.DEFAULT_PROBLEMS, seed)
    return arithmetic.make_problems(split, size(source, split, count))


def size(source: str, split: Split, count: int | None) -> int:
    """How many those are."""
    if source == "lab":
        return count or counts.DEFAULT_PROBLEMS
    return min(count or arithmetic.SIZES[split], arithmetic.SIZES[split])
