"""Answers side by side: nothing of a text is lost, and the first difference is the first."""

from itertools import zip_longest

from hypothesis import example, given
from hypothesis import strategies as st

from opasd.analysis.compare import Divergence, first_divergence, reasoning_steps

BASE = "Plan: Bob, Ann.\nAnn: 4 + 3 = 7.\nBob: 7 * 2 = 14.\nAnswer: \\boxed{14}"
OTHER = "Plan: Bob, Ann.\nAnn: 4 + 3 = 7, minus 1 = 6.\nBob: 6 * 2 = 12.\nAnswer: \\boxed{12}"


def test_the_step_in_which_they_part():
    assert reasoning_steps(BASE)[1] == "Ann: 4 + 3 = 7.\n"
    divergence = first_divergence(BASE, OTHER)
    assert divergence == Divergence(step=1, first=16, second=16)
    assert BASE[divergence.first :].startswith("Ann: 4 + 3 = 7.")


def test_sentences_of_one_paragraph_are_steps_and_decimals_are_not():
    assert reasoning_steps("It is 3.5 here. Wait! Is it? Yes") == ["It is 3.5 here. ", "Wait! ", "Is it? ", "Yes"]


@given(st.text(alphabet="ab. \n!?\r\u2028é", max_size=60) | st.text())
@example("")
@example("\n\n")
def test_steps_joined_are_the_text(text):
    assert "".join(reasoning_steps(text)) == text


@given(st.text(alphabet="ab. \n", max_size=40), st.text(alphabet="ab. \n", max_size=40))
def test_what_comes_before_is_the_same(first, second):
    divergence = first_divergence(first, second)
    if divergence is None:
        assert first.strip() == second.strip()
        return
    steps = reasoning_steps(first)
    before = [*zip_longest(steps, reasoning_steps(second), fillvalue="")][: divergence.step]
    assert all(own.strip() == other.strip() for own, other in before)
    assert sum(map(len, steps[: divergence.step])) == divergence.first
    assert second[divergence.second :].strip() != first[divergence.first :].strip()


def test_a_wall_of_text_has_steps_too():
    divergence = first_divergence("a " * 500_000, "a " * 499_999 + "b")
    assert divergence is not None
    assert (divergence.step, divergence.first) == (2499, 999_600)
