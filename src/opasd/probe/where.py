"""Summarise where a model looks: masses by layer with 95 % intervals over problems, looking layers, and the gate.

A layer looks if the student's mass on the needed tokens is at least half of the best layer's and ten times what evenly
spread attention would have there. A head of such a layer looks by the same rule. The gate: over the looking layers, the
projected target puts at least twice the student's mass on the needed statements. If no layer looks, the gate is
taken at the layers with at least half of the best mass.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

from opasd.evaluation.statistics import mean_of
from opasd.probe.look import PARTS, Look

OF_BEST, OF_UNIFORM, GATE = 0.5, 10.0, 2.0
GateVerdict = Literal["passes", "fails", "open"]


def looking(masses: Sequence[float], uniform: float) -> list[int]:
    """Return the numbers of the layers (or heads) that look."""
    best = max(masses)
    return [n for n, mass in enumerate(masses) if mass >= OF_BEST * best and mass >= OF_UNIFORM * uniform]


def summarise_looks(looks: Sequence[Look], responses: str) -> dict[str, Any]:
    """Return all figures; those about needs are None if no step's need is known. `responses` says whose were read."""
    own = looks[0].reference
    known = [one for one in looks if one.reference == own and one.student is not None]
    uniform = statistics.fmean(one.uniform or 0.0 for one in known) if known else None
    layers: list[int] | None = None
    compared: list[int] = []
    heads: list[list[int]] | None = None
    if uniform is not None:
        student = _means([one.student or [] for one in known])
        layers = looking(student, uniform)
        compared = layers or looking(student, 0.0)
        by_head = [_means([(one.student_heads or [])[layer] for one in known]) for layer in range(len(student))]
        best = max(max(by_head[layer]) for layer in layers) if layers else 0.0
        floor = max(OF_BEST * best, OF_UNIFORM * uniform)
        heads = [[layer, n] for layer in layers for n, mass in enumerate(by_head[layer]) if mass >= floor]
    names = list(dict.fromkeys(one.reference for one in looks))
    rows = {name: [one for one in looks if one.reference == name] for name in names}
    return {
        "responses": responses,
        "own_reference": own,
        "problems": len(_by_problem(rows[own])),
        "steps": sum(one.steps for one in rows[own]),
        "layers": len(looks[0].divergence),
        "uniform": uniform,
        "looking_layers": layers,
        "looking_heads": heads,
        "gate_layers": compared,
        "rule": {"of_best": OF_BEST, "of_uniform": OF_UNIFORM, "gate": GATE},
        "references": {name: _of_reference(own_rows, compared) for name, own_rows in rows.items()},
    }


def _of_reference(looks: Sequence[Look], layers: Sequence[int]) -> dict[str, Any]:
    known = [one for one in looks if one.student is not None]
    figures: dict[str, Any] = {"problems": len(_by_problem(looks))}
    for name in ("student", "teacher", "projected", "student_statement", "projected_statement"):
        figures[name] = _by_layer(known, lambda one, name=name: getattr(one, name)) if known else None
    for name in ("student_heads", "projected_heads"):
        depth = len(getattr(known[0], name)) if known else 0
        by_layer = [_means([getattr(one, name)[layer] for one in known]) for layer in range(depth)]
        figures[name] = by_layer if known else None
    figures |= {
        "loss": {part: _by_layer(looks, lambda one, part=part: one.loss[part]) for part in PARTS},
        "divergence": _by_layer(looks, lambda one: one.divergence),
        "rho_text": _by_layer(looks, lambda one: one.rho_text),
        "rho_words": _by_layer(looks, lambda one: one.rho_words),
        "gate": gate(known, layers) if known and layers else None,
    }
    return figures


def gate(looks: Sequence[Look], layers: Sequence[int]) -> dict[str, Any]:
    """Return the masses on the needed statements over these layers, their ratio, and whether it is clearly two.

    `margin` = projected − 2 · student, a mean over problems: it passes if the interval is above 0, fails if below.
    """
    values = []
    for rows in _by_problem(looks):
        student, projected = (
            statistics.fmean((getattr(one, f"{name}_statement") or [])[layer] for one in rows for layer in layers)
            for name in ("student", "projected")
        )
        values.append((student, projected))
    margin = mean_of([projected - GATE * student for student, projected in values])
    student, projected = (statistics.fmean(column) for column in zip(*values, strict=True))
    verdict: GateVerdict = "passes" if margin.low > 0 else "fails" if margin.high < 0 else "open"
    return {
        "student": student,
        "projected": projected,
        "ratio": projected / student if student else None,
        "margin": margin._asdict(),
        "verdict": verdict if len(values) > 1 else "open",
    }


def _by_problem(looks: Sequence[Look]) -> list[list[Look]]:
    rows: dict[str, list[Look]] = {}
    for one in looks:
        rows.setdefault(one.problem, []).append(one)
    return list(rows.values())


def _by_layer(looks: Sequence[Look], values: Callable[[Look], Sequence[float]]) -> list[dict[str, float]]:
    """Return each layer's mean and interval over problems, each of which counts once."""
    per_problem = [_means([values(one) for one in rows]) for rows in _by_problem(looks)]
    return [mean_of(column)._asdict() for column in zip(*per_problem, strict=True)]


def _means(rows: Sequence[Sequence[float]]) -> list[float]:
    return [statistics.fmean(column) for column in zip(*rows, strict=True)]
