"""How a step's problems and rollouts are divided: over processes, and into micro-batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from opasd.rollout import Rollout

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


def microbatches(rollouts: list[Rollout], budget: int, *, packed: bool) -> list[list[Rollout]]:
    """Rollouts in groups whose teacher contexts, the longer ones, hold at most `budget` tokens with any padding.

    Ordered by length, so that little is padded; one rollout that is over the budget is a group of its own."""
    groups: list[list[Rollout]] = []
    tokens = 0
    for rollout in sorted(rollouts, key=lambda rollout: len(rollout.teacher_ids)):
        length = len(rollout.teacher_ids)
        if groups and (tokens + length if packed else (len(groups[-1]) + 1) * length) <= budget:
            groups[-1].append(rollout)
            tokens += length
        else:
            groups.append([rollout])
            tokens = length
    return groups
