"""Pictures: what is drawn lies where the numbers say, and is drawn at all."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.report.charts import MAX_POINTS, hover, rasteriser, svg, ticks, without_shared_start
from opasd.report.figure import Figure, Series
from tests.report.made import HOSTILE

numbers = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, 0.0, 1e-300, -1e308, 1e308])
some = st.lists(st.tuples(numbers, numbers), max_size=12)


def line(points, **options):
    return Figure("f", "Title", "line", "step", "value", [Series("a", 0, points)], **options)


def polylines(text):
    return [
        [tuple(map(float, p.split(","))) for p in points.split()]
        for points in re.findall(r'<polyline[^>]*points="([^"]*)"', text)
    ]


@given(some, st.booleans(), st.booleans())
def test_every_point_lies_inside_the_plot(points, from_zero, percent):
    figure = line(points, from_zero=from_zero, percent=percent)
    text = svg(figure)
    ET.fromstring(text)
    left, right, top, bottom = hover(figure)["plot"]
    drawn = [p for p in points if all(math.isfinite(v) and abs(v) < 1e300 for v in p)]
    (positions,) = polylines(text)
    assert len(positions) == len(drawn)
    for x, y in positions:
        assert left - 0.1 <= x <= right + 0.1
        assert top - 0.1 <= y <= bottom + 0.1
    assert "nan" not in text
    assert "inf" not in text


def test_places_are_proportional():
    figure = line([(0, 0), (5, 0.5), (10, 1)], percent=True)
    data = hover(figure)
    left, right, top, bottom = data["plot"]
    (positions,) = polylines(svg(figure))
    assert positions[0] == (left, bottom)
    assert positions[2] == (right, top)
    assert positions[1] == pytest.approx(((left + right) / 2, (top + bottom) / 2))


@given(st.sampled_from(["line", "bar", "scatter"]), st.text() | st.just(HOSTILE))
def test_names_of_any_kind_leave_a_well_formed_picture(kind, text):
    series = [Series(text, 0, [(0, 1.0)], sizes=[2.0]), Series(text, 9, [(0, -2.0)], [-3.0], [-1.0])]
    figure = Figure("f", text, kind, text, text, series, text, (text,) if kind == "bar" else ())
    for standalone in (False, True):
        root = ET.fromstring(svg(figure, standalone=standalone))
        assert not [node for node in root.iter() if node.tag.endswith("script")]


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e9))
def test_ticks_are_round_and_within(low, span):
    marks = ticks(low, low + span)
    assert len(marks) <= 8
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value in marks)
    steps = {round((b - a) / span, 4) for a, b in itertools.pairwise(marks)}
    assert len(steps) <= 1


def test_a_long_curve_keeps_its_peaks():
    points = [(float(x), 100.0 if x == 77_777 else 0.0) for x in range(100_000)]
    figure = line(points)
    (positions,) = polylines(svg(figure))
    assert len(positions) <= MAX_POINTS + 2
    assert min(y for _, y in positions) == pytest.approx(min(y for y in [positions[0][1]]) - 236 * 100 / 116, abs=1)


def test_a_bar_is_as_tall_as_its_number_and_a_bubble_as_large():
    bars = Figure(
        "f", "t", "bar", "", "", [Series("a", 0, [(0, 2.0), (1, 1.0)])], categories=("x", "y"), from_zero=True
    )
    heights = [float(h) for h in re.findall(r'height="([\d.]+)" rx="2"', svg(bars))]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)
    bubbles = Figure(
        "f", "t", "scatter", "", "", [Series("a", 0, [(0, 1)], sizes=[4]), Series("b", 1, [(1, 2)], sizes=[1])]
    )
    radii = [float(r) for r in re.findall(r'class="bubble[^>]*r="([\d.]+)"', svg(bubbles))]
    assert radii[0] == pytest.approx(2 * radii[1])


def test_standalone_pictures_need_no_page():
    text = svg(line([(0, 1), (1, 2)]), standalone=True)
    assert "var(" not in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_as_png():
    data = rasteriser()(svg(line([(0, 1), (1, 2)]), standalone=True))
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20]) == 3 * 560


def test_steps_are_whole_numbers_on_the_axis():
    text = svg(line([(1, 0.5), (2, 0.25), (3, 0.1)]))
    assert re.findall(r'text-anchor="middle">([^<]+)</text>', text) == ["1", "2", "3", "step"]
    assert ticks(0, 0.7, whole=True) == [0]


def test_what_a_page_saves_is_as_exact_as_sums_of_tokens_are():
    assert hover(line([(1, 123_456_789.0)]))["series"][0]["p"] == [[1, 123_456_789]]


def test_a_legend_of_many_runs_says_how_they_differ_and_is_no_taller_than_the_plot():
    names = [f"qwen3-1.7b-opasd-lambda{n / 10}-layers{n % 3 + 1}-seed{n}" for n in range(30)]
    series = [s for n, name in enumerate(names) for s in (Series(name, n, [(0, 1.0), (1, n)], faint=True),
                                                          Series(name, n, [(0, 1.0), (1, n)]))]  # fmt: skip
    figure = Figure("f", "t", "line", "step", "y", series)
    text = svg(figure)
    shown = re.findall(r'class="name"[^>]*>([^<]*)<', text)
    assert shown == [name.removeprefix("qwen3-1.7b-opasd-") for name in names]
    assert hover(figure)["plot"][2] < 330
    assert len(polylines(text)) == 30, "raw values of so many runs hide everything"


@pytest.mark.parametrize(("runs", "labelled"), [(2, True), (3, False)])
def test_numbers_stand_above_bars_that_are_wide_enough(runs, labelled):
    series = [Series(f"r{n}", n, [(x, 1.234e-7) for x in range(4)]) for n in range(runs)]
    text = svg(Figure("f", "t", "bar", "", "y", series, categories=("a", "b", "c", "d")))
    assert ("1.23e-07" in text) == labelled


@given(st.lists(st.text("ab-_", min_size=1, max_size=12), min_size=9, max_size=12, unique=True))
def test_shortened_names_stay_apart(names):
    parts = without_shared_start(names)
    assert len(set(parts)) == len(names)
    assert all(name.endswith(part) for name, part in zip(names, parts, strict=True))
