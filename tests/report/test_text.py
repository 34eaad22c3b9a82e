"""Text of any kind, made fit for pages, files and tables."""

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from opasd.report.text import (
    embedded,
    printable,
    shared_start,
    short_names,
    shortened,
    slug,
    soft_intervals,
    split_by_size,
    without_shared_start,
)
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


@given(st.lists(st.text("ab-_", min_size=1, max_size=12), min_size=2, max_size=12, unique=True))
def test_names_without_their_shared_start_stay_apart(names):
    parts = without_shared_start(names)
    assert len(set(parts)) == len(names)
    assert all(name.endswith(part) for name, part in zip(names, parts, strict=True))


@given(st.lists(st.text("ab-", min_size=1, max_size=40), max_size=8, unique=True), st.integers(4, 30))
def test_short_names_fit_and_stay_apart_where_their_ends_do(names, limit):
    texts = short_names(names, limit)
    assert all(len(text) <= limit for text in texts)
    if len({name[1 - limit :] for name in without_shared_start(names)} if names else ()) == len(names):
        assert len(set(texts)) == len(names)


def test_names_that_differ_in_their_ends_are_told_apart():
    names = [f"attention_weight-{weight}, seed" for weight in ("0.02", "0.10", "0.25")]
    assert short_names(names, 16) == ["0.02, seed", "0.10, seed", "0.25, seed"]
    assert len(set(short_names([*names, "opsd"], 16))) == 4
    names = [f"qwen-weight-{weight}-and-a-rather-long-name" for weight in ("0.02", "0.10", "0.25")]
    assert short_names([*names, "opsd"], 16) == ["…0.02…", "…0.10…", "…0.25…", "opsd"]


def test_intervals_are_set_apart_and_other_brackets_are_not():
    assert soft_intervals("a[1] 70.5 % [68.9, 72.1], −0.7 [−1.5, +0.2] <b>") == (
        'a[1] 70.5 % <span class="ci">[68.9, 72.1]</span>, −0.7 <span class="ci">[−1.5, +0.2]</span> &lt;b&gt;'
    )
