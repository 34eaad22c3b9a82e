"""Two pictures of the method from a real example: the two contexts of a problem, and the projection at one step.

    contexts(record)            who sees what: the counterpart of the paper's first figure
    projection(record, step)    A_t^T with the solution, Ã_t^T without it, A_t^S: the counterpart of the second

Both are drawn from a record of the attention viewer, as SVG in light colours.
"""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from opasd.report.assets import LIGHT
from opasd.report.text import safe, shortened
from opasd.report.viewer import unpacked

WIDTH = 1120
_LINE, _SIZE = 19, 13
_COLOURS = dict(re.findall(r"--([\w-]+):([^;]+);", LIGHT))
_HUES = {name: f"rgb({','.join(_COLOURS[name].split())})" for name in ("teacher", "projected", "student")}
_STYLE = (
    "text{font-family:system-ui,'Segoe UI',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#16181d;font-size:14px}"
    ".m{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:13px}.h{font-size:17px;font-weight:650}"
    ".s{fill:#5b6270;font-size:13px}.b{font-weight:650}"
)


def contexts(record: dict[str, Any]) -> str:
    """Return the picture of the two contexts, the response that both read, and the two losses between them."""
    question, solution = record["problem"]["question"], _solution(record)
    response = "".join(record["student"]["tokens"][record["student"]["prompt"] :])
    parts, column = [], WIDTH / 2 - 60
    heights = []
    for left, role, hue in ((24.0, "Student", "student"), (WIDTH - 24 - column, "Teacher", "teacher")):
        y = 64.0
        sees = "sees the problem" if role == "Student" else "also sees a verified solution"
        parts.append(_text(left, 40, f"{role}: {sees}", "h"))
        y = _box(parts, left, y, column, "problem", question, _COLOURS["card"], _COLOURS["strong"])
        if role == "Teacher":
            y = _box(parts, left, y, column, "solution: only the teacher sees this", solution, "#fdeee3", _HUES[hue])
        heights.append(y)
    y = max(heights) + 10
    middle, inner = WIDTH / 2, WIDTH - 48
    parts += [
        f'<path d="M{x:.0f} {y - 18:.0f}v20" stroke="{_COLOURS["ink"]}" stroke-width="2"/>'
        for x in (24 + column / 2, WIDTH - 24 - column / 2)
    ]
    end = _box(
        parts, 24, y + 4, inner, "response: the student samples it, both read it", response, "#fff", _HUES["student"]
    )
    losses = (
        ("next token: the student's distribution learns the teacher's (OPSD)", 24.0),
        ("attention: where the student looks learns where the teacher looks, projected (OPASD adds this)", middle - 60),
    )
    for text, x in losses:
        parts.append(_text(x, end + 22, text, "b" if "OPASD" in text else ""))
    return _svg("The two contexts of one problem", end + 44, parts)


def projection(record: dict[str, Any], step: int | None = None) -> str:
    """Return the picture of one step's attention: the teacher's, the projected, the student's, over all positions."""
    layer = min(record["layers"], key=lambda one: one["layer"])
    view = next(one for one in record["views"] if one["layer"] == layer["layer"])
    step = int(np.argmax(layer.get("rho_text") or layer["rho"])) if step is None else step
    teacher = unpacked(layer["teacher"], record["seen"]["teacher"])[step]
    target = unpacked(layer["projected"], record["seen"]["shared"])[step]
    student = unpacked(view["student"], record["seen"]["shared"])[step]
    places = np.asarray(record["shared"]["teacher"])
    rows = {"teacher": teacher, "projected": np.zeros(len(teacher)), "student": np.zeros(len(teacher))}
    rows["projected"][places[: len(target)]], rows["student"][places[: len(student)]] = target, student
    begin, end = record["teacher"]["solution"]
    tokens, rho = record["teacher"]["tokens"], layer["rho"][step]
    predicted = record["student"]["tokens"][record["student"]["prompt"] + step].replace("\n", "⏎")
    titles = {
        "teacher": f"A, teacher: {100 * rho:.0f} % of its attention is on the solution",
        "projected": f"Ã, projected: the solution taken away, the rest divided by 1 − ρ = {1 - rho:.2f}",
        "student": "A, student: learns the projected one",
    }
    left, width = 24.0, WIDTH - 48.0
    bar = width / len(teacher)
    parts = [_text(left, 40, f"Where they look at step {step + 1}, predicting “{predicted}”", "h")]
    y, height = 96.0, 92.0
    # The first position is a sink in many models and would flatten all others.
    top = max(float(row[1:].max()) for row in rows.values()) or 1.0
    for name, row in rows.items():
        base = y + height
        parts.append(_text(left, y - 10, titles[name], "b"))
        shade = "#fdeee3" if name == "teacher" else "#eef0f3"
        x, wide = left + begin * bar, (end - begin) * bar
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height:.0f}" fill="{shade}"/>')
        words = "solution" if name == "teacher" else "not visible to the student"
        parts.append(_text(x + wide / 2, y + 16, words, "s", "middle"))
        for place, weight in enumerate(row):
            tall = height * min(float(weight) / top, 1.0) ** 0.5
            if tall >= 0.3:
                parts.append(
                    f'<rect class="{name}" x="{left + place * bar:.1f}" y="{base - tall:.1f}" '
                    f'width="{max(bar - 0.6, 0.8):.1f}" height="{tall:.1f}" fill="{_HUES[name]}"/>'
                )
        parts.append(f'<path d="M{left} {base:.1f}h{width}" stroke="{_COLOURS["strong"]}"/>')
        parts += _named(row, tokens, left, bar, base)
        y = base + 66
    prompt = record["teacher"]["prompt"]
    parts.append(_text(left + prompt * bar, 76, "response so far", "s", "middle"))
    parts.append(
        _text(
            left, y - 22, "A bar for each token; its height is the root of its weight. Last layer, mean of heads.", "s"
        )
    )
    return _svg("The projection onto what the student sees", y - 4, parts)


def _named(row: np.ndarray, tokens: Sequence[str], left: float, bar: float, base: float) -> list[str]:
    """Return the texts of the strongest positions below the bars, as far as they do not overlap."""
    parts, taken = [], []
    for place in (int(one) + 1 for one in np.argsort(row[1:])[::-1][:12]):
        text = shortened(tokens[place].replace("\n", "⏎").strip() or "·", 12)
        x, half = left + (place + 0.5) * bar, 4.2 * len(text) + 3
        if row[place] > 0 and all(abs(x - other) > half + room for other, room in taken):
            taken.append((x, half))
            parts.append(_text(x, base + 17, text, "m", "middle"))
    return parts


def _solution(record: dict[str, Any]) -> str:
    begin, end = record["teacher"].get("text") or record["teacher"]["solution"]
    return "".join(record["teacher"]["tokens"][begin:end])


def _box(parts: list[str], x: float, y: float, width: float, label: str, text: str, fill: str, edge: str) -> float:
    """Add a box with a label and a wrapped text, and return where the next one begins."""
    room = int((width - 28) / 7.9)
    lines = [part for line in text.strip().split("\n") for part in textwrap.wrap(line, room) or [""]]
    lines = [*lines[:8], "…"] if len(lines) > 9 else lines
    height = 34 + _LINE * len(lines)
    parts.append(
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="10" fill="{fill}" '
        f'stroke="{edge}" stroke-width="1.5"/>'
    )
    parts.append(_text(x + 14, y + 19, label, "s"))
    parts += [_text(x + 14, y + 40 + _LINE * n, line, "m") for n, line in enumerate(lines)]
    return y + height + 14


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" xml:space="preserve">{safe(text)}</text>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{safe(title)}"><style>{_STYLE}</style>'
        f'<rect width="{WIDTH}" height="{height:.0f}" rx="16" fill="#fff"/>{"".join(parts)}</svg>\n'
    )
