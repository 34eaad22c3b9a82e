"""Splits of the tasks that are drawn by a seed: a problem's own text decides its split, so none is in two."""

import hashlib
from collections.abc import Sequence
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


def check_request(split: str, level: int | None, levels: Sequence[int]) -> None:
    """Refuse a split or a level that a task does not have."""
    if split not in get_args(Split):
        raise ValueError(f"split must be one of {', '.join(get_args(Split))}, got {split!r}")
    if level is not None and level not in levels:
        raise ValueError(f"level must be one of 1 to {levels[-1]}, got {level!r}")
