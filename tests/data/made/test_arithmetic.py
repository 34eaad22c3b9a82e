"""The chains against a reading of their questions by other means."""

import hashlib
import operator
import re

import pytest

from opasd.config import DataConfig
from opasd.data import made
from opasd.data.made import arithmetic, counts
from opasd.errors import ConfigError
from opasd.evaluation import benchmarks

WORDS = {"Add": operator.add, "Subtract": operator.sub, "Multiply by": operator.mul}
SIGNS = {"+": operator.add, "-": operator.sub, "\\times": operator.mul}


@pytest.fixture(scope="module")
def problems():
    return {split: arithmetic.make_problems(split, 10**6) for split in arithmetic.SIZES}


def test_answers_are_what_the_questions_say(problems):
    for problem in problems["validation"] + problems["test"]:
        first = re.match(r"Start with (\d+)\. ", problem.question)
        operations = re.findall(r"(Add|Subtract|Multiply by) (\d+)\.", problem.question)
        assert first
        assert len(operations) == 4
        number = int(first[1])
        for word, other in operations:
            number = WORDS[word](number, int(other))
            assert 0 < number <= 5000
        assert problem.answer == str(number)
        assert problem.solution.endswith(f"\n\nTherefore, the result is \\(\\boxed{{{number}}}\\).")


def test_every_step_of_a_solution_is_right_and_goes_on_from_the_last(problems):
    for problem in problems["train"]:
        begin, *steps = problem.solution.partition("\n\n")[0].split("\n")
        number = int(begin.removeprefix("1. Start with ").removesuffix("."))
        for position, line in enumerate(steps, 2):
            match = re.fullmatch(rf"{position}\. [A-Z][a-z ]+ (\d+): \\\((\d+) (\S+) (\d+) = (\d+)\\\)\.", line)
            assert match, line
            operand, left, sign, right, result = match.groups()
            assert (int(left), operand) == (number, right)
            number = SIGNS[sign](number, int(right))
            assert int(result) == number
        assert str(number) == problem.answer


def test_no_problem_is_in_two_splits(problems):
    questions = [problem.question for split in problems.values() for problem in split]
    assert len(set(questions)) == len(questions) == sum(arithmetic.SIZES.values())
    assert {split: len(rows) for split, rows in problems.items()} == arithmetic.SIZES


def test_they_are_those_of_the_records_in_results(problems):
    text = "\n".join(f"{p.question}\n{p.solution}" for split in problems.values() for p in split)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "e81c7898488fc974"


def test_a_prefix_of_a_split_is_a_prefix():
    few = arithmetic.make_problems("test", 3)
    assert few == arithmetic.make_problems("test", 7)[:3]
    assert [problem.id for problem in few] == [f"arithmetic/test/{number}" for number in (1, 2, 3)]


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("count", [None, 5, 10**6])
def test_sizes_are_told_as_they_are(split, count):
    assert len(made.make_problems("arithmetic", split, count)) == made.count_problems("arithmetic", split, count)
    if count == 5 or (split == "train" and count is None):  # the lab's other splits take seconds whole
        assert len(made.make_problems("lab", split, count)) == made.count_problems("lab", split, count)


def test_the_default_split_is_the_one_that_is_needed():
    assert made.task_split(DataConfig(source="arithmetic"), "validation") == "validation"
    assert made.task_split(DataConfig(source="lab", split="test"), "validation") == "test"
    with pytest.raises(ConfigError, match="data source lab has the splits train, validation, test, got 'dev'"):
        made.task_split(DataConfig(source="lab", split="dev"), "train")


def test_the_lab_s_problems_are_its_own():
    assert list(made.make_problems("lab", "test", 4, 3)) == counts.make_problems("test", 4, 3)


def test_as_a_benchmark():
    (entry,) = benchmarks.find_benchmarks(["arithmetic"])
    loaded = benchmarks.load(entry, limit=20)
    assert loaded.source == "arithmetic"
    assert [(p.question, p.answer, p.solution) for p in loaded.problems] == [
        (p.question, p.answer, "") for p in arithmetic.make_problems("test", 20)
    ]
    assert len(benchmarks.load(entry).problems) == 1000
