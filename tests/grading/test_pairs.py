"""The hand-checked pairs: every verdict as stated, whatever the pair says."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from opasd.grading.pool import Grader, Job
from opasd.grading.verdict import is_correct, quick_verdict
from tests.grading.pairs import BOXED, KINDS, RESPONSES, box


class Graders(NamedTuple):
    """One that waits for every comparison, however slow the machine, and one for those that never end."""

    patient: Grader
    hasty: Grader

    def verdict(self, job: Job, expected: str) -> str:
        return (self.hasty if expected == "grader_failed" else self.patient).grade(job).verdict


@pytest.fixture(scope="module")
def graders() -> Iterator[Graders]:
    with Grader(workers=1, seconds=120) as patient, Grader(workers=1, seconds=0.5) as hasty:
        yield Graders(patient, hasty)


def test_there_are_enough_and_none_twice():
    pairs = [(gold, response) for _, gold, response, _ in (*BOXED, *RESPONSES)]
    assert len(pairs) == len(set(pairs)) >= 250
    assert {verdict for *_, verdict in (*BOXED, *RESPONSES)} == {"correct", "wrong", "no_answer", "grader_failed"}


@pytest.mark.parametrize(("case", "gold", "answer", "verdict"), BOXED, ids=lambda part: part[:24])
def test_boxed_answers(graders, case, gold, answer, verdict):
    assert graders.verdict(Job(box(answer), gold), verdict) == verdict


@pytest.mark.parametrize(
    ("case", "gold", "response", "verdict"), RESPONSES, ids=lambda part: part[:24].encode("ascii", "replace").decode()
)
def test_whole_responses(graders, case, gold, response, verdict):
    assert graders.verdict(Job(response, gold), verdict) == verdict
    cut = {"no_answer": "truncated"}.get(verdict, verdict)
    assert graders.verdict(Job(response, gold, finish_reason="length"), verdict) == cut


@pytest.mark.parametrize(("kind", "gold", "answer", "verdict"), KINDS)
def test_kinds_of_answers(graders, kind, gold, answer, verdict):
    assert graders.verdict(Job(box(answer), gold, kind), verdict) == verdict


def test_the_quick_grader_never_contradicts_the_other():
    """It may leave a pair open, which counts as not right."""
    for _, gold, answer, verdict in BOXED:
        quick = quick_verdict(answer, gold) if answer.strip() else False
        assert quick in (None, verdict == "correct"), (gold, answer)
        assert is_correct(box(answer), gold) <= (verdict == "correct")


@pytest.mark.parametrize(("case", "gold", "answer", "verdict"), BOXED[::7], ids=lambda part: part[:24])
def test_an_answer_equals_itself(graders, case, gold, answer, verdict):
    assert graders.patient.grade(Job(box(gold), gold)).verdict == "correct"
