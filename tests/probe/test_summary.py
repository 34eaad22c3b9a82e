"""The probe's figures against plain loops in exact fractions, and on rows whose truth is known."""

import itertools
import json
import statistics
from dataclasses import asdict, replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.evaluation.statistics import estimate, gap_estimate, mean_of
from opasd.probe import measure as probe
from opasd.probe import summary as probe_summary
from opasd.probe.measure import GradedAnswer, Probe, Trajectory
from opasd.probe.summary import summarise

TEACHER = GradedAnswer("data", "p", 0, True, "stop", 7, leaks=None)


def answer(log_ratio, attention=None, *, control=None, correct=True, finish="stop"):
    """A row of these tokens."""
    reading = {"log_ratio": log_ratio, "divergence": [abs(x) for x in log_ratio], "clipped": [0.0] * len(log_ratio)}
    if attention is not None:
        reading |= {"attention_divergence": attention, "solution_mass": [0.5] * len(attention)}
    if control is not None:
        reading["control"] = control
    reading = {name: [float(value) for value in values] for name, values in reading.items()}
    return Trajectory("data", "p", 0, correct, finish, len(log_ratio), None, **probe.measures(reading))


def summary_of(*problems):
    return summarise(Probe([list(rows) for rows in problems], [TEACHER] * len(problems)))


ROW = answer([-0.5] * 20, [0.05] * 20)

# ---- against loops --------------------------------------------------------------------------------------------------

TOKENS = st.lists(st.integers(-1, 1), min_size=1, max_size=24)
ANSWERS = st.tuples(TOKENS, st.booleans(), st.sampled_from(["stop", "stop", "length"]))
PROBLEMS = st.integers(1, 4).flatmap(lambda k: st.lists(st.lists(ANSWERS, min_size=k, max_size=k), min_size=1))


def rows_of(problems):
    """Attention has the tokens of the log ratio backwards, squared and counted up."""
    return [
        [answer(values, looks(values), correct=correct, finish=finish) for values, correct, finish in answers]
        for answers in problems
    ]


def looks(values):
    return [value * value + index % 3 for index, value in enumerate(reversed(values))]


def cut(values):
    """Ten parts, dealt out by hand."""
    sizes = [len(range(number, len(values), 10)) for number in range(10)]
    ends = list(itertools.accumulate(sizes, initial=0))
    return [values[a:b] for a, b in itertools.pairwise(ends)]


def mean(values):
    return Fraction(sum(values)) / len(values)


def compare(problems, value):
    """Each problem's share of pairs in which the right answer's value is higher, and all pairs' number."""
    shares, pairs = [], 0
    for answers in problems:
        finished = [(value(values), correct) for values, correct, finish in answers if finish == "stop"]
        won = [
            Fraction((a > b) - (a < b) + 1, 2)
            for (a, right), (b, wrong) in itertools.product(finished, finished)
            if right and not wrong and a is not None and b is not None
        ]
        shares += [float(mean(won))] if won else []
        pairs += len(won)
    return shares, pairs


@settings(max_examples=60)
@given(problems=PROBLEMS)
def test_preferences_are_means_over_problems_by_plain_loops(problems):
    summary = summary_of(*rows_of(problems))
    for name, verdict, value in (
        ("preference", "verdict", mean),
        ("attention_preference", "attention_verdict", lambda values: -mean(looks(values))),
        (
            "preference_before_the_end",
            "verdict_before_the_end",
            lambda values: mean(values[: -len(cut(values)[9])]) if len(values) >= 10 else None,
        ),
    ):
        shares, pairs = compare(problems, value)
        if not shares:
            assert (summary[name], summary[verdict]) == (None, "none")
            continue
        low, high = estimate(shares)[1:]
        assert summary[name] == pytest.approx(
            {"mean": statistics.fmean(shares), "low": low, "high": high, "problems": len(shares), "pairs": pairs}
        )
        expected = "above" if low > 0.5 else "below" if high < 0.5 else "open"
        assert summary[verdict] == (expected if len(shares) >= probe_summary.FEWEST else "too few")


@settings(max_examples=60)
@given(problems=PROBLEMS, lacking=st.integers(0, 40))
def test_the_control_is_of_the_same_problems_by_plain_loops(problems, lacking):
    """The control's tokens are those of the attention, turned around; one problem has none."""
    rows = rows_of(problems)
    rows = [
        [answer(v, control=None if index == lacking else looks(v)[::-1], correct=c, finish=f) for v, c, f in answers]
        for index, answers in enumerate(problems)
    ]
    summary = summary_of(*rows)
    compared = [answers for index, answers in enumerate(problems) if index != lacking]

    def first(values):
        return mean(values[: -len(cut(values)[9])]) if len(values) >= 10 else None

    for name, value in (("", mean), ("_before_the_end", first)):
        own, _ = compare(compared, value)
        other, _ = compare(compared, lambda values, value=value: value(looks(values)[::-1]))
        if not own:
            assert summary[f"control_preference{name}"] is summary[f"own_adds{name}"] is None
            continue
        assert summary[f"control_preference{name}"] == pytest.approx(estimate(other)._asdict())
        adds = gap_estimate([with_own - with_other for with_own, with_other in zip(own, other, strict=True)])
        assert summary[f"own_adds{name}"] == pytest.approx(adds._asdict(), abs=1e-12)


@settings(max_examples=60)
@given(problems=PROBLEMS)
def test_right_beside_wrong_is_over_problems_with_both(problems):
    summary = summary_of(*rows_of(problems))
    finished = [
        [([values for values, c, f in answers if f == "stop" and c == kind]) for kind in (True, False)]
        for answers in problems
    ]
    both = [sides for sides in finished if all(sides)]
    for name, side in (("attention_divergence_right", 0), ("attention_divergence_wrong", 1)):
        means = [mean([mean(looks(values)) for values in sides[side]]) for sides in both]
        assert (summary[name] and summary[name]["mean"]) == (pytest.approx(float(mean(means))) if means else None)
    long = [[[values for values in side if len(values) >= 10] for side in sides] for sides in both]
    long = [sides for sides in long if all(sides)]
    if not long:
        assert summary["tenths"] == {"log_ratio": None, "divergence": None, "attention_divergence": None}
        assert (summary["log_ratio_difference"], summary["late"]) == (None, None)
        return
    for name, of in (("log_ratio", list), ("divergence", lambda v: list(map(abs, v))), ("attention_divergence", looks)):
        assert summary["tenths"][name]["problems"] == len(long)
        for kind, side in (("right", 0), ("wrong", 1)):
            expected = [
                mean([mean([sum(cut(of(values))[number]) for values in sides[side]]) for sides in long])
                for number in range(10)
            ]
            assert summary["tenths"][name][kind] == pytest.approx([float(value) for value in expected])
    apart = [mean([sum(v) for v in right]) - mean([sum(v) for v in wrong]) for right, wrong in long]
    last = [mean([sum(cut(v)[9]) for v in right]) - mean([sum(cut(v)[9]) for v in wrong]) for right, wrong in long]
    interval = mean_of([float(value) for value in apart])
    assert summary["log_ratio_difference"] == pytest.approx(interval._asdict(), abs=1e-12)
    if interval.low > 1e-9 or interval.high < -1e-9:
        assert summary["late"] == pytest.approx(float(mean(last) / mean(apart)))
    elif interval.low < -1e-9 and interval.high > 1e-9:
        assert summary["late"] is None


@settings(max_examples=40)
@given(problems=PROBLEMS)
def test_figures_of_all_answers_are_means_over_problems_by_plain_loops(problems):
    summary, rows = summary_of(*rows_of(problems)), rows_of(problems)
    for name, wanted in (("log_ratio_right", True), ("log_ratio_wrong", False)):
        matching = [[row.log_ratio for row in answers if row.correct == wanted] for answers in rows]
        means = [statistics.fmean(values) for values in matching if values]
        assert (summary[name] and summary[name]["mean"]) == (pytest.approx(statistics.fmean(means)) if means else None)
    for name in ("divergence", "attention_divergence"):
        means = [statistics.fmean(getattr(row, name) for row in answers) for answers in rows]
        assert summary[name]["mean"] == pytest.approx(statistics.fmean(means))
    for name in ("top_share", "clipped", "solution_mass"):
        assert summary[name] is None or 0 <= summary[name]["low"] <= summary[name]["high"] <= 1
    flat = [row for answers in rows for row in answers]
    assert summary["student"]["accuracy"]["mean"] == pytest.approx(statistics.fmean(row.correct for row in flat))
    assert summary["student"]["tokens"]["mean"] == pytest.approx(statistics.fmean(row.tokens for row in flat))
    assert summary["student"]["truncated"]["mean"] == pytest.approx(
        statistics.fmean(row.finish_reason == "length" for row in flat)
    )
    assert summary["teacher"]["accuracy"] == estimate([1.0] * len(rows))._asdict()


@settings(max_examples=20)
@given(problems=PROBLEMS)
def test_rows_read_back_from_json_say_the_same(problems):
    rows = rows_of(problems)
    back = [[Trajectory(**json.loads(json.dumps(asdict(row)))) for row in answers] for answers in rows]
    assert back == rows
    assert json.loads(json.dumps(summary_of(*rows))) == summary_of(*back)


# ---- by hand --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wins", "losses", "verdict"),
    [(30, 0, "above"), (2, 28, "below"), (16, 15, "open"), (9, 0, "too few"), (0, 0, "none")],
)
def test_what_the_interval_says_of_one_half(wins, losses, verdict):
    """Of the log ratio over all tokens, over those before the end, and of attention, each by itself."""
    for high, low, name in (
        (answer([0] * 20), answer([-1] * 20), "verdict"),
        (answer([0] * 18 + [-9, 0]), answer([-1] * 18 + [0, 0]), "verdict_before_the_end"),
        (answer([0] * 20, [1] * 20), answer([0] * 20, [2] * 20), "attention_verdict"),
    ):
        won, lost = [high, replace(low, correct=False)], [low, replace(high, correct=False)]
        problems = [won] * wins + [lost] * losses or [[high, low]]
        assert summary_of(*problems)[name] == verdict


def test_a_difference_that_is_all_in_the_last_tenth():
    problem = [answer([-1] * 18 + [0, 0]), answer([-1] * 18 + [-4, -3], correct=False)]
    summary = summary_of(*[problem] * 12)
    assert (summary["preference"]["mean"], summary["verdict"]) == (1, "above")
    preferred = {**estimate([0.5] * 12)._asdict(), "problems": 12, "pairs": 12}
    assert summary["preference_before_the_end"] == preferred
    assert summary["verdict_before_the_end"] == "open"
    assert summary["late"] == 1
    assert summary["log_ratio_difference"] == {"mean": 7, "low": 7, "high": 7}
    assert summary["tenths"]["log_ratio"] == {"problems": 12, "right": [-2] * 9 + [0], "wrong": [-2] * 9 + [-7]}


def test_a_difference_before_the_last_tenth_and_against_it():
    early = [answer([0] * 20), answer([-1] * 18 + [0, 0], correct=False)]
    assert summary_of(early)["late"] == 0
    assert summary_of(early)["preference_before_the_end"]["mean"] == 1
    torn = [answer([0] * 18 + [-2, -4]), answer([-1] * 18 + [0, 0], correct=False)]
    assert summary_of(torn)["late"] == pytest.approx(-6 / 12)
    against = [answer([-1] * 20), answer([0] * 20, correct=False)]
    assert summary_of(against)["late"] == pytest.approx(0.1)
    assert summary_of(early, against)["late"] is None  # the difference may be of either sign
    assert summary_of([answer([0] * 20), answer([0] * 20, correct=False)])["late"] is None


def test_each_problem_counts_once_and_one_with_only_one_kind_not_at_all():
    right, wrong, short = answer([0] * 10), answer([-1] * 10, correct=False), answer([-9] * 9)
    cut_off, other = answer([-9] * 10, finish="length"), answer([-3] * 10, correct=False)
    summary = summary_of([right, wrong, wrong, wrong, cut_off, short], [right, other], [wrong, wrong], [right, cut_off])
    assert summary["tenths"]["log_ratio"] == {"problems": 2, "right": [0] * 10, "wrong": [-2] * 10}
    assert summary["preference"]["pairs"] == 7  # a short answer is a whole one
    assert summary["preference_before_the_end"]["pairs"] == 4


def test_attention_the_other_way_round_and_alike():
    near, far = [0.1] * 12, [0.2] * 12
    reversed_ = [answer([0] * 12, far), answer([-1] * 12, near, correct=False)]
    summary = summary_of(*[reversed_] * 10)
    assert (summary["attention_preference"]["mean"], summary["attention_verdict"]) == (0, "below")
    assert summary["attention_divergence_right"]["mean"] == pytest.approx(0.2)
    assert summary["attention_divergence_wrong"]["mean"] == pytest.approx(0.1)
    assert summary["verdict"] == "above"
    alike = summary_of(*[[answer([0] * 12, near), answer([-1] * 12, near, correct=False)]] * 10)
    assert (alike["attention_preference"]["mean"], alike["attention_verdict"]) == (0.5, "open")


def test_attention_that_was_not_measured_has_no_figure():
    summary = summary_of([answer([0] * 12, control=[0] * 12), answer([-1] * 12, control=[0] * 12, correct=False)])
    assert {name for name, value in summary.items() if value is None} == {
        "attention_preference",
        "attention_divergence_right",
        "attention_divergence_wrong",
        "attention_divergence",
        "solution_mass",
    }
    assert (summary["attention_verdict"], summary["tenths"]["attention_divergence"]) == ("none", None)
    assert summary["tenths"]["log_ratio"]["problems"] == 1
    assert summary_of([ROW])["log_ratio_wrong"] is None


def test_leaks_are_shares_of_answers_where_the_wording_can_tell():
    rows = [[replace(ROW, leaks=leak) for leak in leaks] for leaks in ((True, False), (False, False))]
    summary = summarise(Probe(rows, [replace(TEACHER, leaks=True), replace(TEACHER, leaks=False)]))
    assert summary["student"]["leaks"] == estimate([0.5, 0.0])._asdict()
    assert summary["teacher"]["leaks"] == estimate([1.0, 0.0])._asdict()
    assert summary_of([ROW])["student"]["leaks"] is None
