"""The hand-checked pairs: every verdict as stated, whatever the pair says. All share one start of the workers."""

from collections.abc import Iterator

import pytest

from opasd.grading.pool import Grader, Job
from opasd.grading.verdict import is_correct, quick_verdict
from tests.grading.near_misses import FIXED, HELD
from tests.grading.pairs import BOXED, KINDS, RESPONSES, TOLERANT, box

CUT = {"no_answer": "truncated"}
BY_CASE = {case: [pair for pair in BOXED if pair[0] == case] for case, *_ in BOXED}
RESPONSES_BY_CASE = {case: [pair for pair in RESPONSES if pair[0] == case] for case, *_ in RESPONSES}
KINDS_BY_KIND = {kind: [pair for pair in KINDS if pair[0] == kind] for kind, *_ in KINDS}


class Graders:
    """One that waits for every comparison, however slow the machine, and one for those that never end."""

    def __init__(self, patient: Grader, hasty: Grader) -> None:
        self.patient, self.hasty = patient, hasty

    def differing(self, jobs: list[tuple[Job, str]]) -> list[tuple[str, str, str]]:
        """Return gold, text and verdict of the jobs with another verdict than the one beside them."""
        differing = []
        for grader, own in (
            (self.patient, [pair for pair in jobs if pair[1] != "grader_failed"]),
            (self.hasty, [pair for pair in jobs if pair[1] == "grader_failed"]),
        ):
            graded = grader.grade_all(job for job, _ in own)
            differing += [
                (job.gold[:200], job.text[:200], verdict.verdict)
                for (job, expected), verdict in zip(own, graded, strict=True)
                if verdict.verdict != expected
            ]
        return differing


@pytest.fixture(scope="module")
def graders() -> Iterator[Graders]:
    with Grader(workers=1, seconds=60) as patient, Grader(workers=1, seconds=0.25) as hasty:
        yield Graders(patient, hasty)


def test_there_are_enough_and_none_twice():
    pairs = [(gold, response) for _, gold, response, _ in (*BOXED, *RESPONSES)]
    assert len(pairs) == len(set(pairs)) >= 700
    assert {verdict for *_, verdict in (*BOXED, *RESPONSES)} == {"correct", "wrong", "no_answer", "grader_failed"}


@pytest.mark.parametrize("case", BY_CASE)
def test_boxed_answers(graders, case):
    assert graders.differing([(Job(box(answer), gold), verdict) for _, gold, answer, verdict in BY_CASE[case]]) == []


@pytest.mark.parametrize("case", RESPONSES_BY_CASE)
def test_whole_responses(graders, case):
    pairs = RESPONSES_BY_CASE[case]
    assert graders.differing([(Job(text, gold), verdict) for _, gold, text, verdict in pairs]) == []
    cut = [(Job(text, gold, finish_reason="length"), CUT.get(verdict, verdict)) for _, gold, text, verdict in pairs]
    assert graders.differing(cut) == []


@pytest.mark.parametrize("kind", KINDS_BY_KIND)
def test_kinds_of_answers(graders, kind):
    assert graders.differing([(Job(box(answer), gold, kind), v) for _, gold, answer, v in KINDS_BY_KIND[kind]]) == []


def test_numbers_within_a_tolerance(graders):
    jobs = [(Job(box(answer), gold, tolerance=tolerance), v) for tolerance, gold, answer, v in TOLERANT]
    assert graders.differing(jobs) == []


@pytest.mark.parametrize("pairs", [FIXED, HELD], ids=["once wrong", "never wrong"])
def test_near_misses_in_both_directions(graders, pairs):
    """Gold and answer may change places without changing the verdict."""
    jobs = [
        (Job(box(answer), gold), "correct" if same else "wrong")
        for first, second, same in pairs
        for gold, answer in ((first, second), (second, first))
    ]
    assert graders.differing(jobs) == []


def test_the_quick_grader_never_contradicts_the_other():
    """It may leave a pair open, which counts as not right."""
    for _, gold, answer, verdict in BOXED:
        quick = quick_verdict(answer, gold) if answer.strip() else False
        assert quick in (None, verdict == "correct"), (gold, answer)
        assert is_correct(box(answer), gold) <= (verdict == "correct")


def test_an_answer_equals_itself(graders):
    golds = dict.fromkeys(gold for _, gold, _, _ in BOXED if gold.strip())
    assert graders.differing([(Job(box(gold), gold), "correct") for gold in golds]) == []
