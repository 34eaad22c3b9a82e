"""The colours, once: for the page in light and dark, and for pictures that leave it.

Eight colours for runs, after Okabe and Ito's set that colour-blind readers tell apart, darkened or lightened to stand
out from the page. Beyond eight runs curves are dashed and marks have other shapes.
"""

import re

from opasd.report.assets import asset

LIGHT = {
    "back": "#ffffff", "card": "#f7f8fa", "raised": "#ffffff", "ink": "#16181d", "soft": "#5b6270", "line": "#e1e4ea",
    "strong": "#c3c9d4", "accent": "#2456d6", "good": "#0a7a4b", "bad": "#b4231a", "warn": "#8a5a00",
    "goodback": "#e4f5ec", "badback": "#fdeae8", "warnback": "#fff4dc", "accentback": "#e8eefc",
    "run0": "#2b6cd4", "run1": "#d1590a", "run2": "#0f8a62", "run3": "#b0468f", "run4": "#a97800", "run5": "#2f93cc",
    "run6": "#6b6f7a", "run7": "#7a4fc9", "teacher": "194 84 14", "projected": "124 74 201", "student": "30 100 214",
}  # fmt: skip
DARK = {
    "back": "#0f1115", "card": "#171a20", "raised": "#1e222a", "ink": "#e9ebf0", "soft": "#9ba3b2", "line": "#2a2f39",
    "strong": "#434a58", "accent": "#86aaff", "good": "#54d196", "bad": "#ff8d84", "warn": "#f0c05a",
    "goodback": "#10301f", "badback": "#3a1714", "warnback": "#33270b", "accentback": "#182545",
    "run0": "#77a8ff", "run1": "#ff9a55", "run2": "#3fcb9a", "run3": "#ee8fcd", "run4": "#e6bb4a", "run5": "#7fd0ff",
    "run6": "#a5abb8", "run7": "#b79bff", "teacher": "255 148 77", "projected": "183 155 255", "student": "102 160 255",
}  # fmt: skip
COLOURS = 8
SHAPES = 4


def dot(run: int) -> str:
    """The classes of a run's mark: its colour, and a shape of its own for each round of the colours."""
    return f"dot c{run % COLOURS}" + (f" g{min(run // COLOURS, SHAPES - 1)}" if run >= COLOURS else "")


CHART_STYLE = "".join(f".k{n}{{stroke:var(--run{n})}}.f{n}{{fill:var(--run{n})}}" for n in range(COLOURS))
CHART_STYLE += asset("chart.css").replace("\n", "")


def declarations(colours: dict[str, str]) -> str:
    """The colours as CSS variables."""
    return "".join(f"--{name}:{value};" for name, value in colours.items())


def resolved(style: str, colours: dict[str, str]) -> str:
    """A style without variables, for programs that know none."""
    return re.sub(r"var\(--(\w+)\)", lambda match: colours[match.group(1)], style)
