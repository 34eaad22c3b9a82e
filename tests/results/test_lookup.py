"""The page about lookup has the records' figures, and their intervals are Student's."""

import json
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
    tables_ = (
        tables.rows(),
        tables.rows_again(),
        tables.rows_searched(),
        tables.rows_of_wordings(),
        tables.rows_of_measures(),
    )
    for cells in (row for table in tables_ for row in table):
        assert f"| {' | '.join(cells)} |".replace("|  |", "| |") in page


def test_an_interval_over_seeds_is_students(tables):
    """Four values with a standard deviation of 2: the mean ± 3.182 · 2 / √4."""
    mean, low, high = tables.over_seeds([1 - 3**0.5, 1 - 3**0.5, 1 + 3**0.5, 1 + 3**0.5])
    assert (mean, low, high) == pytest.approx((1.0, 1.0 - 3.182, 1.0 + 3.182))


def test_what_is_said_of_the_second_round(tables):
    """The pilot's gain is there at its rate and its measure, and gone against OPSD at its own rate."""
    at, again = tables.rollouts, "lookup/again"
    for arm in ("look-0.3-1e-3", "last-0.3-1e-3", "look-1-1e-3", "last-1-1e-3"):
        assert tables.over_seeds(tables.gains(at(arm, again), at("opsd-1e-3", again)))[1] > 0
        assert tables.over_seeds(tables.gains(at(arm, again), at("opsd-2e-3", again)))[0] < 0
        own = tables.validated(arm, again)
        assert all(tables.over_seeds(tables.gains(own, tables.validated(other, again)))[0] < 0 for other in
                   ("opsd-1e-3", "opsd-2e-3"))  # fmt: skip


def test_the_ledgers_gate_is_the_probes(tables):
    page = (ROOT / "docs/evidence/lookup.md").read_text(encoding="utf-8")
    looks = json.loads((ROOT / "results/looks.json").read_text(encoding="utf-8"))
    for size in ("0.5", "1.5"):
        look = looks[f"ledger-{size}b"]["look"]
        gates = [look["references"][name]["gate"] for name in ("pointers", "solution", "answer")]
        assert {gate["verdict"] for gate in gates} == {"fails"}
        cells = [", ".join(map(str, look["looking_layers"])), *(f"{gate['ratio']:.2f}" for gate in gates)]
        assert f"| {size}B | {' | '.join(cells)} |" in page


def test_what_is_said_of_the_gates(tables):
    """No wording passes at the layers that look; of the heads only 4.1 passes, on other problems and on answers too."""
    gates = tables.gates()
    low, high = slice(-2, -1), slice(-1, None)
    assert len(gates["gold"]) == 18
    assert all(own[name][high][0] < 0 for part in gates.values() for own in part.values() for name in ("4 and 5", "4"))
    recipe = [next(iter(part.values())) for part in gates.values()]
    heads = [name for name in recipe[0] if "." in name and "fork" not in name and "undecided" not in name]
    assert len(heads) == 16
    assert [head for head in heads if all(own[head][low][0] > 0 for own in recipe)] == ["4.1"]
    assert all(own["5.2"][low][0] < 0 < own["5.2"][high][0] for own in recipe)
