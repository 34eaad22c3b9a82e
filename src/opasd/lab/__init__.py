"""The embedded chat model: a folder in the package that `from_pretrained` reads; `scripts/lab` makes it."""

from pathlib import Path

LAB = "lab"
"""The name that stands for the embedded model and the embedded task."""


def model_path() -> Path:
    """Return the folder of the embedded model."""
    return Path(__file__).parent / "model"
