"""Every command block and Python block of README, start, tutorials and how-tos runs, or says why it does not."""

import os
import re
import sys

import pytest

from opasd import choices
from opasd.losses import divergence, terms
from opasd.model import rules
from tests.docs.blocks import PAGES, REASONS, ROOT, Block, Story, blocks, lines

# A command ends with its process, and so do a grader's workers; here the process goes on.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
COMMAND = re.compile(r"(\$ )?(until |for |while )?(opasd|pip|make|python3?) [\w.'-]")
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


def test_the_pages_are_all_there_and_most_of_their_commands_run():
    folders = [ROOT / "docs" / name for name in ("tutorials", "howto", "coming-from")]
    wanted = {str(path.relative_to(ROOT)) for folder in folders for path in folder.rglob("*.md")}
    assert {"README.md", "docs/start.md"} | wanted <= set(PAGES)
    code = [block for page in PAGES for block in blocks(page) if block.kind in ("bash", "python")]
    run = [block for block in code if not block.reason and "slow" not in block.marks]
    assert len(run) >= 0.6 * len(code) > 0
    assert {block.page for block in run} >= {"README.md", "docs/tutorials/own-data.md", "docs/tutorials/decision.md"}


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_found_and_is_of_a_known_kind_and_a_reason_is_one(page):
    fences = [
        line for line in (ROOT / page).read_text("utf-8").splitlines() if line.lstrip(" >").startswith(("```", "~~~"))
    ]
    assert len(fences) == 2 * len(blocks(page)), f"{page}: a block that the tests do not read"
    for block in blocks(page):
        assert block.kind in KINDS, f"{block}: a block needs a kind: {', '.join(KINDS)}"
        assert block.reason is None or block.reason.startswith(REASONS), f"{block}: {block.reason!r} is no reason"
        assert block.file is None or block.reason is None, f"{block}: a file is written; it needs no reason"
        unknown = [mark for mark in block.marks if not re.match(r"not run: |file: |exits: |slow$", mark)]
        assert not unknown, f"{block}: the mark {unknown} means nothing"
        if block.kind == "text":
            hidden = [line for line in lines(block.text) if COMMAND.match(line)]
            assert not hidden, f"{block}: a command in a block of text: {hidden[0]}"


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


@pytest.mark.parametrize(
    "line",
    [
        "opasd train lab --stepz 3",
        "opasd train lab --data nowhere.jsonl",
        "opasd sweep no-such-sweep --jobs 4",
        "opasd sweep main --jobbs 4",
        "opasd no-such-command",
        "accelerate launch --config_file examples/clusters/fsdp2.yaml -m opasd.cli train lab --stepz 3",
        "accelerate launch --config_file examples/clusters/none.yaml -m opasd.cli train lab",
        "pip install 'opasd[no-such-extra]'",
        "make no-such-target",
        "curl example.org",
    ],
)
def test_a_mistake_in_a_block_that_does_not_run_is_found(line, tmp_path):
    with pytest.raises(AssertionError, match=r"page\.md:11"):
        Story(tmp_path).run(Block("page.md", 11, "bash", f"{line}\n", ("not run: needs a GPU",)))


def test_lines_are_joined_and_comments_left_out():
    assert lines("# what\nopasd train lab \\\n  --steps 3   # three\n\nls\n") == ["opasd train lab --steps 3", "ls"]
