"""The problems of one optimizer step, and this process's share of them."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def without_repeats(
    batch: Sequence[T], step: int, *, process: int, processes: int, batch_size: int, num_problems: int
) -> list[T]:
    """Return a process's batch without the problems that accelerate repeats at the end of an epoch.

    accelerate deals batches of `batch_size` to the processes in turn, and fills up the last ones from the epoch's
    beginning so that every process has as many. With one process nothing is repeated.
    """
    steps_per_epoch = -(-num_problems // (batch_size * processes))
    first = ((step % steps_per_epoch) * processes + process) * batch_size
    return list(batch[: max(num_problems - first, 0)])
