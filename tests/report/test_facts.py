"""The paper's numbers come out as in the paper; a file with a mistake says where it is."""

import re
from pathlib import Path

import pytest
import yaml

from opasd.errors import ConfigError
from opasd.report.build import build_report
from opasd.report.facts import parse_facts, read_facts
from opasd.report.tables import to_latex, to_markdown
from opasd.rounding import fixed

PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"
SEEDS = """\
| Seed / Statistic | AIME24 | AIME25 | AIME26 | HMMT25 | Average |
|:---|---:|---:|---:|---:|---:|
| Seed 1 | 63.27 | 50.83 | 55.33 | 34.72 | 51.04 |
| Seed 42 | 63.33 | 50.27 | 55.56 | 33.89 | 50.76 |
| Seed 123 | 63.54 | 50.63 | 54.87 | 34.36 | 50.85 |
| Mean | 63.38 | 50.58 | 55.25 | 34.32 | 50.88 |
| Std | 0.14 | 0.28 | 0.35 | 0.42 | 0.14 |
| 95 % CI | ± 0.35 | ± 0.70 | ± 0.87 | ± 1.03 | ± 0.36 |
"""


def table(name):
    return next(entry for entry in read_facts("paper").tables if entry.id == name)


def test_the_seeds_table():
    assert to_markdown(table("seeds")) == SEEDS


def test_the_best_of_a_column_is_bold_and_ties_are_all():
    text = to_latex(table("attention-divergence"))
    assert r"FKL & 39.72 & \textbf{33.05} & 33.05 & \textbf{21.11} & 31.73 \\" in text
    assert r"JSD & \textbf{41.94} & 32.50 & \textbf{35.83} & \textbf{21.11} & \textbf{32.85} \\" in text


def test_averages_are_those_of_the_paper_when_they_are_left_out():
    facts = yaml.safe_load((Path(read_facts.__code__.co_filename).parent / "paper.yaml").read_text())
    for entry in facts["tables"]:
        printed = read_facts("paper")
        rows = [
            *entry.get("rows", {}).values(),
            *(row for group in entry.get("groups", {}).values() for row in group.values()),
        ]
        averages = [row[-1] for row in rows]
        for row in rows:
            row[-1] = None
        assert printed
        again = parse_facts({"tables": [dict(entry, summarise=False)]}, "x").tables[0]
        assert [row[-1].text for row in again.rows if len(row) > 1] == [fixed(value) for value in averages]


@pytest.mark.skipif(not PAPER.exists(), reason="the paper's source is not here")
def test_every_table_of_the_paper_cell_by_cell():
    """Rows of numbers in the paper's LaTeX, with what is bold, against the LaTeX made here."""

    def rows(text):
        numbers = set()
        for line in re.sub(r"\s*\n\s*&", " &", re.sub(r"&\s*\n\s*", "& ", text)).split(r"\\"):
            cells = [re.sub(r"\s+", "", cell) for cell in line.split("&")]
            values = [cell for cell in cells if re.fullmatch(r"(\\textbf\{)?\d+\.\d\d\}?", cell)]
            if len(values) == 5:
                numbers.add(tuple(values))
        return numbers

    printed = rows(PAPER.read_text())
    made = set().union(*(rows(to_latex(entry)) for entry in read_facts("paper").tables))
    assert len(printed) > 25
    assert printed == made


def test_figures_of_the_paper_and_a_report_of_nothing_else():
    made = build_report([], [read_facts("paper")])
    assert len(made.figures) == 7
    page = made.page.html()
    assert "50.88" in page
    assert page.count('<svg class="plot" viewBox="0 0 560') == 7


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nonsense": 1}, "unknown nonsense"),
        ({"tables": {}, "figures": 3}, "figures must be a list"),
        ({"tables": [7]}, "table 1: expected a mapping"),
        ({"tables": [{"title": "x"}]}, "id is missing"),
        ({"tables": [{"id": "a", "columns": ["x"]}]}, "must map names to lists"),
        ({"tables": [{"id": "a", "columns": ["x", "y"], "rows": {"r": [1]}}]}, "table 1, r: expected 2 numbers"),
        ({"tables": [{"id": "a", "columns": ["x"], "rows": {"r": ["one"]}}]}, "no number"),
        (
            {"tables": [{"id": "a", "columns": ["x", "Average"], "rows": {"r": [1.0, 2.0]}}]},
            "Average is 2, and the mean",
        ),
        ({"tables": [{"id": "a", "columns": ["x", "Avg"], "rows": {"r": ["q", None]}}]}, "cannot be formed"),
        ({"figures": [{"id": "a", "kind": "pie"}]}, "one of bar, line and scatter"),
        ({"figures": [{"id": "a", "kind": "bar", "categories": ["x"], "series": {"s": [1, 2]}}]}, "expected 1 numbers"),
        ({"figures": [{"id": "a", "kind": "line", "series": {"s": [[1]]}}]}, "pairs of numbers"),
        ({"figures": [{"id": "a", "kind": "scatter", "points": {"s": {"x": 1}}}]}, "y is missing"),
        ({"figures": [{"id": "a"}]}, "needs series"),
    ],
)
def test_mistakes_are_told_with_their_place(values, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        parse_facts(values, "file")


def test_a_file_that_is_not_there():
    with pytest.raises(ConfigError, match="or one of paper"):
        read_facts("nothing.yaml")
