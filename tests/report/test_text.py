"""Text of any kind, made fit for pages, files and tables."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from opasd.report.text import embedded, printable, shared_start, shortened, slug, split_by_size
from tests.report.made import HOSTILE


def test_printable_keeps_text_and_drops_controls():
    text = "x² ≤ 5\n\tüöä 漢字 🙂 עברית \u200d é"
    assert printable(text) == text
    assert not re.search("[\x00\x1b\u202e\u2028\ud800]", printable(HOSTILE + "\ud800"))


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_embedded_json_ends_no_script_and_says_the_same(value):
    text = embedded(value)
    assert not re.search("[<>&\u2028\u2029]", text)
    clean = json.loads(embedded(json.loads(text)))
    assert clean == json.loads(text)


@given(st.text(), st.integers(3, 50))
def test_shortened_keeps_both_ends(text, limit):
    short = shortened(text, limit)
    assert len(short) <= limit
    assert short == text or (text.startswith(short.split("…")[0]) and len(short) == limit)


@given(st.text())
def test_slugs_are_file_names(text):
    assert re.fullmatch(r"[A-Za-z0-9@.-]{1,80}", slug(text))
    assert not slug(text).startswith(".")


def test_line_ends_of_another_system_are_line_ends():
    assert printable("a\r\nb\rc") == "a\nb\ufffdc"


@given(st.lists(st.text("ab", max_size=5), min_size=1))
def test_the_shared_start_is_the_longest(texts):
    start = shared_start(texts)
    assert all(text.startswith(start) for text in texts)
    assert any(len(text) == len(start) for text in texts) or len({text[len(start)] for text in texts}) > 1


@given(st.lists(st.integers(0, 9)), st.integers(1, 20))
def test_parts_hold_everything_in_order_and_keep_to_their_size(sizes, limit):
    parts = split_by_size(sizes, lambda size: size, limit)
    assert [size for part in parts for size in part] == sizes
    assert all(len(part) == 1 or (part and sum(part) <= limit) for part in parts)
