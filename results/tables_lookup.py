"""The task lookup: its search, second round, pilot and gates; `python results/tables.py lookup` prints all four.

Rollouts are those of steps 21 to 40: fresh problems, temperature 1, 32 a step. The second round and the search have
1,200 validation problems after the last step, at temperature 0.6. Differences are paired by seed, which fixes the
problems of every step. Intervals are 95 %, Student's t over seeds.
"""

import json
import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from records import HERE, read_rows, training_runs
from summaries import training_steps

ARMS = {
    "opsd": ("OPSD", "pointers", ""),
    "opasd-last": ("OPASD, last layer", "pointers", "opsd"),
    "opasd-look": ("OPASD, layers 4 and 5", "pointers", "opsd"),
    "opasd-shuffled": ("OPASD, layers 4 and 5, `shuffle`", "pointers", "opsd"),
    "attention": ("attention alone, layers 4 and 5", "pointers", "opsd"),
    "opsd-solution": ("OPSD", "solution", "opsd"),
    "opasd-solution": ("OPASD, layers 4 and 5", "solution", "opsd-solution"),
    "opasd-both": ("OPASD, layers 4 and 5", "tokens: solution; attention: pointers", "opsd-solution"),
    "opsd-clip": ("OPSD, per-token clip", "pointers", "opsd"),
    "opasd-look-clip": ("OPASD, layers 4 and 5, per-token clip", "pointers", "opsd-clip"),
}
"""A run's name, what it is, what its teacher sees, and the run that it is compared with."""
AGAIN = {
    "opsd-1e-3": ("OPSD", "1e-3", "–"),
    "opsd-2e-3": ("OPSD", "2e-3", "–"),
    "last-0.3-1e-3": ("OPASD, last layer", "1e-3", "0.3"),
    "look-0.3-1e-3": ("OPASD, layers 4 and 5", "1e-3", "0.3"),
    "last-1-1e-3": ("OPASD, last layer", "1e-3", "1"),
    "look-1-1e-3": ("OPASD, layers 4 and 5", "1e-3", "1"),
}
"""A run of the second round, what it is, its rate and the ratio of its gradients."""
SEARCHED = {
    **{f"opsd-{rate}": ("OPSD", rate, "–") for rate in ("1e-3", "2e-3", "4e-3")},
    **{
        f"look-{ratio}-{rate}": ("OPASD, layers 4 and 5", rate, ratio)
        for ratio in ("0.1", "0.3", "1")
        for rate in ("1e-3", "2e-3")
    },
}
"""A run of the search for rates and ratios, likewise."""
MEASURES = {
    "layers 4 and 5": "4 and 5",
    "layer 5": "5",
    "layers 4 and 5, forks alone": "4 and 5 fork",
    "layers 4 and 5, student undecided": "4 and 5 undecided",
    "layer 5, forks alone": "5 fork",
    "head 5.2": "5.2",
    "head 4.1": "4.1",
}
"""What the gate was measured at, and its name in gates.json."""
VALIDATION = "validation/lookup/avg@1"
T_QUANTILES = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365}
"""The 97.5 % quantiles of Student's t, by degrees of freedom."""
LATE = slice(20, 40)


Figures = dict[int, float]
"""Per cent by seed."""


@cache
def rollouts(arm: str, sweep: str) -> Figures:
    """Return the late rollouts' accuracy of each seed."""
    return rollouts_of(arm, sweep, LATE)


def rollouts_of(arm: str, sweep: str, window: slice) -> Figures:
    """Return the accuracy of the rollouts of some steps, of each seed."""
    steps = {seed: training_steps(sweep, name)[window] for seed, name in _runs(arm, sweep).items()}
    return {seed: 100 * float(np.mean([row["rollout/accuracy"] for row in rows])) for seed, rows in steps.items()}


@cache
def validated(arm: str, sweep: str) -> Figures:
    """Return the accuracy of each seed on the validation problems after the last step."""
    rows = {seed: read_rows(f"{sweep}/{name}/metrics.jsonl") for seed, name in _runs(arm, sweep).items()}
    return {
        seed: 100 * next(row[VALIDATION] for row in reversed(own) if VALIDATION in row) for seed, own in rows.items()
    }


def _runs(arm: str, sweep: str) -> dict[int, str]:
    names = [name for name in training_runs(sweep) if name.rpartition("-seed-")[0] == arm]
    return {int(name.rpartition("-")[2]): name for name in names}


def gains(first: Figures, second: Figures) -> list[float]:
    """Return the differences on the seeds that both have."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def over_seeds(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and its interval."""
    half = T_QUANTILES[len(values) - 1] * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return float(np.mean(values)), float(np.mean(values)) - half, float(np.mean(values)) + half


def difference(first: Figures, second: Figures) -> str:
    """Return the mean difference with its interval."""
    mean, low, high = over_seeds(gains(first, second))
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]".replace("-", "−")


def rows() -> list[list[str]]:
    """Return the cells of the pilot's table."""
    table = []
    for arm, (label, reference, other) in ARMS.items():
        own = rollouts(arm, "lookup/pilot")
        compared = difference(own, rollouts(other, "lookup/pilot")) if other else ""
        table.append([label, reference, str(len(own)), f"{np.mean(list(own.values())):.1f}", compared])
    return table


def rows_again() -> list[list[str]]:
    """Return the cells of the second round's table."""
    table = []
    for arm, words in AGAIN.items():
        cells = []
        for measure in (validated, rollouts):
            own = measure(arm, "lookup/again")
            others = [None if name == arm else measure(name, "lookup/again") for name in ("opsd-1e-3", "opsd-2e-3")]
            cells += [
                f"{np.mean(list(own.values())):.1f}",
                *(difference(own, other) if other else "" for other in others),
            ]
        table.append([*words, *cells])
    return table


def rows_searched() -> list[list[str]]:
    """Return the cells of the search's table: the validation of each seed, and the mean."""
    table = []
    for arm, words in SEARCHED.items():
        own = validated(arm, "lookup/search")
        table.append([*words, *(f"{own[seed]:.1f}" for seed in sorted(own)), f"{np.mean(list(own.values())):.1f}"])
    return table


def gates(model: str = "lookup") -> dict[str, dict[str, dict[str, list[float]]]]:
    """Return what lookup/gates.py wrote of a model: by problems read, wording and measure."""
    return json.loads((HERE / "lookup/gates.json").read_text(encoding="utf-8"))[model]


def rows_of_wordings() -> list[list[str]]:
    """Return the cells of the gate by wording, at layers 4 and 5."""
    return [[wording, *_gate(own["4 and 5"])] for wording, own in gates()["gold"].items()]


def rows_of_measures() -> list[list[str]]:
    """Return the cells of the gate by measure, with the recipe's wording: other problems, and the student's answers."""
    read = [next(iter(gates()[name].values())) for name in ("gold, others", "student's")]
    return [[label, *(cell for own in read for cell in _gate(own[name]))] for label, name in MEASURES.items()]


def _gate(figures: Sequence[float]) -> list[str]:
    """Return the target in units of the student's mass, and target − 2 · student with its interval."""
    _, student, target, ratio, low, high = figures
    margin = f"{target - 2 * student:+.2f} [{low:+.2f}, {high:+.2f}]".replace("-", "−")
    return [f"{ratio:.2f}", margin]


def print_lookup() -> None:
    for table in (rows_searched(), rows_again(), rows(), rows_of_wordings(), rows_of_measures()):
        for cells in table:
            print("| " + " | ".join(cells) + " |")
        print()
