"""The page about lookup has the records' figures, and their intervals are Student's."""

from pathlib import Path

import pytest

from tests.results.importing import imported

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def tables():
    with imported("tables_lookup") as module:
        yield module


def test_the_page_has_the_figures_of_the_records(tables):
    page = (ROOT / "docs/evidence/lookup.md").read_text(encoding="utf-8")
    for cells in tables.rows():
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in page


def test_an_interval_over_seeds_is_students(tables):
    """Four values with a standard deviation of 2: the mean ± 3.182 · 2 / √4."""
    mean, low, high = tables.over_seeds([1 - 3**0.5, 1 - 3**0.5, 1 + 3**0.5, 1 + 3**0.5])
    assert (mean, low, high) == pytest.approx((1.0, 1.0 - 3.182, 1.0 + 3.182))
