"""Pictures: what is drawn lies where the numbers say, and is drawn at all."""

import itertools
import math
import re
import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.errors import ConfigError
from opasd.report.assets import COLOURS, DARK, LIGHT
from opasd.report.charts import LONGEST_NAME, TOP, WIDTH, data, frame, rasteriser, svg, ticks
from opasd.report.figure import Figure, Series
from opasd.report.marks import MAX_POINTS
from tests.report.made import HOSTILE

numbers = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf, 0.0, 1e-300, -1e308, 1e308])
some = st.lists(st.tuples(numbers, numbers), max_size=12)


def line(points, **options):
    return Figure("f", "Title", "line", "step", "value", [Series("a", 0, points)], **options)


def edges(figure):
    drawn = frame(figure, TOP, WIDTH)
    return drawn.left, drawn.right, drawn.top, drawn.bottom


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
    left, right, top, bottom = edges(figure)
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
    left, right, top, bottom = edges(figure)
    (positions,) = polylines(svg(figure))
    assert positions[0] == pytest.approx((left, bottom), abs=0.06)
    assert positions[2] == pytest.approx((right, top), abs=0.06)
    assert positions[1] == pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=0.06)


@given(st.sampled_from(["line", "bar", "scatter", "forest"]), st.text() | st.just(HOSTILE))
def test_names_of_any_kind_leave_a_well_formed_picture(kind, text):
    series = [Series(text, 0, [(0, 1.0)], sizes=[2.0]), Series(text, 9, [(0, -2.0)], [-3.0], [-1.0])]
    if kind == "forest":
        series = [Series(text, 9, [(-2.0, 0)], [-3.0], [-1.0]), Series(text, 0, [(1.0, 0)], faint=True)]
    figure = Figure("f", text, kind, text, text, series, text, (text,) if kind in ("bar", "forest") else ())
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
    heights = [float(h) for h in re.findall(r'height="([\d.]+)"/>', svg(bars))]
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


def test_a_png_has_its_texts_or_the_command_says_why_not(monkeypatch):
    rasterise = rasteriser()
    picture = svg(line([(0, 1), (1, 2)]), standalone=True)
    assert rasterise(picture) != rasterise(re.sub("<text.*?</text>", "", picture))
    import resvg_py

    draw = resvg_py.svg_to_bytes
    without = lambda svg_string, **options: draw(svg_string=re.sub("<text.*?</text>", "", svg_string), **options)  # noqa: E731
    monkeypatch.setattr(resvg_py, "svg_to_bytes", without)
    with pytest.raises(ConfigError, match="finds no font"):
        rasteriser()


def test_steps_are_whole_numbers_on_the_axis():
    text = svg(line([(1, 0.5), (2, 0.25), (3, 0.1)]))
    assert re.findall(r'text-anchor="middle">([^<]+)</text>', text) == ["1", "2", "3", "step"]
    assert ticks(0, 0.7, whole=True) == [0]


def test_what_a_page_saves_is_as_exact_as_sums_of_tokens_are():
    assert data(line([(1, 123_456_789.0)]))["series"][0]["p"] == [[1, 123_456_789]]


def test_a_legend_of_many_runs_says_how_they_differ_and_is_no_taller_than_the_plot():
    names = [f"qwen3-1.7b-opasd-lambda{n / 10}-layers{n % 3 + 1}-seed{n}" for n in range(30)]
    series = [s for n, name in enumerate(names) for s in (Series(name, n, [(0, 1.0), (1, n)], faint=True),
                                                          Series(name, n, [(0, 1.0), (1, n)]))]  # fmt: skip
    figure = Figure("f", "t", "line", "step", "y", series)
    text = svg(figure, standalone=True)
    shown = re.findall(r'class="name"[^>]*>([^<]*)<', text)
    assert shown == [name.removeprefix("qwen3-1.7b-opasd-")[:LONGEST_NAME] for name in names]
    assert 'class="name"' not in svg(figure), "in the page the legend is at the top"
    assert len(polylines(text)) == 30, "raw values of so many runs hide everything"


@pytest.mark.parametrize(("runs", "labelled"), [(1, True), (3, False)])
def test_numbers_stand_above_bars_that_are_wide_enough(runs, labelled):
    series = [Series(f"r{n}", n, [(x, 1.234e-7) for x in range(4)]) for n in range(runs)]
    text = svg(Figure("f", "t", "bar", "", "y", series, categories=("a", "b", "c", "d")))
    assert ("1.23e−7" in text) == labelled


@given(st.sampled_from([1e-9, 0.001, 1.0, 12345.0, 3.2e6, 9.87e11]), st.sampled_from(["line", "bar", "scatter"]))
def test_labels_of_an_axis_begin_inside_the_picture(scale, kind):
    """As wide as they are: 7.3 units a character."""
    series = [Series("a", 0, [(0, -1.2345 * scale), (1, scale)], sizes=[1, 1])]
    text = svg(Figure("f", "t", kind, "x", "y", series, categories=("a", "b") if kind == "bar" else ()))
    labels = re.findall(r'<text x="([\d.]+)"[^>]*text-anchor="end">([^<]+)</text>', text)
    assert labels
    assert all(float(x) - 7.3 * len(label) >= 0 for x, label in labels)


def test_the_marks_of_a_budget_axis_are_the_budgets():
    budgets = [1024.0, 3000.0, 16384.0]
    series = [Series("a", 0, [(x, 0.5) for x in budgets])]
    text = svg(Figure("f", "t", "line", "tokens", "y", series, x_marks=budgets))
    assert re.findall(r'text-anchor="middle">([\d,]+)</text>', text) == ["1,024", "3,000", "16,384"]


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("eye", ["normal", "protanopia", "deuteranopia", "tritanopia"])
def test_any_two_colours_differ_for_every_eye(theme, eye):
    """By ΔE 18 or more (CIE 1976), as Machado, Oliveira and Fernandes (2009) model the three deficiencies."""
    colours = dict(re.findall(r"--(\w+):(#\w{6});", {"light": LIGHT, "dark": DARK}[theme]))
    labs = [_lab(colours[f"run{n}"], EYES[eye]) for n in range(COLOURS)]
    assert min(math.dist(a, b) for a, b in itertools.combinations(labs, 2)) >= 18
    for n in range(COLOURS):
        for back in ("back", "card"):
            light = sorted(0.05 + _luminance(colours[name]) for name in (f"run{n}", back))
            assert light[1] / light[0] >= 2.95


EYES = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def _linear(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]


def _luminance(colour):
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), _linear(colour), strict=True))


def _lab(colour, eye):
    seen = [min(1.0, max(0.0, sum(a * b for a, b in zip(row, _linear(colour), strict=True)))) for row in eye]
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.072175], [0.0193339, 0.119192, 0.9503041]]
    white = (0.95047, 1.0, 1.08883)
    xyz = [sum(a * b for a, b in zip(row, seen, strict=True)) / w for row, w in zip(to_xyz, white, strict=True)]
    x, y, z = (v ** (1 / 3) if v > 216 / 24389 else (24389 / 27 * v + 16) / 116 for v in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)
