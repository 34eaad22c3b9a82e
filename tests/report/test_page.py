"""The page: a browser obeys nothing that a model wrote."""

import json
import re
from html.parser import HTMLParser

from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.report.build import build_report
from opasd.report.facts import read_facts
from opasd.report.folders import read_run
from opasd.report.page import Page, notice, paragraph
from opasd.report.text import digest
from tests.report.made import HOSTILE, make_run, run_with_text

VOID = ("meta", "line", "polyline", "polygon", "circle", "rect", "input", "option", "br")


class Tags(HTMLParser):
    """The tags of a document, whether they close, and what is in its scripts."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.scripts, self.links = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.links |= {value for name, value in attrs if name in ("src", "href", "srcset", "action", "data")}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append((dict(attrs).get("type"), ""))

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)


def parsed(text):
    parser = Tags()
    parser.feed(text)
    assert parser.open == []
    return parser


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_hostile_text_adds_no_tag_and_every_block_of_data_can_be_read(text):
    """Names, notes, settings, questions and completions are whatever they are."""
    page = build_report(
        [run_with_text(text, text), run_with_text(text, text + "b", text + "c")], title=text
    ).page.html()
    page.encode("utf-8")
    hostile = parsed(page)
    harmless = parsed(build_report([run_with_text("a", "a"), run_with_text("a", "ab", "ac")], title="a").page.html())
    vary = ("span", "mark", "text", "line")  # a figure beside longer names has fewer marks on its axis
    assert [tag for tag in hostile.seen if tag not in vary] == [tag for tag in harmless.seen if tag not in vary]
    for kind, content in hostile.scripts:
        if kind == "application/json":
            json.loads(content)
            assert not re.search("[<>&\u2028\u2029]", content)


def test_nothing_is_fetched_and_only_our_own_scripts_may_run(tmp_path):
    page = build_report([read_run(make_run(tmp_path, "one", text=HOSTILE))], [read_facts("paper")]).page.html()
    assert parsed(page).links <= {f"#{name}" for name in re.findall(r'<section id="([^"]*)"', page)}
    assert not re.search(r"url\(|@import", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for kind, script in parsed(page).scripts:
        assert kind == "application/json" or digest(script) in policy
    (style,) = re.findall(r"<style>(.*?)</style>", page.split("</head>")[0], re.DOTALL)
    assert digest(style) in policy


def test_pieces_of_a_page():
    page = Page("t", "s")
    page.section("a", "", "<p>x</p>")
    assert "<h2>" not in page.html()
    assert notice("h", {"run": []}) == ""
    assert paragraph("<") == '<p class="soft">&lt;</p>'


def test_the_same_remarks_are_made_once():
    remarks = {"a1": ["a1.evaluation/x is missing"], "b": ["b/x is missing"], "c2": ["c2.evaluation/x is missing"]}
    html = notice("h", remarks)
    assert html.count("<li>") == 2
    assert "<b><bdi>a1</bdi></b>, <b><bdi>c2</bdi></b>: ….evaluation/x is missing</li>" in html
    assert "<b><bdi>b</bdi></b>: b/x is missing</li>" in html
