"""Every command block and Python block of README, start, tutorials and how-tos runs, or says why it does not."""

import os
import sys

import pytest

from opasd import choices
from opasd.losses import divergence, terms
from opasd.model import rules
from tests.docs.blocks import PAGES, REASONS, Block, Story, blocks, lines

# A command ends with its process, and so do a grader's workers; here the process goes on.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
KINDS = ("bash", "python", "yaml", "json", "csv", "toml", "text", "dockerfile")


LISTS = (choices.DIVERGENCES, choices.TEACHERS, choices.LOSS_TERMS)
TABLES = (choices.ENGINES, choices.GRADERS, divergence.DIVERGENCES, rules.RULES, terms._MEASURES)


@pytest.fixture(autouse=True)
def _forget_plugins(tmp_path):
    """Forget what a page has registered: other tests of this process register the same names."""
    lists, tables = [list(names) for names in LISTS], [dict(table) for table in TABLES]
    yield
    for names, before in zip(LISTS, lists, strict=True):
        names[:] = before
    for table, before in zip(TABLES, tables, strict=True):
        for name in table.keys() - before.keys():
            del table[name]
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_known_kind_and_a_reason_is_one(page):
    for block in blocks(page):
        assert block.kind in KINDS, f"{block}: a block needs a kind: {', '.join(KINDS)}"
        assert block.reason is None or block.reason.startswith(REASONS), f"{block}: {block.reason!r} is no reason"


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run_one_after_another(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    story = Story(tmp_path)
    for block in blocks(page):
        if "slow" in block.marks and not os.environ.get("OPASD_ALL_BLOCKS"):
            continue
        story.run(block)


def test_a_block_that_fails_is_named(tmp_path):
    bad = Block("page.md", 7, "bash", "opasd validate no-such-recipe\n", ())
    with pytest.raises(AssertionError, match=r"page\.md:7"):
        Story(tmp_path).run(bad)
    unsafe = Block("page.md", 9, "bash", "curl example.org\n", ())
    with pytest.raises(AssertionError, match="curl is not run by the tests"):
        Story(tmp_path).run(unsafe)
    mistyped = Block("page.md", 11, "bash", "opasd train lab --stepz 3\n", ("not run: needs a GPU",))
    with pytest.raises(AssertionError, match=r"page\.md:11"):
        Story(tmp_path).run(mistyped)


def test_lines_are_joined_and_comments_left_out():
    assert lines("# what\nopasd train lab \\\n  --steps 3   # three\n\nls\n") == ["opasd train lab --steps 3", "ls"]
