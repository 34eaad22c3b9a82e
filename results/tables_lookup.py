"""The pilot on the task lookup; `python results/tables.py lookup` prints it.

Accuracy is that of the rollouts in steps 21 to 40: fresh problems, temperature 1, 32 a step. Differences are paired by
seed, which fixes the problems of every step. Intervals are 95 %, Student's t over seeds.
"""

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from records import training_runs
from summaries import training_steps

ARMS = {
    "opsd": ("OPSD", "pointers", ""),
    "opasd-last": ("OPASD, last layer", "pointers", "opsd"),
    "opasd-look": ("OPASD, layers 4 and 5", "pointers", "opsd"),
    "opasd-shuffled": ("OPASD, layers 4 and 5, shuffled", "pointers", "opsd"),
    "attention": ("attention alone, layers 4 and 5", "pointers", "opsd"),
    "opsd-solution": ("OPSD", "solution", "opsd"),
    "opasd-solution": ("OPASD, layers 4 and 5", "solution", "opsd-solution"),
    "opasd-both": ("OPASD, layers 4 and 5", "tokens: solution; attention: pointers", "opsd-solution"),
    "opsd-clip": ("OPSD, per-token clip", "pointers", "opsd"),
    "opasd-look-clip": ("OPASD, layers 4 and 5, per-token clip", "pointers", "opsd-clip"),
}
"""A run's name, what it is, what its teacher sees, and the run that it is compared with."""
T_QUANTILES = {3: 3.182, 4: 2.776}
"""The 97.5 % quantiles of Student's t, by degrees of freedom."""
LATE = slice(20, 40)


@cache
def accuracy(arm: str) -> dict[int, float]:
    """Return the late rollouts' accuracy of each seed, in per cent."""
    runs = [name for name in training_runs("lookup/pilot") if name.rpartition("-seed-")[0] == arm]
    steps = {int(name.rpartition("-")[2]): training_steps("lookup/pilot", name)[LATE] for name in runs}
    return {seed: 100 * float(np.mean([row["rollout/accuracy"] for row in rows])) for seed, rows in steps.items()}


def gains(arm: str, other: str) -> list[float]:
    """Return the differences of two arms on the seeds that both have."""
    first, second = accuracy(arm), accuracy(other)
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and its interval."""
    half = T_QUANTILES[len(values) - 1] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), float(np.mean(values)) - half, float(np.mean(values)) + half


def rows() -> list[list[str]]:
    """Return the table's cells."""
    table = []
    for arm, (label, reference, other) in ARMS.items():
        values = list(accuracy(arm).values())
        compared = ""
        if other:
            mean, low, high = over_seeds(gains(arm, other))
            compared = f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")
        table.append([label, reference, str(len(values)), f"{np.mean(values):.1f}", compared])
    return table


def print_lookup() -> None:
    for cells in rows():
        print("| " + " | ".join(cells) + " |")
