"""The explorer of samples: what fits is in the page, and all is in side pages."""

from pathlib import Path

import pytest

from opasd.report.build import build_report
from opasd.report.run import RecordedSample, Run
from opasd.report.samples import LONGEST, explorer
from opasd.report.text import embedded
from tests.report.made import run_with_text


def test_samples_that_fit_are_all_in_the_page():
    explored = explorer([run_with_text("text")])
    assert (explored.shown, explored.total, explored.side) == (2, 2, [])
    assert [row[8] for row in explored.data["rows"]] == ["text", "text"]


def test_samples_that_do_not_fit_are_spread_evenly_and_whole_in_side_files():
    runs = []
    for name in ("a", "b"):
        samples = [
            RecordedSample("set", n, f"p{n}", 0, "q", "7", f"{n} " + "x" * 500, 10, True, False) for n in range(100)
        ]
        runs.append(Run(name, Path(), "evaluated", samples=samples))
    explored = explorer(runs, page_bytes=12_000, side_bytes=40_000)
    steps = [[row[2] for row in explored.data["rows"] if row[0] == run] for run in (0, 1)]
    assert len(steps[0]) == len(steps[1]) == explored.shown / 2
    assert steps[0][0] == 0
    assert steps[0][-1] >= 80
    assert sum(len(side["rows"]) for side in explored.side) == 200 == explored.total
    assert len(explored.side) > 1


def test_a_completion_of_a_hundred_thousand_tokens_is_cut_in_the_page_and_whole_beside_it(tmp_path):
    text = "begin " + "word " * 100_000 + "end"
    run = Run(
        "long", tmp_path, "evaluated", samples=[RecordedSample("s", 1, "p", 0, "q", "", text, 100_002, False, True)]
    )
    made = build_report([run])
    (row,) = explorer([run]).data["rows"]
    assert len(row[8]) <= LONGEST
    assert row[8].endswith("end")
    (side,) = made.side_pages.values()
    assert text in side
    assert 'href="samples/part-001.html"' in made.page.html()


@pytest.mark.parametrize("text", ["漢<" * 11_000, "\x01" * 22_000, "\U0001f642&" * 8_000])
def test_the_page_is_bounded_by_what_is_in_it(text):
    """Questions, answers and characters that take several bytes or escapes count as what they are."""
    samples = [RecordedSample("s", 1, f"p{n}", 0, f"{n}{text}", text, f"{n}{text}", 9, True, False) for n in range(40)]
    explored = explorer([Run("a", Path(), "evaluated", samples=samples)], page_bytes=1_000_000)  # pyright: ignore[reportArgumentType]
    assert 0 < explored.shown < 40
    assert len(embedded(explored.data).encode()) < 1_100_000
