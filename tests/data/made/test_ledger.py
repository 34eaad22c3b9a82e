"""The task `ledger`: answers by an independent reader of the text, near entries, pointers, splits, determinism."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.config import DataConfig
from opasd.data.made import make_problems as make_of
from opasd.data.made.ledger import LEVELS, make_problems, make_puzzles
from opasd.data.sets import load_set

SPLITS = ("pretrain", "train", "validation", "test")


def read(question):
    """Each entry as (number, words), and the words of the question; shares no code with the package."""
    *lines, asked = question.splitlines()
    entries = [(line.split(". ")[0], re.findall(r"\w+", line.split(". ")[1])) for line in lines]
    words = re.findall(r"\w+", asked)
    return entries, (words[4], words[7], words[9])


@given(st.sampled_from(SPLITS), st.integers(0, 10**6), st.sampled_from(LEVELS))
def test_answers_pointers_and_near_entries_are_those_of_the_text(split, seed, level):
    for problem in make_problems(split, 2, seed, level):
        entries, asked = read(problem.question)
        assert [number for number, _ in entries] == [str(number) for number in range(1, 41)]
        hits = [(number, words, sum(word in words for word in asked)) for number, words in entries]
        used = [(number, words) for number, words, same in hits if same == 3]
        amounts = [int(words[words.index("paid") + 1]) for _, words in used]
        assert (problem.pointers, problem.answer) == (", ".join(n for n, _ in used), str(sum(amounts)))
        assert (len(used), sum(same == 2 for *_, same in hits)) == (4, 6 * level)
        assert sum(amounts) <= 36
        assert problem.solution.endswith(
            f"{' + '.join(map(str, amounts))} = {problem.answer} dollars. The answer is \\boxed{{{problem.answer}}}."
        )
        for number, amount in zip((n for n, _ in used), amounts, strict=True):
            assert f"- Entry {number}: {amount} dollars\n" in problem.solution


def test_splits_share_no_problem_and_a_longer_set_begins_with_the_shorter():
    sets = {split: {problem.question for problem in make_problems(split, 30)} for split in SPLITS}
    assert sum(map(len, sets.values())) == len(set.union(*sets.values())) == 120
    assert make_problems("train", 9)[:5] == make_problems("train", 5) != make_problems("train", 5, 1)
    assert list(make_of("ledger", "train", 5)) == make_problems("train", 5)
    assert list(load_set(DataConfig(source="ledger", sample=3, seed=0), "validation")) == make_problems("validation", 3)


@pytest.mark.parametrize("arguments", [("dev", 1), ("train", 1, 0, 9)])
def test_unknown_splits_and_levels_are_refused(arguments):
    with pytest.raises(ValueError, match="must be one of"):
        make_puzzles(*arguments)
