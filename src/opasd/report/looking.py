"""A figure of where a model looks: attention on what a step needs, by layer, from the look of `opasd probe --json`."""

from collections.abc import Mapping
from typing import Any

from opasd.report.figure import Figure, Series


def mass_by_layer(looks: Mapping[str, Any], name: str) -> Figure:
    """Return the student's mass and that of each reference's projected target, with 95 % bands."""
    references = {key: own for key, own in (looks.get("references") or {}).items() if own["student"]}
    rows = [(f"target, {key}", slot, own["projected"]) for slot, (key, own) in enumerate(references.items(), 1)]
    rows += [("student", 0, references[looks["own_reference"]]["student"])] if references else []  # on top
    series = [
        Series(
            label, slot, [(layer, figure["mean"]) for layer, figure in enumerate(figures)],
            [figure["low"] for figure in figures], [figure["high"] for figure in figures], marks=True,
        )
        for label, slot, figures in rows
    ]  # fmt: skip
    return Figure(
        "mass-by-layer", f"{name}: attention on what a step needs", "line", "layer", "share of the attention", series,
        caption="The student's attention, and the teacher's after projection with each reference.", from_zero=True,
    )  # fmt: skip
