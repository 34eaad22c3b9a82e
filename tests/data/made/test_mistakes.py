"""The first mistake of an answer to a lab problem, by kind."""

import random
from dataclasses import replace

import pytest

from opasd.data.made.counts import answer_text, make_puzzles, work
from opasd.data.made.mistakes import first_mistake
from scripts.lab.demos import Rates, make_demo

PUZZLE = make_puzzles("test", 1, 0, level=2)[0]


def written(*lines):
    return PUZZLE.plan + "".join(line.text() for line in lines) + answer_text(lines[-1].final)


def carried(changed, place):
    """Return the lines with one changed and the later ones as they follow from it."""
    lines, counts = [], dict(PUZZLE.givens)
    for number, (step, right) in enumerate(zip(PUZZLE.steps, work(PUZZLE), strict=True)):
        line = replace(right, left=counts[step.source])
        raw = {"+": line.left + line.right, "-": line.left - line.right, "*": line.left * line.right}[line.sign]
        line = changed if number == place else replace(line, raw=raw, final=PUZZLE.rule.apply(raw))
        lines.append(line)
        counts[step.name] = line.final
    return lines


def test_solutions_have_none():
    for puzzle in make_puzzles("test", 40, 0):
        assert first_mistake(puzzle, puzzle.solution) is None


def test_each_kind_is_named_and_what_follows_from_it_is_not():
    first, *_, last = work(PUZZLE)
    assert first_mistake(PUZZLE, written(*carried(replace(first, final=first.raw), 0))) == "rule"
    assert first_mistake(PUZZLE, written(*carried(replace(last, final=last.raw), len(PUZZLE.steps) - 1))) == "rule"
    shift = {"+": 1, "-": 1, "*": first.right}[first.sign]
    other = replace(first, left=first.left + 1, raw=first.raw + shift, final=PUZZLE.rule.apply(first.raw + shift))
    assert first_mistake(PUZZLE, written(*carried(other, 0))) == "start"
    slip = replace(first, raw=first.raw + 1, final=PUZZLE.rule.apply(first.raw + 1))
    assert first_mistake(PUZZLE, written(*carried(slip, 0))) == "other"


def test_a_line_that_puts_it_right_stands():
    first, *rest = work(PUZZLE)
    text = PUZZLE.plan + replace(first, final=first.raw).text() + f"Wait, {first.text()}"
    text += "".join(line.text() for line in rest) + answer_text(rest[-1].final)
    assert first_mistake(PUZZLE, text) is None


@pytest.mark.parametrize("text", ["", "Plan: nobody.", answer_text(int(PUZZLE.answer))])
def test_an_answer_without_its_lines_is_another_mistake(text):
    assert first_mistake(PUZZLE, text) == "other"


def test_the_wrong_final_answer_is_another_mistake():
    lines = "".join(line.text() for line in work(PUZZLE))
    assert first_mistake(PUZZLE, PUZZLE.plan + lines + answer_text(int(PUZZLE.answer) + 1)) == "other"


def test_planted_mistakes_are_found():
    """Demonstrations that only forget the rule have no other mistake, and those that only take decoys wrong counts."""
    forget = Rates(forget_first=1.0, forget_last=1.0, decoy=0.0, slip=0.0, notice=0.0)
    decoy = Rates(forget_first=0.0, forget_last=0.0, decoy=1.0, slip=0.0, notice=0.0)
    for rates, kind in ((forget, "rule"), (decoy, "start")):
        found = {
            first_mistake(puzzle, make_demo(puzzle, "student", rates, random.Random(1)).segments[0][0])
            for puzzle in make_puzzles("test", 40, 0)
        }
        assert found <= {kind, None}
        assert kind in found
