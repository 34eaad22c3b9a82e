"""The pages: every link leads somewhere, and what does not is named."""

from scripts.links import anchors, problems


def test_every_link_anchor_and_name_of_the_pages_is_there():
    assert list(problems()) == []


def test_what_is_dead_is_named(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "src" / "opasd").mkdir(parents=True)
    (tmp_path / "src" / "opasd" / "__init__.py").write_text("there = 1\n")
    (tmp_path / "mkdocs.yml").write_text("nav:\n  - One: one.md\n  - Gone: gone.md\n")
    (tmp_path / "README.md").write_text(
        "# Title\n[a](docs/one.md#part-two) [b](docs/none.md) [c](#title) [d](#other)\n"
        "[e][there] [f][gone] [there][] `[g][code]` [1, 2] [3]\n\n[there]: docs/one.md\n[bad]: docs/bad.md\n"
    )
    (tmp_path / "docs" / "one.md").write_text(
        "## Part *two*\n`[x](nowhere.md)` `opasd.there` `opasd.gone`\n[up](../README.md) [web](https://example.org)\n"
        "```\n[code](nowhere.md)\n```\n`src/opasd/none.py`\n"
    )
    (tmp_path / "docs" / "two.md").write_text("text\n")
    assert list(problems(tmp_path)) == [
        "README.md: the link docs/none.md leads nowhere",
        "README.md: the link #other names a heading that is not there",
        "README.md: the link docs/bad.md leads nowhere",
        "README.md: the reference [gone] is not defined",
        "docs/one.md: the link ../README.md leaves docs/, which the site cannot follow",
        "docs/one.md: src/opasd/none.py is not there",
        "docs/one.md: opasd.gone is not in the package",
        "docs/two.md: not in the menu (nav of mkdocs.yml)",
        "mkdocs.yml: the menu names gone.md, which is not there",
    ]


def test_anchors_are_those_of_the_headings():
    assert {"a-b-c", "a-b-c-1"} <= anchors("# A `b` *c*\n```\n# no heading\n```\n## A b c\n")
