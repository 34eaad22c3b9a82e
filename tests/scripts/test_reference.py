"""The reference page: current, and with every public name."""

import opasd
from scripts.reference import GROUPS, pages


def test_the_pages_are_current_and_name_everything_public():
    assert sorted(name for names in GROUPS.values() for name in names) == opasd.__all__
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run python -m scripts.reference"
