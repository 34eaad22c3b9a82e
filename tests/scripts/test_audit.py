"""`make audit` says in one line what it found, or why it could not look."""

import json

import pytest

from scripts.audit import verdict

FINE = {"name": "a", "version": "1", "vulns": []}
AWAY = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
BAD = {"name": "c", "version": "1.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["1.1"], "aliases": []}]}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([FINE], 0, "audit: no known vulnerability in 1"),
        ([FINE, BAD], 1, "c 1.0: PYSEC-1, mended in 1.1"),
        ([FINE, AWAY], 2, "audit: 1 of 2 packages could not be looked up (b); run it where PyPI's pages"),
        ([AWAY] * 9, 2, "audit: 9 of 9 packages could not be looked up (b, b, b, …); run it where"),
    ],
)
def test_what_was_found(packages, code, said):
    given, text = verdict(json.dumps({"dependencies": packages}), "")
    assert given == code
    assert text.startswith(said)
    assert len(text.splitlines()) == 1


@pytest.mark.parametrize("output", ["", "[]", "{", "null"])
def test_a_failure_is_one_sentence(output):
    errors = "Traceback (most recent call last):\n  File\nConnectionError: no name\n\n"
    code, text = verdict(output, errors)
    assert (code, len(text.splitlines())) == (2, 1)
    assert text == "audit: nothing could be looked up (ConnectionError: no name); run it where PyPI can be read"
