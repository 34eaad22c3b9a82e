"""The pages about clips, baselines and seeds have the records' figures."""

from pathlib import Path

import pytest

from tests.results.importing import imported

EVIDENCE = Path(__file__).parents[2] / "docs/evidence"


@pytest.fixture(scope="module")
def tables():
    with imported("tables_planned") as module:
        yield module


def test_the_pages_have_the_rows_of_the_records(tables):
    arithmetic, length = ((EVIDENCE / f"{name}.md").read_text(encoding="utf-8") for name in ("arithmetic", "length"))
    for row in (*tables.baseline_rows(), *tables.seed_rows(), *tables.long_rows()):
        assert row in arithmetic, "run python results/tables.py planned"
    of_seeds, of_problems = tables.long_difference().split(" over seeds, ")
    assert f"Over the seeds OPASD − OPSD is {of_seeds}, over problems {of_problems.partition(' over')[0]}" in arithmetic
    for row in tables.clip_rows():
        assert row in length, "run python results/tables.py planned"


def test_what_is_said_of_the_clips_and_seeds(tables):
    """Without the reversed positions there is no collapse; with the per-token clip OPASD is behind in each seed."""
    for seed in tables.SEEDS:
        right = {
            run: sum(tables.load_evaluation("arithmetic/clips", f"{run}-seed-{seed}").shares().values()) / 1000
            for run in tables.CLIPS
        }
        assert right["pointwise"] < 0.01 < right["masked"] < right["per-token"] < right["none"]
    page = (EVIDENCE / "arithmetic.md").read_text(encoding="utf-8")
    gains = [sum(opasd.gains(opsd).values()) / 10 for opasd, opsd in tables.pairs("-per-token").values()]
    assert max(gains) < 0
    assert ", ".join(f"{gain:.1f}".replace("-", "−") for gain in gains) in page


def test_another_verdict_is_another_row(tables, monkeypatch):
    parts = tables.clip_rows, tables.baseline_rows, tables.seed_rows, tables.long_rows
    before = [rows() for rows in parts]
    monkeypatch.setattr(tables.Evaluation, "shares", lambda self, samples=None: {"a": 0.5, "b": 0.5})
    assert all(rows() != own for rows, own in zip(parts, before, strict=True))
