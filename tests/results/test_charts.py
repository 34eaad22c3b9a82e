"""The figures of docs/figures are those of the records, byte for byte; a look's record keeps what they need."""

import json
from pathlib import Path

import pytest

from tests.results.importing import imported

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def figures():
    with imported("charts") as module:
        yield module


def test_the_figures_of_the_docs_are_those_of_the_records(figures):
    drawn = figures.figures()
    for name, picture in drawn.items():
        assert (ROOT / "docs/figures" / name).read_text() == picture, f"{name}: run python results/charts.py"
    others = {path.name for path in (ROOT / "docs/figures").glob("look-*.svg")} - drawn.keys()
    assert not others, "a figure without a record"


def test_a_figure_follows_its_record(figures, monkeypatch):
    """Another verdict in the records is another picture."""
    before = figures.forest()
    shares, seeds = figures.Evaluation.gains, figures.gains
    monkeypatch.setattr(figures.Evaluation, "gains", lambda *args: {k: v + 0.1 for k, v in shares(*args).items()})
    monkeypatch.setattr(figures, "gains", lambda *args: [value + 10 for value in seeds(*args)])
    after = figures.forest()
    for (x, row), (moved, same) in zip(before.series[0].points, after.series[0].points, strict=True):
        assert (row, moved) == (same, pytest.approx(x + 10))


def test_a_kept_look_has_the_figures_of_the_probe_without_heads(figures):
    figure = {"mean": 0.123456, "low": 0.1, "high": 0.2}
    own = {"student": [figure], "projected": [figure], "student_heads": [[0.1]], "projected_heads": [[0.1]]}
    found = {
        "look": {"own_reference": "solution", "references": {"solution": own}},
        "settings": {"source": "lab", "config": {"prompts": {"reference": "{solution}"}}},
        "environment": {"versions": {"torch": "2"}},
    }
    kept = json.loads(json.dumps(figures.compact(found, "a title")))
    assert kept["look"]["references"]["solution"] == {
        "student": [{**figure, "mean": 0.1235}],
        "projected": [{**figure, "mean": 0.1235}],
    }
    assert kept["title"] == "a title"
