"""Scripts, styles, HTML and colours: for the page in light and dark, and for pictures that leave it.

Eight colours for methods, after Okabe and Ito's set, moved as little as it takes to stand out from the page (contrast
3) and from each other: any two differ by ΔE 18 or more (CIE 1976), also as seen with protanopia, deuteranopia and
tritanopia. Beyond eight methods curves are dashed and marks have other shapes.
"""

import re
from importlib.resources import files
from string import Template


def asset(name: str) -> str:
    """Return the text of a file in this folder."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def template(name: str, **values: str) -> str:
    """Return the text of a file in one line, with each `$name` replaced by its value."""
    return Template(asset(name).replace("\n", "")).substitute(values)


LIGHT, DARK = template("light.css"), template("dark.css")
"""The colours as CSS variables."""
COLOURS = 8
SHAPES = 4


def dot(slot: int) -> str:
    """The classes of a method's mark in HTML: its colour, and a shape of its own for each round of the colours."""
    return f"dot c{slot % COLOURS}" + (f" g{_round(slot)}" if slot >= COLOURS else "")


def dash(slot: int) -> str:
    """The class that dashes a method's curve, beyond the first round of the colours."""
    return f" d{_round(slot)}" if slot >= COLOURS else ""


def mark(slot: int, x: float, y: float, r: float) -> str:
    """A method's mark in SVG: a disc, then a square, a triangle and a cross for the further rounds of the colours."""
    colour = slot % COLOURS
    d = [
        "", f"M{x - r:.1f} {y - r:.1f}h{2 * r:.1f}v{2 * r:.1f}h{-2 * r:.1f}z",
        f"M{x:.1f} {y - 1.2 * r:.1f}l{1.2 * r:.1f} {2.1 * r:.1f}h{-2.4 * r:.1f}z",
        f"M{x - r:.1f} {y - r:.1f}l{2 * r:.1f} {2 * r:.1f}m0 {-2 * r:.1f}l{-2 * r:.1f} {2 * r:.1f}",
    ][_round(slot)]  # fmt: skip
    if not d:
        return f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="{r:.1f}"/>'
    return f'<path class="{f"cross k{colour}" if _round(slot) == SHAPES - 1 else f"f{colour}"}" d="{d}"/>'


def _round(slot: int) -> int:
    return min(slot // COLOURS, SHAPES - 1)


CHART_STYLE = "".join(f".k{n}{{stroke:var(--run{n})}}.f{n}{{fill:var(--run{n})}}" for n in range(COLOURS))
CHART_STYLE += template("chart.css")


def resolved(style: str) -> str:
    """Return the style in light colours without variables, for programs that know none."""
    colours = dict(re.findall(r"--(\w+):([^;]+);", LIGHT))
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match.group(1)], style)
