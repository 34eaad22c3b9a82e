"""How a step's problems are divided over processes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Share:
    """One process's part of an epoch's `count` problems: accelerate deals batches of `size` to each in turn."""

    process: int
    processes: int
    size: int
    count: int

    def without_repeated(self, batches: Sequence[Sequence[T]], step: int, accumulation: int) -> list[T]:
        """What is in this process's batches of a step, without what accelerate repeats at the end of an epoch so that
        all processes have as many: with one process there is no such thing."""
        steps = -(-self.count // (self.size * self.processes * accumulation))  # of an epoch
        return [
            one
            for number, batch in enumerate(batches, step % steps * accumulation)
            for place, one in enumerate(batch, (number * self.processes + self.process) * self.size)
            if place < self.count
        ]
