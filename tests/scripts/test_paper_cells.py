"""The paper's cells that are no multiple of 1/360, against every number that 12 answers to 30 problems can print."""

from collections import Counter
from decimal import ROUND_DOWN, ROUND_HALF_DOWN, ROUND_HALF_UP, Decimal

import yaml

from scripts.paper_cells import FACTS, cells, distinct, possible

STEP = Decimal("0.01")
PRINTED = {
    str((Decimal(100 * k) / 360).quantize(STEP, way))
    for k in range(361)
    for way in (ROUND_DOWN, ROUND_HALF_UP, ROUND_HALF_DOWN)
}
READ = yaml.safe_load(FACTS.read_text())


def test_every_two_digit_number_is_judged_as_by_listing_all():
    for hundredth in range(10_001):
        value = f"{hundredth / 100:.2f}"
        assert possible(value) == (value in PRINTED), value


def test_the_list_that_the_docs_give():
    found = distinct([cell for cell in cells(READ) if not possible(cell.value)], READ)
    assert len(found) == 15
    by_table = Counter(cell.table for cell, _ in found)
    assert by_table["seeds"] == 6  # of the eight cells of seeds 1 and 123
    assert {cell.row for cell, _ in found if cell.table == "seeds"} == {"Seed 1", "Seed 123"}
    assert [cell.value for cell, _ in found if cell.table == "matched-clipping"] == ["29.56", "32.80", "18.16"]
    assert [tables for cell, tables in found if cell.value == "36.70"] == [
        ["main-results", "objectives", "matched-clipping"]
    ]
