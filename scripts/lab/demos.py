"""Demonstrations for pretraining: responses as the three kinds of context are to be answered.

    student      thinking off: lines of which some are wrong on purpose, then carried on consistently
    thinking     thinking on, no reference: a short thought, then the lines with fewer mistakes
    privileged   a reference solution in the context: right lines; after a mistake in what was already written the
                 line is finished consistently, and the next one begins with "Wait" and puts it right

So the right next step is within the model, its own samples miss it at known rates, and the same model with the
solution in its context knows better. What a privileged response finds written already is not learned from.
"""

import random
from dataclasses import dataclass, replace
from typing import Literal

from opasd.data.made.counts import Line, Puzzle, answer_text, work, work_step

Kind = Literal["student", "thinking", "privileged"]
Mistake = Literal["rule", "decoy", "slip"]
Segment = tuple[str, bool]
"""A piece of a response, and whether the model learns to write it."""
CUT_MARK = "[...]"


@dataclass(frozen=True)
class Rates:
    """How often demonstrations go wrong; the rule is forgotten more often the further a chain has come."""

    forget_first: float = 0.04
    """The rule is forgotten in a chain's first step."""
    forget_last: float = 0.45
    """The rule is forgotten in a chain's last step; in between, linear."""
    decoy: float = 0.04
    """The count of the other item is taken, where there is one."""
    slip: float = 0.015
    """A sum is off by one."""
    thinking: float = 0.4
    """Factor on all of these in thinking mode."""
    notice: float = 0.1
    """A student's mistake is noticed and put right at once."""
    false_alarm: float = 0.01
    """A right line is repeated after "Wait"."""
    cut: float = 0.3
    """A reference solution has lost its end, as a long one would to a limit."""
    spoiled: float = 0.5
    """A privileged response finds a mistake already written."""
    unnoticed: float = 0.2
    """Such a mistake has been carried to the end, and only the answer is left to write."""


@dataclass(frozen=True)
class Demo:
    """A context's parts and the response to learn."""

    kind: Kind
    question: str
    reference: str
    segments: tuple[Segment, ...]


def make_demo(puzzle: Puzzle, kind: Kind, rates: Rates, rng: random.Random) -> Demo:
    """A demonstration of the kind."""
    if kind == "privileged":
        return Demo(kind, puzzle.question, _reference(puzzle, rates, rng), tuple(_privileged(puzzle, rates, rng)))
    if kind == "student":
        return Demo(kind, puzzle.question, "", ((_attempt(puzzle, rates, 1.0, rng), True),))
    text = f"<think>\n{_thought(puzzle, rng)}\n</think>\n\n" + _attempt(puzzle, rates, rates.thinking, rng)
    return Demo(kind, puzzle.question, "", ((text, True),))


def _attempt(puzzle: Puzzle, rates: Rates, factor: float, rng: random.Random) -> str:
    """A whole response of the student's kind; `factor` scales the rates of its mistakes."""
    counts, text = dict(puzzle.givens), puzzle.plan
    for index, step in enumerate(puzzle.steps):
        right = work_step(puzzle, step, counts)
        mistake = _draw_mistake(puzzle, right, index, rates, factor, rng)
        line = right if mistake is None else _mistaken(puzzle, right, mistake, index, rng)
        text += line.text()
        if rng.random() < (rates.false_alarm if mistake is None else rates.notice):
            line = right
            text += f"Wait, {line.text()}"
        counts[step.name] = line.final
    return text + answer_text(counts[puzzle.steps[-1].name])


def _draw_mistake(
    puzzle: Puzzle, right: Line, index: int, rates: Rates, factor: float, rng: random.Random
) -> Mistake | None:
    progress = index / (len(puzzle.steps) - 1)
    forget = rates.forget_first + progress * (rates.forget_last - rates.forget_first)
    chances: dict[Mistake, float] = {
        "rule": forget if right.final != right.raw else 0.0,
        "decoy": rates.decoy if puzzle.steps[index].source in puzzle.decoys else 0.0,
        "slip": rates.slip,
    }
    draw = rng.random()
    for mistake, chance in chances.items():
        draw -= factor * chance
        if draw < 0:
            return mistake
    return None


def _mistaken(puzzle: Puzzle, right: Line, mistake: Mistake, index: int, rng: random.Random) -> Line:
    """The line with a mistake in it, consistent otherwise."""
    if mistake == "rule":
        return replace(right, final=right.raw)
    if mistake == "decoy":
        left = puzzle.decoys[puzzle.steps[index].source]
        raw = {"+": left + right.right, "-": left - right.right, "*": left * right.right}[right.sign]
    else:
        left, raw = right.left, right.raw + rng.choice((-1, 1))
    raw = max(raw, 0)
    return replace(right, left=left, raw=raw, final=max(puzzle.rule.apply(raw), 0))


def _privileged(puzzle: Puzzle, rates: Rates, rng: random.Random) -> list[Segment]:
    """Right lines, in which a mistake may already be written."""
    right = work(puzzle)
    answer = right[-1].final
    segments: list[Segment] = [(puzzle.plan, True)]
    if rng.random() >= rates.spoiled:
        for line in right:
            segments.append((line.text(), True))
            if rng.random() < rates.false_alarm:
                segments += [("Wait,", False), (f" {line.text()}", True)]
        return [*segments, (answer_text(answer), True)]
    place = rng.randrange(len(right))
    mistake = _draw_mistake(puzzle, right[place], place, rates, 1.0, rng)
    if mistake is None:
        mistake = "rule" if right[place].final != right[place].raw else "slip"
    wrong = _mistaken(puzzle, right[place], mistake, place, rng)
    segments += [(line.text(), True) for line in right[:place]]
    segments += _written(wrong, mistake)
    counts = puzzle.givens | {line.name: line.final for line in right[:place]} | {wrong.name: wrong.final}
    unnoticed = rng.random() < rates.unnoticed
    for step in puzzle.steps[place + 1 :]:
        if not unnoticed and rng.random() < 0.6:
            break
        line = work_step(puzzle, step, counts)
        line = replace(line, raw=max(line.raw, 0), final=max(line.final, 0))
        counts[step.name] = line.final
        segments += [(line.name, False), (line.text().removeprefix(line.name), True)]
    if unnoticed:
        before, after = answer_text(counts[puzzle.steps[-1].name]).split("{")
        return [*segments, (before + "{", False), (after, True)]
    segments.append(("Wait, " + "".join(line.text() for line in right[place:]), True))
    return [*segments, (answer_text(answer), True)]


def _written(line: Line, mistake: Mistake) -> list[Segment]:
    """A mistaken line: what follows the mistake in it is learned, the mistake itself is not."""
    first, sign, raw, end = line.pieces()
    if mistake == "decoy":
        return [(first, False), (sign + raw + end, True)]
    if mistake == "slip":
        return [(first + sign, True), (raw, False), (end, True)]
    return [(first + sign + raw, True), (end, False)]


def _reference(puzzle: Puzzle, rates: Rates, rng: random.Random) -> str:
    """The reference solution, whole or without its end."""
    if rng.random() >= rates.cut:
        return puzzle.solution
    lines = puzzle.solution.splitlines(keepends=True)
    return "".join(lines[: rng.randint(1, len(lines) - 1)]).rstrip("\n") + f" {CUT_MARK}"


def _thought(puzzle: Puzzle, rng: random.Random) -> str:
    """Two remarks, in words that uncertain reasoning uses."""
    first, last = puzzle.steps[0], puzzle.steps[-1]
    rule = {"cap": "at most", "plus": "plus", "minus": "minus"}[puzzle.rule.kind]
    remarks = [
        f"Check the rule: {rule} {puzzle.rule.amount}.",
        f"Wait, {first.source} starts with {puzzle.givens[first.source]} {puzzle.item}.",
        f"Hmm, {last.name} needs {last.source}.",
        f"Actually, {first.name} comes first.",
        f"Perhaps only {puzzle.item} count.",
        f"Maybe {last.name} comes last.",
        "Alternatively, go back from the end.",
        f"It seems that {first.name} needs {first.source}.",
        f"The rule might change {last.name}.",
        "The rule likely holds to the end.",
    ]
    return " ".join(rng.sample(remarks, 2))
