"""The reference page: current, and with every public name."""

import pytest

import opasd
from scripts import reference
from scripts.reference import GROUPS, pages


def test_the_pages_are_current_and_name_everything_public():
    assert sorted(name for names in GROUPS.values() for name in names) == opasd.__all__
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m scripts.reference"


def test_a_public_name_that_no_group_has_or_that_has_no_description_is_an_error(monkeypatch):
    monkeypatch.setattr(opasd, "__all__", [*opasd.__all__, "forgotten"])
    with pytest.raises(SystemExit, match="opasd.forgotten is in no group"):
        reference.page()
    monkeypatch.undo()
    monkeypatch.setattr(opasd.align, "__doc__", None)
    with pytest.raises(SystemExit, match="opasd.align has no docstring"):
        reference.page()
