"""Two pictures of the method from a real example: the two contexts of a problem, and the projection at one step.

    contexts(record)            who sees what: the counterpart of the paper's first figure
    both(record)                the two in one
    projection(record, step)    A_t^T with the solution, Ã_t^T without it, A_t^S: the counterpart of the second

All are drawn from a record of the attention viewer, as SVG in light colours, dark where the reader's system is dark.
"""

import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from opasd.report.assets import DARK, LIGHT
from opasd.report.text import safe, shortened
from opasd.report.viewer import unpacked

WIDTH, EDGE = 840, 24
_LINE, _MONO, _SANS = 20, 8.5, 7.9
"""The height of a line of text, and the width of a character."""


def _rules(theme: str) -> str:
    """Return the classes of the pictures in the colours of a theme."""
    colours = dict(re.findall(r"--([\w-]+):([^;]+);", theme))
    hues = {name: f"rgb({','.join(colours[name].split())})" for name in ("teacher", "projected", "student")}
    return (
        f"text{{fill:{colours['ink']}}}.s{{fill:{colours['soft']}}}.back{{fill:{colours['back']}}}"
        f".card{{fill:{colours['card']};stroke:{colours['strong']}}}.axis{{fill:none;stroke:{colours['strong']}}}"
        f".hidden{{fill:{colours['line']}}}.arrow{{fill:none;stroke:{colours['ink']}}}.head{{fill:{colours['ink']}}}"
        + "".join(
            f".{name}{{fill:{hue}}}.box-{name}{{fill:{hue};fill-opacity:.1;stroke:{hue}}}.area-{name}{{fill:{hue};"
            f"fill-opacity:.12}}"
            for name, hue in hues.items()
        )
    )


_STYLE = (
    "text{font-family:system-ui,'Segoe UI',Helvetica,Arial,'Liberation Sans','DejaVu Sans','Noto Sans',sans-serif;"
    "font-size:15px}.m{font-family:'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:14px}"
    ".h{font-size:18px;font-weight:650}.s{font-size:14px}.b{font-weight:650}"
    + _rules(LIGHT) + f"@media (prefers-color-scheme:dark){{{_rules(DARK)}}}"
)  # fmt: skip


def contexts(record: dict[str, Any]) -> str:
    """Return the picture of the two contexts, the response that both read, and the two losses between them."""
    question, solution = record["problem"]["question"], _solution(record)
    response = "".join(record["student"]["tokens"][record["student"]["prompt"] :])
    parts: list[str] = []
    column = (WIDTH - 2 * EDGE - 32) / 2
    right = WIDTH - EDGE - column
    ends = []
    for left, role, sees in ((EDGE, "Student", "sees the problem"), (right, "Teacher", "also sees the solution")):
        parts.append(_text(left, 38, f"{role} {sees}", "h"))
        y = _box(parts, left, 56, column, "problem", question, "card")
        if role == "Teacher":
            y = _box(
                parts, left, y + 12, column, "verified solution: only the teacher sees this", solution, "box-teacher"
            )
        ends.append(y)
    y = max(ends) + 42
    for x, end, words in ((EDGE + column / 2, ends[0], "samples"), (right + column / 2, ends[1], "reads")):
        parts.append(f'<path class="arrow" stroke-width="2" d="M{x:.0f} {end + 6:.0f}V{y - 12:.0f}"/>')
        parts.append(f'<path class="head" d="M{x - 6:.0f} {y - 14:.0f}h12l-6 10z"/>')
        parts.append(_text(x + 12, y - 16, words, "s"))
    y = _box(parts, EDGE, y, WIDTH - 2 * EDGE, "the student's response, which both read", response, "box-student")
    parts.append(_text(EDGE, y + 30, "What the student learns from the teacher at each token of its response", "b"))
    losses = (
        ("OPSD", "the teacher's next-token distribution", "card"),
        ("OPASD adds", "where the teacher looks, projected onto what the student can see", "box-projected"),
    )
    lowest = max(
        _box(parts, left, y + 42, column, name, text, kind, mono=False)
        for left, (name, text, kind) in zip((EDGE, right), losses, strict=True)
    )
    return _svg("The two contexts of one problem", lowest + EDGE, parts)


def both(record: dict[str, Any]) -> str:
    """Return the two pictures as one: who sees what, and below it what the loss makes of the teacher's attention."""
    parts, y = [], 0.0
    for picture in (contexts(record), projection(record)):
        height = float(picture.split('height="')[1].split('"')[0])
        parts.append(f'<svg y="{y:.0f}" width="{WIDTH}" height="{height:.0f}">{picture}</svg>')
        y += height
    return _svg("The method: two contexts, and the projection between them", y, parts)


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
        "teacher": f"Teacher: {100 * rho:.0f} % of its attention is on the solution (ρ)",
        "projected": f"Projected: without the solution, the rest divided by 1 − ρ = {1 - rho:.2f}",
        "student": "Student: learns to look like the projected one",
    }
    left, width = float(EDGE), WIDTH - 2.0 * EDGE
    bar = width / len(teacher)
    parts = [_text(left, 38, f"Where they look at step {step + 1}, predicting “{predicted}”", "h")]
    y, height = 104.0, 92.0
    # The first position is a sink in many models and would flatten all others.
    top = max(float(row[1:].max()) for row in rows.values()) or 1.0
    for name, row in rows.items():
        base = y + height
        parts.append(_text(left, y - 30, titles[name], "b"))
        shade = "area-teacher" if name == "teacher" else "hidden"
        x, wide = left + begin * bar, (end - begin) * bar
        parts.append(f'<rect class="{shade}" x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="{height:.0f}"/>')
        words = "solution" if name == "teacher" else "the student cannot see this"
        parts.append(_text(x + wide / 2, y + 17, shortened(words, max(4, int(wide / _SANS))), "s", "middle"))
        parts.append(_text(left, y - 7, "problem", "s"))
        parts.append(_text(left + width, y - 7, "response", "s", "end"))
        for place, weight in enumerate(row):
            tall = height * min(float(weight) / top, 1.0) ** 0.5
            if tall >= 0.3:
                parts.append(
                    f'<rect class="{name}" x="{left + place * bar:.1f}" y="{base - tall:.1f}" '
                    f'width="{max(bar - 0.6, 0.8):.1f}" height="{tall:.1f}"/>'
                )
        parts.append(f'<path class="axis" d="M{left} {base:.1f}h{width}"/>')
        parts += _named(row, tokens, left, bar, base)
        y = base + 82
    about = "A bar for each token seen so far; its height is the root of its weight. Last layer, mean of heads."
    parts.append(_text(left, y - 34, about, "s"))
    return _svg("The projection onto what the student sees", y - 16, parts)


def _named(row: np.ndarray, tokens: Sequence[str], left: float, bar: float, base: float) -> list[str]:
    """Return the texts of the strongest positions below the bars, as far as they do not overlap."""
    parts, taken = [], []
    for place in (int(one) + 1 for one in np.argsort(row[1:])[::-1][:12]):
        text = shortened(tokens[place].replace("\n", "⏎").strip() or "·", 12)
        half = _MONO / 2 * len(text) + 4
        x = min(max(left + (place + 0.5) * bar, half), WIDTH - half)
        if row[place] > 0 and all(abs(x - other) > half + room for other, room in taken):
            taken.append((x, half))
            parts.append(_text(x, base + 17, text, "m", "middle"))
    return parts


def _solution(record: dict[str, Any]) -> str:
    begin, end = record["teacher"].get("text") or record["teacher"]["solution"]
    return "".join(record["teacher"]["tokens"][begin:end])


def _box(
    parts: list[str], x: float, y: float, width: float, label: str, text: str, kind: str, *, mono: bool = True
) -> float:
    """Add a box with a label and a wrapped text, and return where it ends."""
    room = int((width - 28) / (_MONO if mono else _SANS))
    lines = [part for line in text.strip().split("\n") for part in textwrap.wrap(line, room) or [""]]
    lines = [*lines[:8], "…"] if len(lines) > 9 else lines
    height = 40 + _LINE * len(lines)
    parts.append(
        f'<rect class="{kind}" x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="10" '
        f'stroke-width="1.5"/>'
    )
    parts.append(_text(x + 14, y + 21, label, "s" if mono else "b"))
    parts += [_text(x + 14, y + 43 + _LINE * n, line, "m" if mono else "") for n, line in enumerate(lines)]
    return y + height


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" xml:space="preserve">{safe(text)}</text>'
    )


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'height="{height:.0f}" role="img" aria-label="{safe(title)}"><style>{_STYLE}</style>'
        f'<rect class="back" width="{WIDTH}" height="{height:.0f}" rx="16"/>{"".join(parts)}</svg>\n'
    )
