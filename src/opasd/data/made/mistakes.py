"""Name the first mistake in an answer to a problem of the lab task."""

import re
from typing import Literal

from opasd.data.made.counts import Puzzle, work_step

Mistake = Literal["rule", "start", "other"]
MISTAKES: dict[Mistake, str] = {"rule": "forgot the rule", "start": "wrong start count", "other": "other mistake"}
"""`start`: another number in place of a stated count, or the count of another item. `other`: amounts, sums, missing
lines, the final answer."""
_LINE = re.compile(
    r"^(?:Wait, )?(?P<name>\w+): (?P<left>\d+) (?P<sign>[-+*]) (?P<right>\d+) = (?P<raw>\d+)"
    r"(?:, (?:minus|plus) \d+ = (?P<ruled>\d+)|, so (?P<capped>\d+))?\.",
    re.MULTILINE,
)
_BOX = re.compile(r"\\boxed\{(\d+)\}")


def first_mistake(puzzle: Puzzle, answer: str) -> Mistake | None:
    """Return the first mistake along the chain, or None. A line that puts another right ("Wait, …") stands for it.

    What follows from a mistake is none: each line is judged by the counts that the answer has so far.
    """
    lines = {line["name"]: line for line in _LINE.finditer(answer)}
    counts = dict(puzzle.givens)
    for step in puzzle.steps:
        line = lines.get(step.name)
        if line is None:
            return "other"
        right = work_step(puzzle, step, counts)
        for part, name in (("left", step.source), ("right", step.other)):
            if line[part] != str(getattr(right, part)):
                decoy = line[part] == str(puzzle.decoys.get(name))
                return "start" if decoy or name in puzzle.givens else "other"
        if (line["sign"], int(line["raw"])) != (right.sign, right.raw):
            return "other"
        final = int(line["ruled"] or line["capped"] or line["raw"])
        if final != right.final:
            return "rule" if final == right.raw else "other"
        counts[step.name] = final
    boxes = _BOX.findall(answer)
    return None if boxes and boxes[-1] == puzzle.answer else "other"
