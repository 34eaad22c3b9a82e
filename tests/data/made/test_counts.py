"""The task: answers by an independent reader of the text, solutions step by step, splits, determinism, levels."""

import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.data.made.counts import LEVELS, make_problems, make_puzzles
from opasd.data.problems import load_problems

SPLITS = ("pretrain", "train", "validation", "test")
LINE = re.compile(r"(\w+): (\d+) ([+*-]) (\d+) = (\d+)(?:, (?:(plus|minus) (\d+) = (\d+)|so (\d+)))?\.")
RULES = {
    r"then gives (\d+) away": lambda count, amount: count - amount,
    r"then finds (\d+) more": lambda count, amount: count + amount,
    r"can keep at most (\d+)": min,
}


def read(question):
    """The answer, from the text alone; shares no code with the package."""
    rule, *statements, query = re.split(r"(?<=\.) ", question)
    item = re.search(r"whoever gets (\w+)", rule)[1]
    apply, amount = next(
        (function, int(match[1])) for pattern, function in RULES.items() if (match := re.search(pattern, rule))
    )
    made = {}
    for text in statements:
        if match := re.fullmatch(rf"(\w+) starts with (\d+) {item}\.", text):
            made[match[1]] = lambda count=int(match[2]): count
        elif match := re.fullmatch(rf"(\w+) gets (\d+) (more|fewer) {item} than (\w+)\.", text):
            sign = 1 if match[3] == "more" else -1
            made[match[1]] = lambda s=match[4], k=sign * int(match[2]): apply(made[s]() + k, amount)
        elif match := re.fullmatch(rf"(\w+) gets twice as many {item} as (\w+)\.", text):
            made[match[1]] = lambda s=match[2]: apply(made[s]() * 2, amount)
        elif match := re.fullmatch(rf"(\w+) gets as many {item} as (\w+) and (\w+) together\.", text):
            made[match[1]] = lambda s=match[2], o=match[3]: apply(made[s]() + made[o](), amount)
        else:
            assert item not in text, text
    return made[re.fullmatch(rf"How many {item} does (\w+) have in the end\?", query)[1]]()


@given(st.sampled_from(SPLITS), st.integers(0, 10**6), st.sampled_from(LEVELS))
def test_answers_and_every_step_of_a_solution_are_right(split, seed, level):
    for puzzle in make_puzzles(split, 3, seed, level):
        assert read(puzzle.question) == int(puzzle.answer)
        assert puzzle.solution.endswith(f"\\boxed{{{puzzle.answer}}}")
        plan, *lines, answer = puzzle.solution.splitlines()
        assert plan.startswith("Plan: ")
        assert answer == f"Answer: \\boxed{{{puzzle.answer}}}"
        assert len(lines) == level + 1 == len(plan.split(",")) - 1
        for line in lines:
            _, left, sign, right, raw, word, amount, after, capped = LINE.fullmatch(line).groups()
            operations = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right)}
            assert operations[sign] == int(raw)
            if word:
                assert int(raw) + {"plus": 1, "minus": -1}[word] * int(amount) == int(after)
            if capped:
                assert int(raw) > int(capped)


def test_every_rule_is_needed():
    for puzzle in make_puzzles("test", 200):
        assert any("," in line for line in puzzle.solution.splitlines()[1:])


def test_splits_share_no_problem_whatever_the_order_of_statements():
    keys = {split: {puzzle.key for puzzle in make_puzzles(split, 300, 5)} for split in SPLITS}
    assert all(len(own) == 300 for own in keys.values())
    assert len(set().union(*keys.values())) == 300 * len(SPLITS)
    for split in SPLITS:
        assert {puzzle.split for puzzle in make_puzzles(split, 40, 6)} == {split}


def test_the_same_in_another_process_and_as_the_beginning_of_a_longer_set():
    code = "from opasd.data.made.counts import make_problems; print(make_problems('test', 8, 3))"
    here = make_problems("test", 20, 3)
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there.strip() == str(here[:8])


def test_levels_grow_in_steps_and_length():
    words = [
        sum(
            len(part.split())
            for puzzle in make_puzzles("train", 60, 1, level)
            for part in (puzzle.question, puzzle.solution)
        )
        for level in LEVELS
    ]
    assert words == sorted(words)
    assert [puzzle.level for puzzle in make_puzzles("train", 8)] == [1, 2, 3, 4, 1, 2, 3, 4]


def test_problems_go_through_the_data_loader():
    problems = make_problems("train", 12)
    assert list(load_problems(problems)) == problems


def test_the_task_needs_no_torch():
    code = "import sys, opasd.data.made.counts; print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    imported = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert imported.strip() == "[]"


@pytest.mark.parametrize(("split", "level"), [("dev", None), ("test", 0), ("test", 5)])
def test_unknown_split_or_level(split, level):
    with pytest.raises(ValueError, match="must be one of"):
        make_puzzles(split, 1, 0, level)
