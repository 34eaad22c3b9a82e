"""The English of the pages, and that the check finds what it is for."""

from scripts.links import ROOT
from scripts.prose import figures, pages, problems, sentences, words


def test_the_pages_are_in_short_sentences_and_plain_words():
    assert [line for path, first in pages() for line in problems(path, first, path.name)] == []


def test_the_readme_has_at_most_900_words():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 900


def test_long_sentences_and_machine_made_phrases_are_named(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Short one. " + "word " * 41 + "end.\n\nWe delve into it.\n\n```\ndelve leverage\n```\n")
    assert [line.partition(":")[0] for line in problems(page, True, "page.md")] == ["page.md"] * 2
    page.write_text("A sentence of " + "many " * 17 + "words here.\n")
    assert "22.0 words a sentence" in next(problems(page, True, "page.md"))
    assert list(problems(page, False, "page.md")) == []


def test_sentences_leave_code_tables_and_headings_out():
    text = "# Head\nOne e.g. this `code here` ends. Two, [a link](x.md)!\n\n| a |\n\n- one\n- item two\n\n    code\n"
    assert sentences(text) == ["One e.g. this code ends.", "Two, a link!", "one", "item two"]
    assert words("It is 3 — or 4.") == 5


def test_numbers_are_counted_in_a_page_without_its_code():
    assert figures("It rose from 27 to 71 % in 40 steps of Qwen3 (5e-5, 1,024).\n```\n1 2 3\n```\n`4` [x](5.md)") == 5


def test_the_pages_for_newcomers_are_those_that_the_check_is_strict_with():
    strict = {str(path.relative_to(ROOT)) for path, first in pages() if first}
    assert {"README.md", "docs/start.md", "docs/tutorials/own-data.md", "docs/coming-from/trl.md"} <= strict
    assert len(strict) >= 20
