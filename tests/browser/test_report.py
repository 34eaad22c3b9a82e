"""The report in a real browser: no complaint, tables sort, filters filter, both themes, a phone, and in time."""

import dataclasses
import html
import re
import shutil
import subprocess

import pytest

from opasd.report.build import build_report, write_report
from opasd.report.facts import read_facts
from opasd.report.folders import read_runs
from tests.report.made import HOSTILE, make_evaluation, make_run

pytestmark = pytest.mark.browser
READY = "#explorer[data-ready=yes]"
OUTSIDE = """() => [...document.querySelectorAll('svg.plot')].flatMap(svg => { const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll('text')].filter(text => text.textContent.trim()).filter(text => {
        const own = text.getBoundingClientRect(); return own.left < box.left - 1 || own.right > box.right + 1
        || own.top < box.top - 1 || own.bottom > box.bottom + 1 }).map(text => [svg.ariaLabel, text.textContent]) })"""
"""Every text of a figure that leaves its figure."""
PASSES = ("avg@12", "pass@1", "pass@6", "pass@12")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    paths = [make_run(folder, f"opasd-{seed}", seed=seed, samples=30) for seed in (1, 42)]
    paths.append(make_run(folder, "opsd_50%<b>", recipe="lab-opsd", seed=42, samples=30, finished=False))
    paths.append(make_evaluation(folder / "e", {"base": None, "opasd-1": paths[0]}))
    return write_report(build_report(read_runs(paths), [read_facts("paper")]), folder / "out")


def test_it_opens_with_everything_in_it(open_page, report):
    page = open_page(report, ready=READY)
    assert page.locator("h2").all_text_contents() == [
        "Results", "Training dynamics", "Validation", "Evaluation", "Attention", "Cost", "Epistemic markers", "Seeds",
        "Side by side", "Samples", "Settings", "Published numbers",
    ]  # fmt: skip
    notice = page.locator(".notice")
    assert notice.bounding_box()["height"] < 60, "one line"
    notice.locator("summary").click()
    assert "not finished" in notice.inner_text()
    assert page.locator("svg.plot").count() > 20
    assert "0.14" in page.locator("#facts-1").inner_text()


@pytest.mark.parametrize("column", [1, 2])
def test_tables_sort_by_number_both_ways(open_page, report, column):
    page = open_page(report, ready=READY)
    table = page.locator("#results table").first
    head = table.locator("thead th").nth(column)

    def values():
        found = table.locator(f"tbody tr:not(.sub) td:nth-child({column + 1})").evaluate_all(
            "cells => cells.map(cell => cell.dataset.v === undefined ? null : +cell.dataset.v)"
        )
        return [value for value in found if value is not None], found

    head.locator("button").click()
    numbers, found = values()
    assert numbers == sorted(numbers, reverse=True)
    assert found[: len(numbers)] == numbers
    head.locator("button").click()
    numbers, found = values()
    assert numbers == sorted(numbers)
    assert head.get_attribute("aria-sort") == "ascending"


def test_sorting_keeps_groups_and_the_rows_below_the_line_in_place(open_page, report):
    page = open_page(report, ready=READY)
    seeds = page.locator("#facts-1 table").nth(4)
    seeds.locator("thead button").nth(1).click()
    first = seeds.locator("tbody td:first-child")
    assert first.all_inner_texts() == ["Seed 123", "Seed 42", "Seed 1", "Mean", "Std", "95 % CI"]
    main = page.locator("#facts-1 table").first
    main.locator("thead button").nth(1).click()
    rows = main.locator("tbody tr").all_inner_texts()
    assert [re.split(r"\s", row)[0] for row in rows] == [
        "Qwen3-8B", "OPASD", "Base", "OPSD", "Qwen3-4B", "OPASD", "Base", "OPSD", "Qwen3-1.7B", "OPASD", "OPSD", "Base",
    ]  # fmt: skip


def test_samples_are_searched_and_filtered(open_page, report):
    page = open_page(report, ready=READY)
    from playwright.sync_api import expect

    count, cards = page.locator(".count"), page.locator("#explorer article")

    def shown(badge):
        return cards.locator(".badge", has_text=badge).count()

    total = int(count.inner_text().split(" of ")[1].split()[0])
    assert total == 3 * 30 + 2 * 18
    page.select_option("[name=verdict]", "1")
    expect(count).not_to_have_text(re.compile(f"^{total} "))
    right = int(count.inner_text().split(" of ")[0])
    assert shown("right") == cards.count() == min(20, right)
    page.select_option("[name=verdict]", "0")
    expect(cards.locator(".badge").first).to_have_text("wrong")
    assert right + int(count.inner_text().split(" of ")[0]) == total
    page.select_option("[name=verdict]", "truncated")
    expect(count).to_have_text(re.compile("^12 of"))
    assert shown("truncated") == cards.count() == 12
    page.select_option("[name=verdict]", "")
    page.fill("[name=search]", "QUESTION 17:")
    expect(count).to_have_text(re.compile("^3 of"))
    page.fill("[name=search]", "")
    page.select_option("[name=run]", label="opasd-42")
    expect(count).to_have_text(re.compile("^30 of"))
    page.locator(".more").click()
    assert cards.count() == 30
    page.select_option("[name=order]", "long")
    expect(cards.first).to_contain_text("28 tokens")


def test_runs_are_hidden_and_shown(open_page, report):
    page = open_page(report, ready=READY)
    drawn = page.locator("#fig-rollout-accuracy g.run1 polyline").first
    assert drawn.is_visible()
    page.locator(".chip[data-run='1']").click()
    assert drawn.count() == 0
    assert page.locator("#results tr.run1").first.is_hidden()
    page.locator(".chip[data-run='1']").click()
    assert drawn.is_visible()


def test_the_legend_rescales_axes_and_what_is_saved_follows(open_page, tmp_path):
    runs = read_runs([make_run(tmp_path, "opasd"), make_run(tmp_path, "opsd", recipe="lab-opsd")])
    for row in runs[1].rows:
        if "rollout/length_mean" in row:
            row["rollout/length_mean"] *= 1000
    page = open_page(write_report(build_report(runs), tmp_path / "out"), ready=READY)
    figure = page.locator("#fig-response-length")

    def axis():
        return figure.locator("text[text-anchor=end]").all_text_contents()

    assert axis()[-1].endswith("K")
    page.locator(".chip[data-run='1']").click()
    assert max(float(text) for text in axis()) < 100
    for kind in ("csv", "svg"):
        with page.expect_download() as download:
            figure.locator(f"[data-get={kind}]").click()
        text = download.value.path().read_text()
        assert "OPASD" in text
        assert "OPSD" not in text.replace("OPASD", "")
    page.locator(".chip[data-run='1']").click()
    assert axis()[-1].endswith("K")


def test_the_script_draws_what_the_package_draws(open_page, report):
    """The page's pictures, as it saves them, against the files beside it: every number and every word."""
    page = open_page(report, ready=READY)
    page.emulate_media(color_scheme="light")
    ids = page.evaluate("opasd.data('figure-data').map(figure => figure.id)")
    assert {"forest", "pareto", "operations", "rollout-accuracy"} <= set(ids)
    saved = page.evaluate("opasd.data('figure-data').map(figure => opasd.standalone(figure)[0])")
    for name, text in zip(ids, saved, strict=True):
        beside = (report.parent / "figures" / f"{name}.svg").read_text()
        for one in (text, beside):
            assert one.startswith("<svg")
        words = [html.unescape(re.sub(r"<style>.*?</style>", "", one)) for one in (text, beside)]
        kinds = [re.findall(r"<(\w+)(?: class=\"([\w ]*)\")?", one) for one in words]
        assert kinds[0] == kinds[1], name
        texts = [re.findall(r">([^<>]+)<", one) for one in words]
        assert texts[0] == texts[1], name
        places = [[float(v) for v in re.findall(r"-?\d+\.\d\b", one)] for one in words]
        assert places[0] == pytest.approx(places[1], abs=0.11), name


def test_seeds_fold_out(open_page, report):
    page = open_page(report, ready=READY)
    table = page.locator("#results table").first
    rows = table.locator("tbody tr:visible")
    folded = rows.count()
    table.locator(".fold").first.click()
    assert rows.count() == folded + 2
    assert "seed 42" in table.inner_text()
    page.locator(".chip[data-run='2']").click()
    assert "seed 42" not in table.inner_text()
    page.locator(".chip[data-run='2']").click()
    assert rows.count() == folded + 2
    table.locator("thead button").nth(1).click()
    texts = [text.split("\n")[0] for text in rows.all_inner_texts()]
    at = next(n for n, text in enumerate(texts) if "OPASD" in text)
    assert "seed" in texts[at + 1]
    assert "seed" in texts[at + 2], "seeds stay below their method"


def test_each_bubble_names_its_own_run(open_page, tmp_path):
    paths = [make_run(tmp_path, f"v{n}-{seed}", seed=seed, steps=10 + n) for n in range(8) for seed in (1, 2, 3)]
    runs = read_runs(paths)
    page = open_page(write_report(build_report(runs), tmp_path / "out"), ready=READY)
    figure = page.locator("#fig-pareto")
    figure.scroll_into_view_if_needed()
    box = figure.locator("svg").bounding_box()
    places = page.evaluate(
        "() => { const one = opasd.data('figure-data').find(f => f.id === 'pareto');"
        "const svg = document.querySelector('#fig-pareto svg'), width = svg.viewBox.baseVal.width;"
        "const { frame } = opasd.draw(one, width), scale = svg.getBoundingClientRect().width / width;"
        "return one.series.map(s => [s.n, frame.across(s.p[0][0]) * scale, frame.down(s.p[0][1]) * scale]) }"
    )
    assert len(places) == 24
    for name, x, y in places:
        page.mouse.move(box["x"] + x, box["y"] + y)
        here = {other for other, left, top in places if abs(left - x) + abs(top - y) < 0.5}
        assert name in here
        assert set(figure.locator(".tip bdi").all_text_contents()) <= here, "and no other"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_every_label_is_inside_its_box(open_page, report, width, scheme):
    page = open_page(report, width=width, scheme=scheme, ready=READY)
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_phone_name_accuracy_and_difference_come_first(open_page, report):
    page = open_page(report, width=390, height=844, ready=READY)
    heads = page.locator("#results table").first.locator("thead th")
    assert [heads.nth(n).inner_text().strip() for n in range(3)] == ["method", "set, %", "against the base"]
    for n in range(3):
        box = heads.nth(n).bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 390
    assert page.locator(".chip").first.bounding_box()["height"] >= 20


@pytest.mark.parametrize("which", ["report", "thirty"])
def test_on_paper_no_sheet_is_blank_and_no_heading_is_left_alone(open_page, request, which, tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext here")
    page = open_page(request.getfixturevalue(which), ready=READY)
    headings = page.locator("h2, h3").all_inner_texts()
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    text = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "page.pdf", "-"], capture_output=True, text=True, check=True
    )
    sheets = text.stdout.split("\f")[:-1]
    assert len(sheets) > 2
    for sheet in sheets:
        lines = [line.strip() for line in sheet.splitlines() if line.strip()]
        assert len(lines) > 1 or sheet is sheets[-1]
        assert lines[-1] not in headings
    assert "Results" in sheets[0]
    assert "%" in sheets[0], "the answer is on the first sheet"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page, report, axe, scheme):
    page = open_page(report, scheme=scheme, ready=READY)
    assert axe(page) == []


def test_a_crosshair_tells_the_values(open_page, report):
    page = open_page(report, ready=READY)
    chart = page.locator("#fig-rollout-accuracy svg")
    chart.scroll_into_view_if_needed()
    chart.hover()
    tip = page.locator("#fig-rollout-accuracy .tip")
    assert tip.is_visible()
    assert re.search(r"step \d+.*OPASD.*%", tip.inner_text(), re.DOTALL)


@pytest.mark.parametrize(("kind", "start"), [("svg", b"<svg"), ("png", b"\x89PNG"), ("csv", b"series,step,accuracy")])
def test_a_figure_is_saved(open_page, report, kind, start):
    page = open_page(report, ready=READY)
    with page.expect_download() as download:
        page.locator(f"#fig-rollout-accuracy [data-get={kind}]").click()
    assert download.value.suggested_filename == f"rollout-accuracy.{kind}"
    content = download.value.path().read_bytes()
    assert content.startswith(start)
    assert b"var(--" not in content


def test_a_table_is_saved(open_page, report):
    page = open_page(report, ready=READY)
    with page.expect_download() as download:
        page.locator("#results > details [data-as=tex]").first.dispatch_event("click")
    assert r"opsd\_50\%\textless{}b\textgreater{}" in download.value.path().read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible_and_can_be_switched(open_page, report, scheme):
    page = open_page(report, scheme=scheme, ready=READY)

    def contrast():
        colours = page.evaluate(
            "() => [getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
        )
        light = sorted(_luminance([int(v) for v in re.findall(r"\d+", colour)[:3]]) for colour in colours)
        return (light[1] + 0.05) / (light[0] + 0.05), _luminance([int(v) for v in re.findall(r"\d+", colours[1])[:3]])

    ratio, back = contrast()
    assert ratio > 12
    assert (back > 0.5) == (scheme == "light")
    for _ in range(1 if scheme == "dark" else 2):
        page.locator("#theme").click()
    ratio, other = contrast()
    assert ratio > 12
    assert (other > 0.5) != (back > 0.5)


def _luminance(rgb):
    parts = [v / 255 / 12.92 if v <= 10 else ((v / 255 + 0.055) / 1.055) ** 2.4 for v in rgb]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]


def test_on_a_phone_nothing_is_wider_than_the_screen(open_page, report):
    page = open_page(report, width=390, height=844, ready=READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.locator("#fig-rollout-accuracy svg").bounding_box()["width"] <= 390


@pytest.mark.parametrize("width", [390, 1280])
def test_a_name_without_a_place_to_break_makes_nothing_wider(open_page, tmp_path, width):
    paths = [make_run(tmp_path / str(seed), "x" * 240, seed=seed, samples=4, finished=False) for seed in (1, 2)]
    paths.append(make_evaluation(tmp_path / ("e" * 240), {"y" * 240: paths[0]}))
    report = write_report(build_report(read_runs(paths), title="z" * 240), tmp_path / "out")
    page = open_page(report, width=width, height=844, ready=READY)
    assert page.locator("#seeds h3").count() == 1
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_on_paper_the_controls_are_gone(open_page, report):
    page = open_page(report, ready=READY)
    page.emulate_media(media="print")
    assert page.locator(".top nav").is_hidden()
    assert page.locator("#theme").is_hidden()
    assert page.locator(".chip").first.is_visible(), "the legend stays"
    assert page.locator("#results table").first.is_visible()


def test_hostile_completions_do_no_harm(open_page, tmp_path):
    from playwright.sync_api import expect

    long = "word " * 100_000
    path = make_run(tmp_path, "<img src=x onerror=alert(1)>", text=HOSTILE, samples=6)
    with (path / "samples.jsonl").open("ab") as file:
        file.write(b'{"step": 1, "id": "x", "completion": "broken \xff\xfe\xc3\x28 \xed\xa0\x80", "correct": false}\n')
        file.write(b'{"step": 1, "id": "y", "completion": "' + long.encode() + b'", "correct": false}\n')
        file.write('{"step": 1, "id": "z", "completion": "שלום עולם \u202e abc", "correct": true}\n'.encode())
    other = make_run(tmp_path, "other", text=HOSTILE + "!", samples=6)
    report = write_report(build_report(read_runs([path, other])), tmp_path / "out")
    for place in (report, tmp_path / "out" / "samples" / "part-001.html"):
        page = open_page(place, ready=READY)
        assert "hacked" not in page.title()
        assert page.locator("img").count() == 0
        assert page.locator("#explorer article").count() > 5
        assert "</script><script>" in page.locator("#explorer article > pre").first.inner_text()
        page.select_option("[name=order]", "long")
        expect(page.locator("#explorer article").first).to_contain_text("100,000 tokens")
        page.get_by_role("button", name="show all").first.click()
        assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    assert page.locator("#explorer pre", has_text="word word").first.inner_text().count("word") == 100_000


def test_of_five_runs_with_2000_samples_each_a_page_draws_few(open_page, tmp_path):
    """Under 20 MB a page; what is drawn when it opens does not grow with the samples."""
    step = "Ann gets 4 + 3 = 7 apples, minus 1 = 6. Wait, check that again: it seems right, so 6.\n"
    paths = [
        make_run(tmp_path, f"run-{n}", seed=n, steps=200, samples=2000, text=step * 14 + "Answer: \\boxed{{{n}}}")
        for n in range(5)
    ]
    report = write_report(build_report(read_runs(paths)), tmp_path / "out")
    assert report.stat().st_size < 20e6
    side = list((tmp_path / "out" / "samples").iterdir())
    assert side
    assert all(path.stat().st_size < 20e6 for path in side)
    page = open_page(report, ready=READY)
    assert page.locator("#explorer article").count() <= 40
    assert page.locator("*").count() < 8000
    assert "evenly spread" in page.locator("#samples").inner_text()


@pytest.fixture(scope="module")
def long_names(tmp_path_factory):
    """Four methods whose long names differ in their middle, a short one, and an evaluation of all but one seed."""
    folder = tmp_path_factory.mktemp("long")
    names = [f"qwen3-1.7b-opasd-weight-{weight}-and-a-rather-long-name-of-a-run" for weight in (0.02, 0.1, 0.25, 0.5)]
    runs = [make_run(folder, name, steps=12 + n, samples=3) for n, name in enumerate(names)]
    runs += [make_run(folder, f"opsd-seed-{seed}", recipe="lab-opsd", seed=seed, samples=3) for seed in (1, 2, 3)]
    paths = [*runs, make_evaluation(folder / "e", {"base": None, **{run.name: run for run in runs[:-1]}})]
    return write_report(build_report(read_runs(paths)), folder / "out")


@pytest.mark.parametrize("width", [390, 1024, 1440])
def test_long_names_stay_in_their_figures_and_apart(open_page, long_names, width):
    page = open_page(long_names, width=width, ready=READY)
    assert page.evaluate(OUTSIDE) == []
    rows = page.locator("#fig-forest text.name").all_text_contents()
    names = [text for text in rows if not re.match(r"[+−]?\d", text)]
    assert len(names) == len(set(names)) == 5
    ends = page.locator("#fig-rollout-accuracy text.name").all_text_contents()
    assert len(ends) == len(set(ends)) == (5 if width > 400 else 0), "a narrow figure leaves the names to the legend"
    table = page.locator("#results table").first
    assert table.locator("tbody td").first.bounding_box()["width"] < 0.5 * width
    assert "not evaluated" in table.text_content(), "a seed without an evaluation is named"


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    """Four benchmarks, three weights, two seeds of one of them."""
    folder = tmp_path_factory.mktemp("four")
    text = "Plan: Bob.\n" * 40 + "Answer: \\boxed{{{n}}}"
    paths = [make_run(folder, f"opasd-seed-{seed}", seed=seed, samples=3, text=text) for seed in (1, 2)]
    paths.append(make_run(folder, "opsd", recipe="lab-opsd", samples=3))
    for weight in (0.1, 2.0):
        paths.append(make_run(folder, f"weight-{weight}", samples=3))
        config = paths[-1] / "config.yaml"
        config.write_text(config.read_text().replace("attention_weight: 0.5", f"attention_weight: {weight}"))
    runs = read_runs([*paths, make_evaluation(folder / "e", {"base": None, **{path.name: path for path in paths}})])
    for run in runs:
        more = [
            dataclasses.replace(result, benchmark=name)
            for name in ("AIME24", "AIME25", "HMMT25")
            for result in run.results
        ]
        run.results += more
    return write_report(build_report(runs, [read_facts("paper")]), folder / "out")


@pytest.mark.parametrize("width", [390, 1440])
def test_axe_finds_nothing_where_tables_share_a_title_and_texts_scroll(open_page, four, axe, width):
    page = open_page(four, width=width, ready=READY)
    page.evaluate("document.querySelectorAll('#side-by-side details').forEach(one => { one.open = true })")
    page.wait_for_timeout(300)
    scrolling = "all => all.filter(pre => pre.scrollHeight > pre.clientHeight + 1).map(pre => pre.tabIndex)"
    for part in ("#explorer pre", "#side-by-side pre"):
        assert set(page.locator(part).evaluate_all(scrolling)) == {0}
    assert axe(page) == []


@pytest.mark.parametrize("width", [390, 768, 1440])
def test_methods_by_four_benchmarks_fit_and_so_do_ablations(open_page, four, width):
    page = open_page(four, width=width, ready=READY)
    table = page.locator("#results table").first
    heads = table.locator("thead th")
    assert heads.count() == 7
    assert page.locator("#results .wide").first.bounding_box()["width"] > (340 if width == 390 else 840 * width / 1440)
    for n in range({390: 3, 768: 5, 1440: 7}[width]):
        box = heads.nth(n).bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= width
    if width == 1440:
        boxes = page.locator("#results .answer .wide, #ablations .wide").evaluate_all(
            "boxes => boxes.map(box => [box.scrollWidth, box.clientWidth])"
        )
        assert len(boxes) > 1
        assert all(inner <= outer for inner, outer in boxes), "nothing is to be scrolled to"
        figure = page.locator("#fig-forest").bounding_box()
        assert figure["y"] < 900, "beside the table"
    assert page.evaluate(OUTSIDE) == []


@pytest.fixture(scope="module")
def thirty(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thirty")
    names = [f"qwen3-1.7b-opasd-lambda{n / 10}-layers{n % 3 + 1}" for n in range(30)]
    runs = read_runs([make_run(folder, name, samples=3, steps=12 + n) for n, name in enumerate(names)])
    for run in runs:
        more = {f"validation/{name}/{measure}": 0.5 for name in ("AIME24", "AIME25", "HMMT25") for measure in PASSES}
        run.rows.append({"step": 12, **more})
    return write_report(build_report(runs), folder / "out")


def test_thirty_runs_can_be_told_apart_and_picked(open_page, thirty):
    page = open_page(thirty, ready=READY)
    chips = page.locator(".chip")
    looks = chips.evaluate_all(
        "chips => chips.map(chip => { const s = getComputedStyle(chip.querySelector('.dot'));"
        "return [s.backgroundColor, s.clipPath, s.borderRadius].join() })"
    )
    assert len(set(looks)) == 30
    assert page.locator(".top").bounding_box()["height"] < 130
    page.locator("#every-run").click()
    assert page.locator("#results tbody tr:visible").count() == 0
    chips.nth(29).click()
    assert page.locator("#results tbody tr:visible").count() == 1
    slot = chips.nth(29).get_attribute("data-run")
    assert page.locator(f"#fig-rollout-accuracy g.run{slot} polyline").first.is_visible()
    for _ in range(2):
        page.locator("#every-run").click()
    assert page.locator("#results tbody tr:visible").count() == 30


@pytest.mark.parametrize("which", ["report", "thirty"])
def test_on_paper_nothing_is_cut(open_page, request, which):
    page = open_page(request.getfixturevalue(which), width=718, height=1015, ready=READY)
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 718


def test_what_the_page_saves_is_what_the_folder_holds(open_page, report):
    page = open_page(report, ready=READY)
    for name in ("rollout-accuracy", "generated-tokens", "pass-at-k-set", "markers-by-word", "pareto"):
        with page.expect_download() as download:
            page.locator(f"#fig-{name} [data-get=csv]").click()
        saved, beside = (
            [line.split(",") for line in text.splitlines()]
            for text in (download.value.path().read_text(), (report.parent / "figures" / f"{name}.csv").read_text())
        )
        assert [row[0] for row in saved] == [row[0] for row in beside]
        for one, other in zip(saved[1:], beside[1:], strict=True):
            assert [_value(cell) for cell in one[1:]] == pytest.approx([_value(cell) for cell in other[1:]], rel=1e-11)


def _value(cell):
    try:
        return float(cell)
    except ValueError:
        return sum(map(ord, cell))


def test_latex_is_rendered_and_can_be_left_as_text(open_page, tmp_path):
    text = r"So $x^{{2}} + \frac{{1}}{{n}}$ costs $5 or $6, $\unknown{{3}}$. \[\sum_{{i=1}}^{{9}} i\] \boxed{{{n}}}"
    paths = [make_run(tmp_path, name, text=text, samples=6) for name in ("a", "b")]
    page = open_page(write_report(build_report(read_runs(paths)), tmp_path / "out"), ready=READY)
    card = page.locator("#explorer article").first
    assert card.locator("math").count() == 3
    assert card.locator("mfrac").count() == 1
    assert r"costs $5 or $6, $\unknown{3}$." in card.inner_text()
    page.locator("#math").click()
    assert page.locator("math").count() == 0
    assert r"$x^{2} + \frac{1}{" in card.locator("pre").last.inner_text()
    page.locator("#math").click()
    assert card.locator("math").count() == 3
    page.fill("[name=search]", "frac")
    page.wait_for_timeout(300)
    assert "frac" in card.locator("mark").first.inner_text(), "what is searched is shown as it was written"
