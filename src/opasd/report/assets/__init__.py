"""Scripts, styles, HTML and colours: for the page in light and dark, and for pictures that leave it.

Eight colours for runs, after Okabe and Ito's set that colour-blind readers tell apart, darkened or lightened to stand
out from the page. Beyond eight runs curves are dashed and marks have other shapes.
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


def dot(run: int) -> str:
    """The classes of a run's mark: its colour, and a shape of its own for each round of the colours."""
    return f"dot c{run % COLOURS}" + (f" g{min(run // COLOURS, SHAPES - 1)}" if run >= COLOURS else "")


CHART_STYLE = "".join(f".k{n}{{stroke:var(--run{n})}}.f{n}{{fill:var(--run{n})}}" for n in range(COLOURS))
CHART_STYLE += template("chart.css")


def resolved(style: str) -> str:
    """Return the style in light colours without variables, for programs that know none."""
    colours = dict(re.findall(r"--(\w+):([^;]+);", LIGHT))
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match.group(1)], style)
