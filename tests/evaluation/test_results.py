"""Results: measures of known outcomes, differences on the same problems, and the table."""

import pytest

from opasd.evaluation.results import build, gather, notes, table
from opasd.evaluation.samples import GradedSample, SampleKey


def outcomes(*problems: str) -> dict[str, list[GradedSample]]:
    """`cw-t!` a problem: correct, wrong, no answer, truncated, failed; the n-th sample has 10 · n tokens."""
    verdicts = {"c": "correct", "w": "wrong", "-": "no_answer", "t": "truncated", "!": "grader_failed"}
    answers = {"c": "1", "w": "2", "!": "3"}
    return {
        f"p{number}": [
            GradedSample(10 * position, letter == "t", verdicts[letter], answers.get(letter))
            for position, letter in enumerate(problem, 1)
        ]
        for number, problem in enumerate(problems)
    }


def test_one_target_on_one_benchmark():
    results = build({("base", "aime24", 100): outcomes("ccww", "c-t!", "wwww")})
    (result,) = results["results"]
    assert (result["problems"], result["samples"]) == (3, 4)
    assert result["verdicts"] == {"correct": 3, "wrong": 6, "no_answer": 1, "truncated": 1, "grader_failed": 1}
    assert result["avg"]["mean"] == pytest.approx((0.5 + 0.25 + 0) / 3)
    assert list(result["pass"]) == list(result["maj"]) == ["1", "2", "3", "4"]
    assert result["pass"]["1"] == result["avg"]
    assert result["avg"]["low"] < result["avg"]["these"]["low"] < result["avg"]["these"]["high"] < result["avg"]["high"]
    assert result["gpass"]["4"]["0.5"]["mean"] == pytest.approx(1 / 3)
    assert result["gpass"]["4"]["1.0"]["mean"] == 0
    assert set(result["gpass"]) == {"2", "4"}
    assert result["gpass"]["2"]["mean"]["mean"] == pytest.approx((1 / 6 + 0 + 0) / 3)
    assert result["pass"]["2"]["mean"] == pytest.approx((5 / 6 + 1 / 2 + 0) / 3)
    assert result["pass"]["4"]["mean"] == pytest.approx(2 / 3)
    assert result["maj"]["4"]["mean"] == pytest.approx((1 / 2 + 1 / 2 + 0) / 3)
    assert result["tokens"]["mean"] == result["tokens"]["median"] == 25
    assert result["truncated"]["mean"] == pytest.approx(1 / 12)
    assert result["per_problem"]["p1"] == {"correct": 1, "tokens": 25}
    assert results["differences"] == results["averages"] == []


def test_several_targets_are_compared_on_the_same_problems():
    first, second = outcomes("ccww", "cwww", "wwww"), outcomes("cccw", "ccww", "cwww")
    both = {("base", "a", 9): first, ("base", "b", 9): second, ("new", "a", 9): second, ("new", "b", 9): second}
    results = build(both)
    differences = {(d["target"], d["benchmark"]): d for d in results["differences"]}
    assert set(differences) == {("new", "a"), ("new", "b"), ("new", None)}
    assert differences["new", "a"]["avg"]["mean"] == 0.25
    assert differences["new", "a"]["avg"]["low"] < 0.25 < differences["new", "a"]["avg"]["high"]
    assert all(0 < row["p"] <= row["p_holm"] <= 1 for row in results["differences"])
    assert differences["new", "b"]["p"] == 1
    assert differences["new", "a"]["pass"]["mean"] == pytest.approx(1 / 3)
    assert differences["new", "b"]["tokens"] == {"mean": 0, "low": 0, "high": 0}
    assert differences["new", None]["avg"]["mean"] == pytest.approx(0.125)
    averages = {average["target"]: average for average in results["averages"]}
    assert averages["base"]["avg"]["mean"] == pytest.approx((0.25 + 0.5) / 2)
    assert averages["base"]["benchmarks"] == ["a", "b"]
    text = table(results)
    assert "Holm's correction for the 3 comparisons" in " ".join(notes(results))
    narrow = table(results, these=True)
    assert "these problems alone" in notes(results, these=True)[0]
    assert narrow != text
    assert "against base" in text
    assert "| +25.0 [" in text
    assert text.count("\n") == 2 + 4 + 2
    assert len({line.count("|") for line in text.splitlines()}) == 1


def test_only_what_is_complete_has_results():
    def sample(target: str, number: int) -> tuple[SampleKey, dict[int, GradedSample]]:
        return SampleKey(target, "a", "p", number), {9: GradedSample(1, False, "correct", "1")}

    rows = [sample("whole", 0), sample("whole", 1), sample("half", 0)]
    assert list(gather(dict(rows), {"a": ["p"]}, ["whole", "half"], 2)) == [("whole", "a", 9)]
    assert gather(dict(rows), {"a": ["p", "q"]}, ["whole", "half"], 2) == {}
    assert table({"results": [], "differences": [], "averages": []}) == ""


def test_the_table_rounds_as_the_report_does():
    """0.3625 is 36.3, where binary rounding to even would say 36.2."""
    some, none = outcomes(*["c"] * 29, *["w"] * 51), outcomes(*["w"] * 80)
    for first, second, gap in ((none, some, "+36.3"), (some, none, "−36.3")):
        text = table(build({("a", "lab", 9): first, ("b", "lab", 9): second}))
        assert "| 36.3 [" in text
        assert f"| {gap} [" in text
    some, none = outcomes(*["c"] * 153, *["w"] * 1847), outcomes(*["w"] * 2000)
    text = table(build({("a", "lab", 9): none, ("b", "lab", 9): some}))
    assert "| 7.7 [" in text
    assert "| +7.7 [" in text
