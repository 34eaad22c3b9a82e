"""The page of a probe: sentences where the numbers call for them."""

import re
import statistics

import pytest

from opasd.config import RunConfig
from opasd.probe.measure import GradedAnswer, Probe, Trajectory
from opasd.probe.page import probe_page
from opasd.probe.summary import summarise


def made(correct, ratios, attention, control=None):
    """A row of 20 tokens that has these log ratios, one of each tenth's two tokens, and this attention divergence."""
    sums = {"log_ratio": [2.0 * ratio for ratio in ratios]}
    if control is not None:
        sums["control"] = [2.0 * ratio for ratio in control]
    means = (statistics.fmean(ratios), 0.1, 0.8, 0.2, attention, None if attention is None else 0.3)
    return Trajectory("data", "p", 0, correct, "stop", 20, False, *means, control and statistics.fmean(control), sums)


def lines_of(*problems, leaks=False):
    answer = GradedAnswer("data", "p", 0, True, "stop", 20, leaks)
    measured = Probe([list(rows) for rows in problems], [answer] * len(problems))
    return probe_page("mine", RunConfig(), len(problems), 2, summarise(measured)).splitlines()


LATE = "Before the last tenth this is not shown: the teacher corrects final answers more than the steps before them."
LITTLE = "Attention's interval holds 0.5: the attention loss has little to say about right and wrong here."
HIGHER = "Attention's interval excludes 0.5: right answers have the higher divergence."


@pytest.mark.parametrize(
    ("right", "wrong", "attention", "said"),
    [
        ([-0.1] * 9 + [0], [-0.1] * 9 + [-3], (0.1, 0.1), ["favours right", LATE, LITTLE]),
        ([-0.1] * 10, [-0.2] * 10, (0.1, 0.2), ["favours right"]),
        ([-0.1] * 10, [-0.2] * 10, (0.2, 0.1), ["favours right", HIGHER]),
        ([-0.1] * 10, [-0.2] * 10, (None, None), ["favours right"]),
        ([-0.2] * 10, [-0.1] * 10, (0.1, 0.1), ["favours wrong", LITTLE]),
        ([-0.1] * 10, [-0.1] * 10, (0.1, 0.2), ["is not shown"]),
    ],
)
def test_sentences_where_the_numbers_call_for_them(right, wrong, attention, said):
    lines = lines_of(*[[made(True, right, attention[0]), made(False, wrong, attention[1])]] * 12)
    start = next(number for number, line in enumerate(lines) if line.startswith("95 % intervals")) + 1
    assert len(lines[start:]) == len(said)
    assert all(part in line for part, line in zip(said, lines[start:], strict=True))
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize(
    ("controls", "said"),
    [
        (([-0.1] * 10, [-0.2] * 10), "That it takes the problem's own reference for this is not shown."),
        (
            ([-0.2] * 9 + [-0.5], [-0.3] * 9 + [0.8]),
            "That it takes the problem's own reference for this before the last tenth is not shown.",
        ),
        (([-0.2] * 10, [-0.1] * 10), None),
    ],
)
def test_what_the_own_reference_adds(controls, said):
    rows = [made(True, [-0.1] * 10, 0.1, controls[0]), made(False, [-0.2] * 10, 0.2, controls[1])]
    lines = lines_of(*[rows] * 12)
    assert [line for line in lines if "problem's own reference" in line] == ([said] if said else [])


@pytest.mark.parametrize(("leaks", "shown"), [(True, "100.0 ["), (False, "0.0 [0.0, "), (None, "–")])
def test_a_teacher_that_speaks_of_its_context_is_told(leaks, shown):
    for rows in ([made(True, [-0.1] * 10, 0.1), made(False, [-0.2] * 10, 0.2)], [made(True, [-0.1] * 10, 0.1)]):
        lines = lines_of(*[rows] * 12, leaks=leaks)
        line = next(line for line in lines if line.startswith("speak of what only the teacher sees, %"))
        assert line.split("%", 1)[1].split("  ")[-1].strip().startswith(shown)
        assert any(line.startswith("The teacher speaks of what only it sees") for line in lines) is (leaks is True)


def test_nothing_is_said_of_the_own_reference_where_nothing_is_preferred():
    for right, wrong in (([-0.2] * 10, [-0.1] * 10), ([-0.1] * 10, [-0.1] * 10)):
        rows = [made(True, right, 0.1, [-0.1] * 10), made(False, wrong, 0.2, [-0.2] * 10)]
        assert not any("own reference" in line for line in lines_of(*[rows] * 12))


def test_that_it_is_not_shown_before_the_end_is_not_that_the_end_has_it():
    """Most of the difference lies before it, though not in every problem."""
    wins = [made(True, [0.0] * 10, 0.1), made(False, [-1.0] * 10, 0.2)]
    turned = [made(True, [-0.1] * 9 + [1.0], 0.1), made(False, [0.0] * 10, 0.2)]
    lines = lines_of(*[wins] * 7, *[turned] * 5)
    assert "Before the last tenth this is not shown." in lines
    assert any(line.endswith("17 % in the last tenth") for line in lines)


def test_tenths_and_their_share_on_the_page():
    lines = lines_of([made(True, [-0.25] * 9 + [0], 0.1), made(False, [-0.5] * 9 + [-1000], 0.1)])
    assert any(
        re.fullmatch(r"log ratio of an answer, right − wrong +2004.50 \[.*\] +100 % in the last tenth", l)
        for l in lines
    )
    at = lines.index("log ratio in each tenth of an answer's tokens, first to last")
    assert lines[at + 1].split() == ["right", "answers", *["-0.500"] * 9, "0.000"]
    assert lines[at + 2].split() == ["wrong", "answers", *["-1.000"] * 9, "-2000.000"]
    assert "Only 1 problems have both" in lines[-1]
