"""What a run cost, from the rows of its metrics.jsonl, and which runs are on the Pareto front.

Wall clock is the sum of the steps' own seconds, without validation, saving and loading. `opasd.model.cost` explains how
operations are estimated; here they are summed over steps, in EFLOPs (10¹⁸).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from opasd.analysis.curves import Row, curve, number

PARTS = ("rollout", "teacher", "student", "update")
EXA = 1e18


@dataclass(frozen=True)
class Spending:
    """Sums over a run's steps; None where no row has the value."""

    steps: int
    seconds: float | None
    seconds_by_part: dict[str, float]
    eflops_by_part: dict[str, float]
    tokens_generated: float | None
    tokens_processed: float | None
    peak_bytes: float | None
    ms_per_processed_token: float | None
    """The time of teacher, student and update, as a mean over processed tokens."""

    @property
    def hours(self) -> float | None:
        return None if self.seconds is None else self.seconds / 3600

    @property
    def eflops(self) -> float | None:
        return math.fsum(self.eflops_by_part.values()) if self.eflops_by_part else None


def spending(rows: Sequence[Row]) -> Spending:
    """Return the sums over all steps of a run."""
    return Spending(
        steps=len({row["step"] for row in rows if "grad_norm" in row and number(row.get("step")) is not None}),
        seconds=_sum(rows, "seconds/step"),
        seconds_by_part=_by_part(rows, "seconds", 1),
        eflops_by_part=_by_part(rows, "flops", EXA),
        tokens_generated=_sum(rows, "tokens/generated"),
        tokens_processed=_sum(rows, "tokens/processed"),
        peak_bytes=max((value for _, value in curve(rows, "memory/peak_bytes")), default=None),
        ms_per_processed_token=_weighted(rows, "ms_per_processed_token", "tokens/processed"),
    )


def pareto_front(models: Mapping[str, Sequence[float]]) -> list[str]:
    """Return the models that no other one beats; a higher number is better in each of their measures.

    A model beats another if it is at least as good in every measure and better in one."""

    def beats(first: Sequence[float], second: Sequence[float]) -> bool:
        pairs = list(zip(first, second, strict=True))
        return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)

    return [name for name, own in models.items() if not any(beats(other, own) for other in models.values())]


def _sum(rows: Sequence[Row], name: str) -> float | None:
    points = curve(rows, name)
    return math.fsum(value for _, value in points) if points else None


def _by_part(rows: Sequence[Row], kind: str, unit: float) -> dict[str, float]:
    sums = {part: _sum(rows, f"{kind}/{part}") for part in PARTS}
    return {part: value / unit for part, value in sums.items() if value is not None}


def _weighted(rows: Sequence[Row], name: str, weight: str) -> float | None:
    weights = dict(curve(rows, weight))
    pairs = [(value, weights[step]) for step, value in curve(rows, name) if weights.get(step, 0) > 0]
    total = math.fsum(share for _, share in pairs)
    return math.fsum(value * share for value, share in pairs) / total if total else None
