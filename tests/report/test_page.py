"""The page: whatever a model wrote does no harm, and the figures hold what they were given."""

import math
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from opasd.report.charts import line_chart
from opasd.report.page import answers, key, page, printable, section, table

HOSTILE = "<script>alert(1)</script>\x00\x1b[31m\ud800\u202e</pre>"


class Tags(HTMLParser):
    """The tags of a document, and whether they close."""

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        if tag not in ("meta", "line", "polyline"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def tags(text):
    parser = Tags()
    parser.feed(text)
    assert parser.open == []
    return parser.seen


@given(text=st.text() | st.just(HOSTILE))
def test_hostile_text_adds_no_tag_and_can_be_written(text):
    document = page(
        text, text, [section(text, table([text], [[text]])), key([text]), answers(text, {text: (text, True)})]
    )
    document.encode("utf-8", "replace")
    harmless = page("a", "a", [section("a", table(["a"], [["a"]])), key(["a"]), answers("a", {"a": ("a", True)})])
    assert tags(document) == tags(harmless)


def test_nothing_is_fetched():
    document = page("t", "s", [line_chart("c", {"a": [(1, 2), (2, 3)]})])
    assert not re.search(r"(src|href)=|url\(|@import", document)


def test_printable_keeps_text_and_drops_controls():
    assert printable("x² ≤ 5\n\tüöä 漢字 🙂") == "x² ≤ 5\n\tüöä 漢字 🙂"
    assert "\x00" not in printable(HOSTILE)
    assert "\x1b" not in printable(HOSTILE)


def test_a_chart_has_a_line_for_each_series_and_leaves_out_what_is_not_finite():
    svg = line_chart("a < b", {"x": [(1, 0.5), (2, math.nan), (3, 0.7)], "y": [(1, 0.1)], "none": []})
    assert svg.count("<polyline") == 3
    assert "a &lt; b" in svg
    points = [points.split() for points in re.findall(r'points="([^"]*)"', svg)]
    assert [len(line) for line in points] == [2, 1, 0]
    assert "nan" not in svg


def test_a_chart_of_nothing_is_nothing():
    assert line_chart("t", {"x": []}) == ""


@given(values=st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20))
def test_points_lie_inside_the_picture(values):
    svg = line_chart("t", {"x": [(float(i), v) for i, v in enumerate(values)]})
    (points,) = re.findall(r'points="([^"]*)"', svg)
    for point in points.split():
        x, y = map(float, point.split(","))
        assert 0 <= x <= 420
        assert -1 <= y <= 241
