"""Answers of several runs to one problem: where they part, and in what they differ."""

from pathlib import Path

from opasd.report.run import RecordedSample, Run
from opasd.report.side_by_side import comparisons
from tests.report.made import run_with_text


def test_side_by_side_marks_where_answers_part():
    first = run_with_text("q", "base", "Same. Then wrong.\nEnd")
    second = run_with_text("q", "other", "Same. Then <right>.\nEnd")
    html, count = comparisons([first, second])
    assert count == 1
    assert '<span class="same">Same. </span><mark>Then &lt;right&gt;.</mark>\nEnd' in html
    assert "parts at step 2" in html


def test_a_problem_stands_side_by_side_once_with_the_sample_that_says_most():
    def run(name, verdicts):
        samples = [
            RecordedSample("s", None, "p", n, "q", "", f"{name} {n}", 5, verdict, False)
            for n, verdict in enumerate(verdicts)
        ]
        return Run(name, Path(), "evaluated", samples=samples)

    html, count = comparisons([run("a", [True, False, False]), run("b", [True, True, False])])
    assert (count, html.count("<details")) == (1, 1)
    assert "a 1" in html


def test_what_differs_from_the_first_answer():
    def run(name, text, tokens, correct):
        sample = RecordedSample("s", None, "p", 0, "q", "", text, tokens, correct, False)
        return Run(name, Path(), "evaluated", samples=[sample])

    first = run("a", "Plan.\nAnn: 4 + 3 = 7.", 30, False)
    html, _ = comparisons([first, run("b", "Wait. Plan.\nAnn: 6. Wait, maybe.", 44, True)])
    assert "44 tokens (+14), +1 maybe, +2 wait, parts at step 1" in html
    assert '<span class="badge good">right</span><span class="badge good">gained</span>' in html
    for other, badge in ((False, "lost"), (True, "gained"), (None, "")):
        pair = [run("a", "a", 1, not other if other is not None else True), run("b", "b", 1, other)]
        assert [word for word in ("lost", "gained") if f">{word}</span>" in comparisons(pair)[0]] == [badge] * bool(
            badge
        )
    assert "says the same" in comparisons([run("a", "a", 1, True), run("b", "a\n", 1, True)])[0]
