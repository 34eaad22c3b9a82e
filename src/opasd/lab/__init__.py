"""The embedded chat model: a folder of this package that `from_pretrained` reads. `scripts/lab` makes it."""

from pathlib import Path

LAB = "lab"
"""The name of the embedded model and of the embedded task."""


def model_path() -> Path:
    """Return the folder of the embedded model."""
    return Path(__file__).parent / "model"
