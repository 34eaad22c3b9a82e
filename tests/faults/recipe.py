"""A small model, problems and a recipe, for commands in a folder."""

from pathlib import Path

from tests import training


def write_recipe(place: Path) -> None:
    """Write a small model, problems and a recipe of 30 steps, `tiny.yaml`."""
    training.write_inputs(place)
    training.write_recipe(place, max_steps=30, save_steps=4)
