"""The tables of the test problems follow their records, and the pages have their rows."""

import json
from importlib import import_module
from pathlib import Path

import pytest

from tests.results.importing import imported

EVIDENCE = Path(__file__).parents[2] / "docs/evidence"


@pytest.fixture(scope="module")
def tables():
    with imported("tables_tested") as module:
        yield module


def sweep(name: str, runs: dict[str, str]) -> dict[str, bytes]:
    """A sweep's evaluations; a text has a verdict for each problem, 1 or 0."""
    files: dict[str, bytes] = {}
    for run, verdicts in runs.items():
        answers = [
            {"benchmark": "lookup", "problem": f"test/{n}", "sample": 0, "tokens": 9, "finish_reason": "stop"}
            | {"verdict": "correct" if verdict == "1" else "wrong"}
            for n, verdict in enumerate(verdicts)
        ]
        folder = f"{name}/{run}.evaluation"
        files[f"{folder}/samples.jsonl"] = "".join(f"{json.dumps(row)}\n" for row in answers).encode()
        files[f"{folder}/settings.json"] = b"{}"
    return files


def test_the_rows_are_those_of_the_records(tables, monkeypatch):
    """Over two seeds OPASD gains 2 of 4 problems and none: 25 points, and Student's interval with 12.706."""
    runs = {"base": "1000", "opsd-seed-1": "1000", "opsd-seed-2": "1100"}
    files = sweep("objectives", {**runs, "opasd-look-seed-1": "1110", "opasd-look-seed-2": "1100"})
    files |= sweep("head", {"head-5.2-seed-2": "1111"})
    records = import_module("records")
    monkeypatch.setattr(records, "files_of", lambda task: files if task == "lookup" else {})
    import_module("summaries").load_evaluation.cache_clear()
    base, opsd, look, head = tables.rows("lookup")
    import_module("summaries").load_evaluation.cache_clear()
    assert base.startswith("| base | – | 25.0 [")
    assert opsd == "| OPSD | 2 | 37.5 ± 17.7 | | |"
    assert look.startswith("| OPASD, layers 4 and 5 | 2 | 62.5 ± 17.7 | +25.0 [−292.7, +342.7] | +25.0 [")
    assert head.startswith("| OPASD, head 5.2 | 1 | 100.0 [")
    assert tables.rows("ledger") == []


def test_the_page_has_the_rows_of_the_records(tables):
    page = (EVIDENCE / "lookup.md").read_text(encoding="utf-8")
    for task in tables.TESTED:
        for row in tables.rows(task):
            assert row in page, "run python results/tables.py tested"


def test_the_pages_say_what_training_at_one_head_did(tables):
    texts = [(EVIDENCE / name).read_text(encoding="utf-8") for name in ("lookup.md", "index.md", "../planned.md")]
    page, index, plan = (" ".join(text.split()) for text in texts)
    _, first, _, last = tables.term_over_training("lookup/head", "head-4.1", "term/head_4_1").split()
    assert f"the divergence at the head falls from {first} to {last}" in page
    opsd, head = ([cell.strip() for cell in row.split("|")] for row in tables.rows("lookup"))
    assert f"{head[3]} against {opsd[3]}, five seeds" in index
    assert head[2] == opsd[2] == "5"
    assert f"no: {head[4]} over seeds" in plan
