"""Scripts, styles and HTML of the pages."""

from importlib.resources import files


def asset(name: str) -> str:
    """Return the text of a file in this folder; line breaks of HTML only separate tags and are left out."""
    text = (files(__name__) / name).read_text(encoding="utf-8")
    return text.replace("\n", "") if name.endswith(".html") else text
