"""Splits of the tasks that are drawn by a seed: a problem's own text decides its split, so none is in two."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

Split = Literal["pretrain", "train", "validation", "test"]
DEFAULT_PROBLEMS = 4096
"""Number of problems of a split if the configuration gives none."""
_SHARES: dict[Split, range] = {
    "pretrain": range(40),
    "train": range(40, 80),
    "validation": range(80, 90),
    "test": range(90, 100),
}


def split_of(key: str) -> Split:
    """Return the split of the problem with this text."""
    share = int.from_bytes(hashlib.sha256(key.encode()).digest()[:8], "big") % 100
    return next(split for split, shares in _SHARES.items() if share in shares)


def seeds(
    task: str, split: str, count: int, seed: int, level: int | None, levels: Sequence[int]
) -> Iterator[tuple[random.Random, int, str]]:
    """Give each of `count` problems its random numbers, its level (the one asked for, or all in turn) and its name.

    The numbers depend on the name alone. A split or a level that the task does not have is refused.
    """
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    if level is not None and level not in levels:
        raise ValueError(f"level must be one of 1 to {levels[-1]}, got {level!r}")
    for index in range(count):
        own_level = level or levels[index % len(levels)]
        name = f"{task}-{split}-{seed}-{index}-level{own_level}"
        yield random.Random(name), own_level, name
