"""Answers that speak of what only the teacher sees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.leaks import leak_pattern, telltales
from opasd.config import PromptConfig


def test_the_packages_wording_tells_of_the_reference_solution():
    phrases = telltales(PromptConfig())
    assert ("reference", "solution") in phrases
    assert ("final", "answer") not in phrases  # the student is told to give one
    assert all(len(word) >= 5 for phrase in phrases for word in phrase)


@pytest.mark.parametrize(
    ("text", "leaks"),
    [
        ("As the reference solution shows, 5 + 5 = 10.", True),
        ("The Reference\n  Solution is right.", True),
        ("Please reason step by step: the final answer within the box is 5.", False),
        ("The reference is a solution.", False),
        ("My preference solution, the reference solutions.", False),
        ("", False),
    ],
)
def test_by_hand(text, leaks):
    pattern = leak_pattern(PromptConfig())
    assert pattern is not None
    assert (pattern.search(text) is not None) == leaks


def test_a_wording_without_telltales_has_no_pattern():
    assert leak_pattern(PromptConfig(reference="The final answer to this problem is {answer}.\n\n")) is None
    assert leak_pattern(PromptConfig(reference="Hint: {solution}\n\n")) is None


def test_what_the_student_is_told_is_no_leak():
    reference = "Here is a worked example: {solution}\nFollow the worked example.\n"
    assert leak_pattern(PromptConfig(reference=reference)) is not None
    assert leak_pattern(PromptConfig(reference=reference, system="You may be shown a worked example.")) is None


def test_words_on_two_sides_of_a_gap_are_no_phrase():
    assert telltales(PromptConfig(reference="Known {solution} facts. Other, words 7 again\n")) == frozenset()


@given(st.text(alphabet="abcde ({[.*+?\\^$|)]}{}\n", max_size=60))
def test_any_wording_makes_a_pattern_that_finds_its_own_phrases(wording):
    prompts = PromptConfig(reference=f"{wording.replace('{', '{{').replace('}', '}}')}{{solution}}")
    pattern = leak_pattern(prompts)
    for first, second in telltales(prompts):
        assert pattern is not None
        assert pattern.search(f"x. {first.upper()}\t{second} y")
