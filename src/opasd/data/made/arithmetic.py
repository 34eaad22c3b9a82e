"""Chains of four operations with worked solutions: a task for a small pretrained model, made by code.

    Start with 70. Multiply by 9. Subtract 35. Add 386. Subtract 45. What number is the result?

    1. Start with 70.
    2. Multiply by 9: \\(70 \\times 9 = 630\\).
    …
    Therefore, the result is \\(\\boxed{936}\\).

Solutions are worded like many answers of Qwen2.5-Coder. So a teacher that sees one tells a wrong step of the student
from a right one, and not its own wording from the student's. The problems are always the same, and none is in two
splits.
"""

import functools
import random
import re
from typing import Literal

from opasd.data.made.needs import Need
from opasd.data.problems import Problem

Split = Literal["train", "validation", "test"]
SIZES: dict[Split, int] = {"train": 4096, "validation": 400, "test": 1000}
STEPS = 4
LARGEST = 5000
"""The largest result and intermediate result."""
SIGNS = {"Add": "+", "Subtract": "-", "Multiply": "\\times"}
_STATED = re.compile(r"(?P<word>Start with|Add|Subtract|Multiply by) (?P<number>\d+)\.")
_TAKEN_UP = {
    "Start with": re.compile(r"start\w* with (?:the number )?\D{0,3}(\d+)", re.IGNORECASE),
    "Add": re.compile(r"(?:add(?:ing)?|\+) \D{0,3}(\d+)", re.IGNORECASE),
    "Subtract": re.compile(r"(?:subtract(?:ing)?|[-−]) \D{0,3}(\d+)", re.IGNORECASE),
    "Multiply by": re.compile(r"(?:multiply(?:ing)?(?: it)? by|×|\*|\\times|\\cdot) \D{0,3}(\d+)", re.IGNORECASE),
}
"""How responses take a statement up, in words or by its sign."""


def make_problems(split: Split, count: int) -> list[Problem]:
    """Return the first problems of a split."""
    rows = _splits()[split][:count]
    return [Problem(*row, f"arithmetic/{split}/{number}") for number, row in enumerate(rows, 1)]


@functools.cache
def _splits() -> dict[Split, list[tuple[str, str, str]]]:
    draw = random.Random(2026)  # this seed draws no problem twice
    return {split: [_chain(draw) for _ in range(size)] for split, size in SIZES.items()}


def _chain(draw: random.Random) -> tuple[str, str, str]:
    """Return a question, its solution and its answer."""
    number = draw.randint(12, 99)
    words, lines = [f"Start with {number}."], [f"1. Start with {number}."]
    while len(lines) <= STEPS:
        name = draw.choice(list(SIGNS))
        other = draw.randint(3, 9) if name == "Multiply" else draw.randint(12, 396)
        result = {"Add": number + other, "Subtract": number - other, "Multiply": number * other}[name]
        if not 0 < result <= LARGEST:
            continue
        operation = f"{name} by {other}" if name == "Multiply" else f"{name} {other}"
        words.append(f"{operation}.")
        lines.append(f"{len(lines) + 1}. {operation}: \\({number} {SIGNS[name]} {other} = {result}\\).")
        number = result
    question = f"{' '.join(words)} What number is the result?"
    return question, "\n".join([*lines, "", f"Therefore, the result is \\(\\boxed{{{number}}}\\)."]), str(number)


def needed_spans(problem: Problem, response: str) -> list[Need]:
    """Return where a response first writes the number of each statement, in the order of the statements.

    The next statement is looked for from the next line on, so numbers that a line repeats do not count.
    """
    needs: list[Need] = []
    place = 0
    for stated in _STATED.finditer(problem.question):
        if (copy := _TAKEN_UP[stated["word"]].search(response, place)) is None:
            continue
        needs.append(Need(copy.start(1), stated.span("number"), stated.span()))
        line_end = response.find("\n", copy.end())
        place = len(response) if line_end < 0 else line_end
    return needs
