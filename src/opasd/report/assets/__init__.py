"""Scripts, styles and HTML of the pages."""

from importlib.resources import files
from string import Template


def asset(name: str) -> str:
    """Return the text of a file in this folder."""
    return (files(__name__) / name).read_text(encoding="utf-8")


def template(name: str, **values: str) -> str:
    """Return the text of a file in one line, with each `$name` replaced by its value."""
    return Template(asset(name).replace("\n", "")).substitute(values)
