"""Print where a model looks, and the advice at a probe's end, for a terminal."""

from collections.abc import Sequence
from typing import Any

from opasd.probe.advice import Advice
from opasd.rounding import aligned

_RESPONSES = {"gold": "the gold solutions", "student": "the student's own answers"}


def look_page(name: str, model: str, looks: dict[str, Any]) -> str:
    """Return the page of a summary of looks."""
    read = f"{_RESPONSES[looks['responses']]}, {looks['problems']} problems"
    lines = [f"{name}: where {model} looks in {read}, {looks['steps']} steps whose need is known", ""]
    if looks["looking_layers"] is not None:
        lines += [
            f"attention on what a step needs, by layer; spread evenly it would be {looks['uniform']:.4f}",
            *aligned(_mass_rows(looks)),
            "",
            *_looking(looks),
            *_gates(looks),
            "",
        ]
    lines += [
        f"shares of the attention loss and of ρ with the recipe's reference ({looks['own_reference']}), %",
        *aligned(_loss_rows(looks)),
        "",
        "Means over problems; the file of --json has 95 % intervals, each head, and every reference.",
        "",
    ]
    return "\n".join(lines)


def _mass_rows(looks: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return a row for each layer: the student's mass, and each teacher's before and after projection."""
    own = looks["references"]
    known = [name for name in own if own[name]["student"]]
    header = ["layer", "student", *(f"{name}, {when}" for name in known for when in ("seen", "projected"))]
    rows = [tuple(header)]
    for layer in range(looks["layers"]):
        mark = " *" if layer in looks["looking_layers"] else ""
        cells = [own[looks["own_reference"]]["student"][layer]]
        cells += [own[name][kind][layer] for name in known for kind in ("teacher", "projected")]
        rows.append((f"{layer}{mark}", *(f"{cell['mean']:.3f}" for cell in cells)))
    return rows


def _looking(looks: dict[str, Any]) -> list[str]:
    rule, layers = looks["rule"], looks["looking_layers"]
    says = f"at least {rule['of_best']:g} of the best layer's and {rule['of_uniform']:g} times the even share"
    if not layers:
        return [f"No layer looks (the student's mass is nowhere {says})."]
    heads = ", ".join(f"{layer}.{head}" for layer, head in looks["looking_heads"][:24])
    return [f"* Layers that look: {', '.join(map(str, layers))} (mass {says}).", f"Heads that look: {heads}."]


def _gates(looks: dict[str, Any]) -> list[str]:
    lines, layers = [], ", ".join(map(str, looks["gate_layers"]))
    for name, figures in looks["references"].items():
        if gate := figures["gate"]:
            ratio = "–" if gate["ratio"] is None else f"{gate['ratio']:.2f}"
            lines.append(
                f"Gate with {name}: the needed statements have {gate['projected']:.3f} of the target and "
                f"{gate['student']:.3f} of the student's attention at layers {layers}, {ratio} times as much "
                f"({gate['verdict']})."
            )
    return lines


def _loss_rows(looks: dict[str, Any]) -> list[tuple[str, ...]]:
    own = looks["references"][looks["own_reference"]]
    columns = {**own["loss"], "ρ, its text": own["rho_text"], "ρ, words around it": own["rho_words"]}
    shown = sorted({*(looks["looking_layers"] or []), looks["layers"] // 2, looks["layers"] - 1})
    rows = [("layer", *columns)]
    return rows + [(str(n), *(f"{100 * figures[n]['mean']:.1f}" for figures in columns.values())) for n in shown]


def advice_page(advice: Sequence[Advice]) -> str:
    """Return the advice, one sentence or two a line."""
    return "\n".join(["Advice", *(f"- {one['says']}" for one in advice), ""])
