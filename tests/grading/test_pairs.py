"""The hand-checked pairs: every verdict as stated, every pair within the time, whatever it says."""

import time
from collections.abc import Iterator

import pytest

from opasd.grading.pool import Grader, Job
from opasd.grading.verdict import is_correct, quick_verdict
from tests.grading.pairs import BOXED, KINDS, RESPONSES, box

LIMIT = 5.0
"""Seconds that a pair may take."""


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    with Grader(workers=1) as grader:
        grader.grade(Job(box("2\\sqrt{3}"), "\\sqrt{12}"))  # its workers have started
        yield grader


def test_there_are_enough_and_none_twice():
    pairs = [(gold, response) for _, gold, response, _ in (*BOXED, *RESPONSES)]
    assert len(pairs) == len(set(pairs)) >= 250
    assert {verdict for *_, verdict in (*BOXED, *RESPONSES)} == {"correct", "wrong", "no_answer", "grader_failed"}


@pytest.mark.parametrize(("case", "gold", "answer", "verdict"), BOXED, ids=lambda part: part[:24])
def test_boxed_answers(grader, case, gold, answer, verdict):
    assert graded(grader, Job(box(answer), gold)) == verdict


@pytest.mark.parametrize(
    ("case", "gold", "response", "verdict"), RESPONSES, ids=lambda part: part[:24].encode("ascii", "replace").decode()
)
def test_whole_responses(grader, case, gold, response, verdict):
    assert graded(grader, Job(response, gold)) == verdict
    cut = {"no_answer": "truncated"}.get(verdict, verdict)
    assert graded(grader, Job(response, gold, finish_reason="length")) == cut


@pytest.mark.parametrize(("kind", "gold", "answer", "verdict"), KINDS)
def test_kinds_of_answers(grader, kind, gold, answer, verdict):
    assert graded(grader, Job(box(answer), gold, kind)) == verdict


def graded(grader: Grader, job: Job) -> str:
    began = time.monotonic()
    verdict = grader.grade(job).verdict
    assert time.monotonic() - began < LIMIT
    return verdict


def test_the_quick_grader_never_contradicts_the_other():
    """It may leave a pair open, which counts as not right."""
    for _, gold, answer, verdict in BOXED:
        quick = quick_verdict(answer, gold) if answer.strip() else False
        assert quick in (None, verdict == "correct"), (gold, answer)
        assert is_correct(box(answer), gold) <= (verdict == "correct")


@pytest.mark.parametrize(("case", "gold", "answer", "verdict"), BOXED[::7], ids=lambda part: part[:24])
def test_an_answer_equals_itself(grader, case, gold, answer, verdict):
    assert grader.grade(Job(box(gold), gold)).verdict == "correct"
