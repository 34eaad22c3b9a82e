"""The page about lookup has the records' figures, and their intervals are Student's."""

import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = ("reading", "records", "summaries", "tables_lookup")


@pytest.fixture(scope="module")
def tables():
    """Import results/tables_lookup.py with its neighbours, and forget them after the tests."""
    with pytest.MonkeyPatch.context() as patch:
        for name in MODULES:
            patch.delitem(sys.modules, name, raising=False)
        patch.syspath_prepend(str(ROOT / "results"))
        yield import_module("tables_lookup")
        for name in MODULES:
            sys.modules.pop(name, None)


def test_the_page_has_the_figures_of_the_records(tables):
    page = (ROOT / "docs/evidence/lookup.md").read_text(encoding="utf-8")
    for cells in tables.rows():
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in page


def test_an_interval_over_seeds_is_students(tables):
    """Four values with a standard deviation of 2: the mean ± 3.182 · 2 / √4."""
    mean, low, high = tables.over_seeds([1 - 3**0.5, 1 - 3**0.5, 1 + 3**0.5, 1 + 3**0.5])
    assert (mean, low, high) == pytest.approx((1.0, 1.0 - 3.182, 1.0 + 3.182))
