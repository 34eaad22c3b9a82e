"""The record of the tests with vLLM, which the ordinary checks only read."""

import json

import pytest

from tests.vllm import last

RESULTS = '<testsuites><testsuite tests="{}" skipped="{}" failures="{}" errors="{}"/></testsuites>'


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "src/opasd/rollout/vllm").mkdir(parents=True)
    (tmp_path / "src/opasd/rollout/vllm/http.py").write_text("a = 1\n")
    return tmp_path


def test_a_record_is_fresh_until_a_file_changes(tree, monkeypatch):
    record, results = tree / "last.json", tree / "results.xml"
    assert "no run is on record; make test-vllm" in last.said(record, tree)
    results.write_text(RESULTS.format(31, 6, 0, 0))
    monkeypatch.setattr(last, "version", lambda name: f"1 of {name}")
    last.note(results, record)
    values = json.loads(record.read_text()) | {"digest": last.digest(tree), "date": "2026-11-18"}
    record.write_text(json.dumps(values))
    assert last.said(record, tree).startswith("tests with vLLM: 25 passed on 2026-11-18 (vllm 1 of vllm, ")
    assert last.said(record, tree).endswith("has not changed since")
    (tree / "src/opasd/rollout/vllm/http.py").write_text("a = 2\n")
    assert last.said(record, tree).endswith("HAS CHANGED since: make test-vllm")


@pytest.mark.parametrize(
    "path", ["rollout/engine.py", "rollout/transformers/engine.py", "trainer/trainer.py", "cli/train.py"]
)
def test_what_the_tests_train_with_counts_too(tree, path):
    before = last.digest(tree)
    file = tree / "src/opasd" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("a = 1\n")
    assert last.digest(tree) != before


@pytest.mark.parametrize("counts", [(31, 0, 1, 0), (31, 0, 0, 1), (31, 31, 0, 0)])
def test_only_a_run_that_passed_is_noted(counts, tmp_path):
    (tmp_path / "results.xml").write_text(RESULTS.format(*counts))
    with pytest.raises(SystemExit, match="nothing is noted"):
        last.note(tmp_path / "results.xml", tmp_path / "last.json")
    assert not (tmp_path / "last.json").exists()


def test_the_digest_covers_what_the_tests_are_about():
    for pattern in last.TESTED:
        assert list(last.ROOT.glob(pattern)), pattern
