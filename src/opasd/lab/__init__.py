"""The embedded default: a small task made by code and a small pretrained chat model; nothing is downloaded."""

from opasd.lab.task import LEVELS, is_right, make_problems, make_puzzles

__all__ = ["LEVELS", "is_right", "make_problems", "make_puzzles"]
