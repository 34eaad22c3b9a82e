"""The reference page: current, and with every public name."""

import opasd
from scripts.reference import GROUPS, PAGE, page


def test_the_page_is_current_and_names_everything_public():
    assert sorted(name for names in GROUPS.values() for name in names) == opasd.__all__
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m scripts.reference"
