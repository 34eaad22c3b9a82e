"""The task `lookup`: answers by an independent reader of the text, pointers, splits, determinism."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.config import DataConfig
from opasd.data.made import make_problems as make_of
from opasd.data.made.lookup import LEVELS, make_problems, make_puzzles
from opasd.data.sets import load_set

SPLITS = ("pretrain", "train", "validation", "test")
STATEMENT = re.compile(r"\((\d+)\) (\w+)'s (\w+): (?:(\d+)|(\w+)'s (plus|minus) (\d+))\.")


def read(question):
    """The needed statements' numbers and the answer, from the text alone; shares no code with the package."""
    facts = {(person, item): rest for _, person, item, *rest in STATEMENT.findall(question)}
    numbers = {(person, item): number for number, person, item, *_ in STATEMENT.findall(question)}
    item, person = re.search(r"How many (\w+) does (\w+) have\?$", question).groups()
    used, change = [], 0
    while True:
        used.append(numbers[person, item])
        count, source, word, amount = facts[person, item]
        if count:
            return used, int(count) + change
        change += int(amount) if word == "plus" else -int(amount)
        person = source


@given(st.sampled_from(SPLITS), st.integers(0, 10**6), st.sampled_from(LEVELS))
def test_answers_and_pointers_are_those_of_the_text(split, seed, level):
    for problem in make_problems(split, 2, seed, level):
        used, answer = read(problem.question)
        assert (problem.pointers, problem.answer) == (", ".join(used), str(answer))
        assert len(used) == level + 1
        assert problem.solution.endswith(f"Answer: \\boxed{{{answer}}}")
        for left, sign, right, total in re.findall(r"(\d+) ([+-]) (\d+) = (\d+)", problem.solution):
            assert int(total) == int(left) + (1 if sign == "+" else -1) * int(right)


def test_every_needed_statement_has_one_that_looks_like_it():
    for puzzle in make_puzzles("test", 20):
        assert 24 <= len(puzzle.statements) <= 40
        for needed in puzzle.needed:
            others = [one for one in puzzle.statements if one.person == needed.person and one.item != needed.item]
            assert len(others) >= 2


def test_any_walk_through_the_statements_ends_and_stays_a_count():
    """A reader who takes a wrong item goes on with another chain, which must end too, with no count below 0."""
    for puzzle in make_puzzles("test", 20):
        lowest = {}

        def least(person, puzzle=puzzle, lowest=lowest):
            if person not in lowest:
                own = [one for one in puzzle.statements if one.person == person]
                lowest[person] = min(one.result(least(one.source)) if one.source else one.amount for one in own)
            return lowest[person]

        assert all(least(one.person) >= 0 for one in puzzle.statements)


def test_splits_share_no_problem_and_a_longer_set_begins_with_the_shorter():
    sets = {split: {problem.question for problem in make_problems(split, 30)} for split in SPLITS}
    assert sum(map(len, sets.values())) == len(set.union(*sets.values()))
    assert make_problems("train", 9)[:5] == make_problems("train", 5)
    assert list(make_of("lookup", "train", 5)) == make_problems("train", 5)
    assert list(load_set(DataConfig(source="lookup", sample=3, seed=0), "validation")) == make_problems("validation", 3)


@pytest.mark.parametrize("arguments", [("dev", 1), ("train", 1, 0, 9)])
def test_unknown_splits_and_levels_are_refused(arguments):
    with pytest.raises(ValueError, match="must be one of"):
        make_puzzles(*arguments)
