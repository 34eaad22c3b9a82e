"""The attention viewer in a real browser: the step follows mouse, keyboard and finger, before and after."""

import csv
import io
import json
import random
import re
import shutil
import subprocess
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from opasd.config import AttentionLossConfig
from opasd.data.made.counts import make_problems
from opasd.model.scoring import Scorer
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.report.attend import load
from opasd.report.attention import Stage, make_record
from opasd.report.build import build_report, write_report
from opasd.report.folders import read_runs
from opasd.report.page import viewer_page
from opasd.report.viewer import packed
from tests.models import add_lora
from tests.report.made import make_run
from tests.report.unpacking import unpacked

pytestmark = pytest.mark.browser
READY = "#viewer[data-ready=yes]"


@pytest.fixture(scope="module")
def found():
    subject = load("lab")
    problems = make_problems("test", 2, 0)
    model = add_lora(subject.before)
    scorer = Scorer(model, 2)
    stages = [Stage("before", scorer, model.disable_adapter), Stage("after", scorer)]
    builder = PromptBuilder(subject.tokenizer, subject.config.prompts)
    records = []
    for problem in problems:
        ids = tuple(subject.tokenizer(problem.solution, add_special_tokens=False)["input_ids"])
        rollout = Rollout(builder.pair(problem), ids, problem.id)
        about = {"title": problem.id, "correct": True, "trajectory": "given"}
        config = AttentionLossConfig(layers=2)
        records.append(make_record(rollout, stages, stages[0], subject.tokenizer, config, about=about))
        assert align(rollout.pair, len(ids)).num_tokens == len(ids)
    return records


@pytest.fixture(scope="module")
def shown(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("viewer") / "viewer.html"
    path.write_text(viewer_page("Where it looks", "test", found).html())
    return path


def step(page):
    return int(page.locator("#viewer").get_attribute("data-step"))


def test_it_begins_where_the_student_is_furthest_from_the_teacher(open_page, shown, found):
    page = open_page(shown, ready=READY)
    before = next(v["divergence"] for v in found[0]["views"] if v["stage"] == "before" and v["layer"] == 1)
    assert step(page) == before.index(max(before))
    assert page.locator("#viewer").get_attribute("data-stage") == "after"


def test_the_step_follows_the_mouse_and_a_click_holds_it(open_page, shown):
    page = open_page(shown, ready=READY)
    tokens = page.locator("[data-panel=student] .r")
    for place in (3, 7):
        tokens.nth(place).hover()
        assert step(page) == place
    tokens.nth(7).click()
    assert "held" in page.locator(".v-now").inner_text()
    tokens.nth(2).hover()
    assert step(page) == 7
    page.keyboard.press("Escape")
    tokens.nth(4).hover()
    assert step(page) == 4
    page.locator("[data-panel=teacher] .r").nth(5).hover()
    assert step(page) == 5


def test_the_step_follows_the_keyboard(open_page, shown, found):
    page = open_page(shown, ready=READY)
    from playwright.sync_api import expect

    page.locator("#viewer").focus()
    page.keyboard.press("Home")
    assert step(page) == 0
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    assert step(page) == 2
    page.keyboard.press("End")
    last = len(found[0]["seen"]["shared"]) - 1
    assert step(page) == last
    page.keyboard.press("ArrowRight")
    assert step(page) == last
    page.keyboard.press("b")
    assert page.locator("#viewer").get_attribute("data-stage") == "before"
    page.keyboard.press("Home")
    page.keyboard.press("Space")
    expect(page.locator("#viewer")).not_to_have_attribute("data-step", re.compile("^[01]$"))
    page.keyboard.press("Space")


def test_on_a_page_of_its_own_the_keys_work_at_once(open_page, found, tmp_path):
    (tmp_path / "v.html").write_text(viewer_page("t", "s", found).html())
    page = open_page(tmp_path / "v.html", ready=READY)
    for key, expected in (("Home", 0), ("ArrowRight", 1), ("End", len(found[0]["seen"]["shared"]) - 1)):
        page.keyboard.press(key)
        assert step(page) == expected
    page.keyboard.press("b")
    assert page.locator("#viewer").get_attribute("data-stage") == "before"
    page.locator("[aria-label=Shading]").focus()
    for key in ("Home", "ArrowLeft", "b"):
        page.keyboard.press(key)
    assert step(page) == expected
    assert page.locator("#viewer").get_attribute("data-stage") == "before"
    without = page.get_by_role("checkbox")
    without.focus()
    ticked = without.is_checked()
    page.keyboard.press("Space")
    assert without.is_checked() != ticked
    assert "play" in page.locator(".v-bar").inner_text()
    page.keyboard.press("Home")
    assert step(page) == 0
    page.locator("#theme").focus()
    theme = page.locator("#theme").inner_text()
    page.keyboard.press("Space")
    assert page.locator("#theme").inner_text() != theme


@pytest.fixture(scope="module")
def report(found, tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    run = make_run(folder, "one", samples=20)
    (run / "attention").mkdir()
    (run / "attention" / "problem-1.json").write_text(json.dumps(found[0]))
    return write_report(build_report(read_runs([run])), folder / "out")


def test_in_a_report_the_keys_are_the_viewers_where_it_is_looked_at_and_the_pages_elsewhere(open_page, report, found):
    page = open_page(report, ready=READY)
    assert page.evaluate("new Set([...document.querySelectorAll('[id]')].map(node => node.id)).size") == (
        page.locator("[id]").count()
    )
    last, began = len(found[0]["seen"]["shared"]) - 1, step(page)

    def press(key):
        """The step, and how far the page is scrolled once it stands still."""
        page.keyboard.press(key)
        places = [-1]
        while len(places) < 3 or places[-1] != places[-2]:
            page.wait_for_timeout(100)
            places.append(page.evaluate("scrollY"))
        return step(page), places[-1]

    page.mouse.move(2, 2)
    end = press("End")
    assert end[0] == began
    assert end[1] > 1000
    assert press("Home") == (began, 0)
    assert press("b") == (began, 0)
    assert page.locator("#viewer").get_attribute("data-stage") == "after"
    page.locator(".v-now").hover()
    there = page.evaluate("scrollY")
    assert press("End") == (last, there)
    assert press("ArrowLeft") == (last - 1, there)
    page.locator("[name=search]").focus()
    page.locator(".v-now").hover()
    assert press("Home")[0] == press("b")[0] == last - 1
    assert page.locator("[name=search]").input_value() == "b"
    page.locator(".v-now").click()
    page.mouse.move(2, 2)
    there = page.evaluate("scrollY")
    assert press("Home") == (0, there)
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert press("Home") == (0, 0)


def test_the_step_follows_curves_and_slider(open_page, shown, found):
    page = open_page(shown, ready=READY)
    box = page.locator(".v-curves").bounding_box()
    page.mouse.move(box["x"] + 14, box["y"] + 40)
    assert step(page) == 0
    page.mouse.move(box["x"] + box["width"] - 14, box["y"] + 40)
    assert step(page) == len(found[0]["seen"]["shared"]) - 1
    page.locator(".v-slide").fill("4")
    assert step(page) == 4


@pytest.mark.parametrize("panel", ["teacher", "projected", "student"])
def test_shades_are_the_weights(open_page, shown, found, panel):
    """The token with the most attention is the darkest, and what cannot be seen yet has no shade."""
    page = open_page(shown, ready=READY)
    page.locator(".v-slide").fill("6")
    page.select_option("[aria-label=Shading]", "linear")
    one = found[0]
    if panel == "student":
        pack, seen = next(v["student"] for v in one["views"] if v["stage"] == "after" and v["layer"] == 1), "shared"
    else:
        pack, seen = (
            next(layer[panel] for layer in one["layers"] if layer["layer"] == 1),
            ("teacher" if panel == "teacher" else "shared"),
        )
    row = unpacked(pack, one["seen"][seen])[6]
    positions = range(len(row)) if panel == "teacher" else one["shared"]["student"][: len(row)]
    expected = {place: min(weight / 0.25, 1) * 0.92 for place, weight in zip(positions, row, strict=True)}
    drawn = {}
    for top in (0, 150, 300, 450, 600, 900):  # only what is in sight is drawn
        page.locator(f"[data-panel={panel}] .v-text").evaluate("(box, top) => { box.scrollTop = top }", top)
        page.locator(f"[data-panel={panel}] [tabindex]").first.evaluate("(box, top) => { box.scrollTop = top }", top)
        page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 50))))"
        )
        drawn |= dict(
            page.locator(f"[data-panel={panel}] [data-at]").evaluate_all(
                "spans => spans.filter(span => { const box = span.parentElement.getBoundingClientRect(),"
                "own = span.getBoundingClientRect(); return own.bottom > box.top && own.top < box.bottom })"
                ".map(span => [+span.dataset.at, getComputedStyle(span).backgroundColor])"
            )
        )
    assert len(drawn) == len(one["teacher" if panel == "teacher" else "student"]["tokens"])
    for place, colour in drawn.items():
        numbers = [float(v) for v in re.findall(r"[\d.]+", colour)]
        alpha = numbers[3] if len(numbers) == 4 else 1.0
        assert alpha == pytest.approx(expected.get(place, 0.0), abs=0.012)


def test_trajectories_layers_shading_and_stages_can_be_chosen(open_page, shown, found):
    page = open_page(shown, ready=READY)
    from playwright.sync_api import expect

    page.select_option("[aria-label=Trajectory]", "1")
    expect(page.locator("[data-panel=student] .r")).to_have_count(len(found[1]["seen"]["shared"]))
    page.get_by_role("button", name="before").click()
    first = page.locator("[data-panel=student] p").inner_text()
    page.select_option("[aria-label=Layer]", "2")
    expect(page.locator("[data-panel=student] p")).not_to_have_text(first)
    for scale in ("log", "linear", "relative"):
        page.select_option("[aria-label=Shading]", scale)
    page.select_option("[aria-label='Go to']", "rho")
    rho = next(layer["rho"] for layer in found[1]["layers"] if layer["layer"] == 2)
    assert step(page) == rho.index(max(rho))
    page.get_by_text("without first token").click()
    assert page.locator(".v-top tbody tr").count() == 8


def test_where_they_differ_most(open_page, shown, found):
    page = open_page(shown, ready=READY)
    page.locator(".v-slide").fill("9")
    one = found[0]
    target = unpacked(
        next(layer["projected"] for layer in one["layers"] if layer["layer"] == 1), one["seen"]["shared"]
    )[9]
    mine = unpacked(
        next(v["student"] for v in one["views"] if v["stage"] == "after" and v["layer"] == 1), one["seen"]["shared"]
    )[9]
    place = one["shared"]["student"][int(abs(target - mine).argmax())]
    row = page.locator(".v-top tbody tr").first
    assert row.locator("em").inner_text() == one["student"]["tokens"][place].replace("\n", "⏎").strip()
    row.hover()
    assert page.locator("[data-panel=student] .flash").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone(open_page, shown, scheme):
    page = open_page(shown, width=390, height=844, scheme=scheme, ready=READY)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("[data-panel=teacher] .r").nth(3).tap()
    assert step(page) == 3
    assert "held" in page.locator(".v-now").inner_text()


def test_hostile_tokens_do_no_harm_and_a_damaged_record_says_so(open_page, found, tmp_path):
    one = {**found[0], "title": "</script><script>alert(1)</script>", "student": dict(found[0]["student"])}
    one["student"]["tokens"] = ["<img src=x onerror=alert(1)>", *one["student"]["tokens"][1:]]
    bad = {**one, "layers": [{**one["layers"][0], "teacher": {**one["layers"][0]["teacher"], "rows": "AAAA"}}]}
    for name, records, ready in (("a", [one], READY), ("b", [bad], "#viewer[data-ready=damaged]")):
        (tmp_path / f"{name}.html").write_text(viewer_page("t", "s", records).html())
        opened = open_page(tmp_path / f"{name}.html", ready=ready)
        assert opened.locator("img").count() == 0
    assert "damaged" in opened.locator("#viewer").inner_text()


def test_tokens_stay_where_they_are_while_the_step_changes(open_page, shown):
    page = open_page(shown, ready=READY)
    tokens = page.locator("[data-panel=student] .r")
    panel = page.locator("[data-panel=student]")
    places = {round(panel.bounding_box()["y"])}
    for place in range(tokens.count()):
        page.keyboard.press("Home")
        tokens.nth(place).evaluate("node => node.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))")
        places.add(round(panel.bounding_box()["y"]))
    tokens.nth(3).click()
    places.add(round(panel.bounding_box()["y"]))
    assert len(places) == 1


def test_the_curves_are_saved_with_their_tokens(open_page, shown, found):
    page = open_page(shown, ready=READY)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").click()
    header, *rows = csv.reader(io.StringIO(download.value.path().read_bytes().decode(), newline=""))
    assert header == ["step", "token", "rho", "rho on its text", "divergence before", "divergence after"]
    layer = next(layer for layer in found[0]["layers"] if layer["layer"] == 1)
    after = next(view for view in found[0]["views"] if view["stage"] == "after" and view["layer"] == 1)
    assert [float(row[2]) for row in rows] == layer["rho"]
    assert [float(row[3]) for row in rows] == layer["rho_text"]
    assert [float(row[5]) for row in rows] == after["divergence"]
    assert "".join(row[1].removeprefix("'") for row in rows) == "".join(
        found[0]["student"]["tokens"][found[0]["student"]["prompt"] :]
    )


def test_a_damaged_record_among_others_leaves_them_to_look_at(open_page, found, tmp_path):
    pack = {**found[0]["layers"][0]["teacher"], "rows": "AAAA"}
    bad = {**found[0], "title": "bad", "layers": [{**layer, "teacher": pack} for layer in found[0]["layers"]]}
    path = tmp_path / "v.html"
    path.write_text(viewer_page("t", "s", [found[0], bad, found[1]]).html())
    page = open_page(path, ready=READY)
    page.select_option("[aria-label=Trajectory]", "1")
    page.wait_for_selector("#viewer[data-ready=damaged]")
    for key in ("ArrowRight", "b", " ", "Escape"):
        page.locator("#viewer").press(key)
    page.locator(".v-curves").hover()
    page.select_option("[aria-label=Trajectory]", "2")
    page.wait_for_selector(READY)
    assert step(page) >= 0


@pytest.mark.parametrize("panel", ["teacher", "projected", "student"])
def test_tooltips_equal_the_data_at_random_steps(open_page, shown, found, panel):
    page = open_page(shown, ready=READY)
    one, rng = found[0], random.Random(panel)
    layer = next(layer for layer in one["layers"] if layer["layer"] == 1)
    view = next(v for v in one["views"] if v["stage"] == "after" and v["layer"] == 1)
    pack, seen = (
        (view["student"], "shared")
        if panel == "student"
        else (layer[panel], "teacher" if panel == "teacher" else "shared")
    )
    rows = unpacked(pack, one["seen"][seen])
    tokens = page.locator(f"[data-panel={panel}] [data-at]")
    page.locator("[data-panel=student] .r").nth(2).click()  # hold, so that hovering a response token changes nothing
    for _ in range(12):
        at_step = rng.randrange(len(rows))
        page.locator(".v-slide").fill(str(at_step))
        token = tokens.nth(rng.randrange(tokens.count()))
        place = int(token.get_attribute("data-at"))
        token.evaluate("node => node.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))")
        positions = (
            list(range(len(rows[at_step]))) if panel == "teacher" else one["shared"]["student"][: len(rows[at_step])]
        )
        weight = dict(zip(positions, rows[at_step], strict=True)).get(place, 0.0)
        title = token.get_attribute("title")
        assert title.startswith(f"{_percent(weight)} at step {at_step + 1}")
        prompt = one["teacher" if panel == "teacher" else "student"]["prompt"]
        assert (f"token {place - prompt + 1} of the response" in title) == (place >= prompt)
        later = (at_step + 5) % len(rows)
        page.locator(".v-slide").fill(str(later))
        assert token.get_attribute("title").split(";")[0].endswith(f"at step {later + 1}"), "it follows the step"


def _percent(value):
    if value >= 0.0995:
        return f"{100 * value:.0f} %"
    return f"{100 * value:.1f} %" if value >= 0.00095 else "< 0.1 %" if value > 0 else "0 %"


def test_rho_is_split_into_the_solutions_text_and_the_words_around_it(open_page, shown, found):
    page = open_page(shown, ready=READY)
    page.locator(".v-slide").fill("3")
    layer = next(layer for layer in found[0]["layers"] if layer["layer"] == 1)
    own, rho = layer["rho_text"][3], layer["rho"][3]
    row = unpacked(layer["teacher"], found[0]["seen"]["teacher"])[3]
    begin, end = found[0]["teacher"]["text"]
    assert own == pytest.approx(row[begin:end].sum(), rel=0.04)
    assert 0 < own < rho
    words = f"{_percent(own)} its own text, {_percent(rho - own)} the words around it"
    assert words in page.locator("[data-panel=teacher] p").inner_text()
    assert f"{_percent(own)} on its text" in page.locator(".v-sollabel").inner_text()
    assert page.locator(".v-curves .v-area").count() == 1


def test_the_solution_and_its_label_stay_in_sight(open_page, shown, found):
    page = open_page(shown, width=1440, height=900, ready=READY)
    for place in (0, len(found[0]["seen"]["shared"]) - 1):
        page.locator(".v-slide").fill(str(place))
        for part in (".v-sollabel", ".v-sol", "[data-panel=teacher] .now", "[data-panel=student] .now"):
            box = page.locator(part).bounding_box()
            assert box["y"] >= 0, part
            assert box["y"] + box["height"] <= 900, part


def test_before_and_after_side_by_side(open_page, shown, found):
    page = open_page(shown, width=1440, ready=READY)
    page.get_by_role("button", name="side by side").click()
    notes = [page.locator(f"[data-panel={name}] p").inner_text() for name in ("student", "second")]
    at = step(page)
    for note, stage in zip(notes, ("before", "after"), strict=True):
        value = next(v["divergence"] for v in found[0]["views"] if v["stage"] == stage and v["layer"] == 1)[at]
        assert f"{value:.3f}" in note or f"{value:.4f}" in note
    boxes = [
        page.locator(f"[data-panel={name}]").bounding_box() for name in ("teacher", "projected", "student", "second")
    ]
    assert len({round(box["y"]) for box in boxes}) == 1
    assert page.locator("[data-panel=second] .v-title").inner_text() == "Student after training"
    page.keyboard.press("b")
    assert page.locator("[data-panel=second]").is_hidden()


def test_shades_of_the_difference_and_of_each_head(open_page, shown, found):
    page = open_page(shown, ready=READY)
    page.locator("[data-panel=student] .r").nth(5).click()  # held
    page.select_option("[aria-label=Shading]", "difference")
    one = found[0]
    layer = next(layer for layer in one["layers"] if layer["layer"] == 1)
    view = next(v for v in one["views"] if v["stage"] == "after" and v["layer"] == 1)

    def check(layer, view):
        gap = (
            unpacked(layer["projected"], one["seen"]["shared"])[5] - unpacked(view["student"], one["seen"]["shared"])[5]
        )
        place = one["shared"]["student"][int(abs(gap).argmax())]
        token = page.locator(f"[data-panel=student] [data-at='{place}']")
        token.evaluate("node => node.dispatchEvent(new PointerEvent('pointerover', { bubbles: true }))")
        largest = gap[abs(gap).argmax()]
        sign = "+" if largest > 0 else "−"
        assert token.get_attribute("title").startswith(f"teacher − student {sign}{_percent(abs(largest))}")

    check(layer, view)
    assert len(layer["heads"]) == 6
    page.select_option("[aria-label=Head]", "4")
    page.wait_for_timeout(200)
    check(layer["heads"][4], view["heads"][4])
    assert f"{view['heads'][4]['divergence'][5]:.3f}"[:5] in page.locator(".v-now").inner_text()


def test_a_click_into_the_map_goes_there(open_page, shown, found):
    page = open_page(shown, ready=READY)
    page.wait_for_selector(".v-map[data-ready=yes]")
    box = page.locator(".v-map").bounding_box()
    steps = len(found[0]["seen"]["shared"])
    for share in (0.1, 0.8):
        page.mouse.click(box["x"] + share * box["width"], box["y"] + 20)
        assert step(page) == int(share * steps)
    pixels = page.locator(".v-map").evaluate(
        "map => [...map.getContext('2d').getImageData(0, 0, map.width, map.height).data]"
        ".filter((value, n) => n % 4 === 3 && value).length"
    )
    assert pixels > 100
    for source in ("student", "difference", "projected"):
        page.select_option("[aria-label=Map]", source)
        page.wait_for_selector(".v-map[data-ready=yes]")


def test_axes_have_numbers_and_the_divergence_its_name(open_page, shown, found):
    page = open_page(shown, ready=READY)
    texts = page.locator(".v-curves text").all_text_contents()
    assert any("JSD (β = 0.5)" in text for text in texts)
    assert [text for text in texts if text.endswith("%")]
    assert {"10", "20", "step"} <= set(texts)


def test_a_view_is_saved_as_a_slide(open_page, shown, found):
    page = open_page(shown, ready=READY)
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").click()
    png = download.value.path().read_bytes()
    assert (int.from_bytes(png[16:20]), int.from_bytes(png[20:24])) == (1920, 1080)
    page.get_by_role("button", name="side by side").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="SVG").click()
    text = download.value.path().read_text()
    tree = ET.fromstring(text)
    assert tree.get("width") == "1920"
    assert "var(--" not in text
    words = "".join(tree.itertext())
    assert "Where the teacher looks with the solution in view" in words
    assert "Student before training" in words
    assert f"step {step(page) + 1} of" in words
    assert "JSD (β = 0.5)" in words


def test_what_is_shown_stays_whole_while_another_trajectory_is_unpacked(open_page, shown, found):
    """Whatever is done meanwhile: here everything in one turn of the page's events, before anything is unpacked."""
    page = open_page(shown, ready=READY)
    page.evaluate(
        "() => { const set = (label, value, kind) => { const node = document.querySelector(`[aria-label=${label}]`);"
        "node.value = value; node.dispatchEvent(new Event(kind, { bubbles: true })) };"
        "set('Trajectory', 1, 'change'); set('Step', 4, 'input'); set('Layer', 2, 'change');"
        "set('Trajectory', 0, 'change'); set('Step', 5, 'input'); set('Trajectory', 1, 'change') }"
    )
    page.wait_for_selector(READY)
    assert page.locator("[data-panel=student] .r").count() == len(found[1]["seen"]["shared"])
    before = next(v["divergence"] for v in found[1]["views"] if v["stage"] == "before" and v["layer"] == 1)
    assert step(page) == before.index(max(before))
    page.evaluate(
        "() => { const node = document.querySelector('[aria-label=Layer]'); for (const value of [2, 1, 2, 1]) {"
        "node.value = value; node.dispatchEvent(new Event('change')) } }"
    )
    page.wait_for_timeout(300)
    page.locator(".v-slide").fill("3")
    rho = next(layer["rho"] for layer in found[1]["layers"] if layer["layer"] == 1)[3]
    assert _percent(rho) in page.locator("[data-panel=teacher] p").inner_text()


def test_a_link_opens_at_run_problem_and_step(open_page, shown, found):
    page = open_page(shown, ready=READY)
    page.select_option("[aria-label=Trajectory]", "1")
    page.wait_for_selector(READY)
    page.locator(".v-slide").fill("7")
    page.get_by_role("button", name="side by side").click()
    page.get_by_role("button", name="link").click()
    address = page.evaluate("location.href")
    assert "#look?run=" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(READY)
    assert step(page) == 7
    assert page.locator("[aria-label=Trajectory]").input_value() == "1"
    assert page.locator("#viewer").get_attribute("data-stage") == "side by side"
    assert "held" in page.locator(".v-now").inner_text()


def test_the_keyboard_reaches_every_pane(open_page, shown):
    page = open_page(shown, width=1440, ready=READY)
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
    assert {
        "Attention viewer", "Trajectory", "Layer", "Head", "Shading", "Map", "Step", "Teacher's context",
        "Projected's context", "Student's context", "The solution, which only the teacher sees",
        "Where they differ most",
    } <= reached  # fmt: skip
    assert any(name.startswith("Overview") for name in reached)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_and_every_token_can_be_read(open_page, shown, axe, scheme):
    page = open_page(shown, scheme=scheme, ready=READY)
    page.select_option("[aria-label=Shading]", "log")
    assert axe(page) == []
    page.get_by_role("button", name="side by side").click()
    assert axe(page) == []
    worst = page.evaluate(CONTRAST)
    assert worst >= 4.5


CONTRAST = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const over = ([r, g, b, a = 1], back) => [r, g, b].map((v, n) => v * a + back[n] * (1 - a));
  const light = (rgb) => {
    const [r, g, b] = rgb.map(v => v / 255).map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  let worst = 99;
  for (const span of document.querySelectorAll('.v-text [data-at], .v-sol [data-at]')) {
    const chain = [], end = [255, 255, 255];
    for (let n = span; n; n = n.parentElement) chain.unshift(parse(getComputedStyle(n).backgroundColor));
    const back = chain.reduce((below, own) => own.length > 3 && own[3] === 0 ? below : over(own, below), end);
    const a = light(back), b = light(over(parse(getComputedStyle(span).color), back));
    worst = Math.min(worst, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
  }
  return worst;
}"""


def test_a_step_touches_only_the_tokens_in_sight(open_page, found, tmp_path):
    """At 6,000 tokens: the changes that a step makes to the tokens, as the browser counts them."""
    path = tmp_path / "long.html"
    path.write_text(viewer_page("t", "s", [long_record(found[0], 6000)]).html())
    page = open_page(path, width=1440, ready=READY)
    assert page.locator("[data-panel=student] [data-at]").count() > 6000
    page.evaluate(
        "window.touched = new Set(); new MutationObserver(all => all.forEach(one => one.target.dataset?.at"
        " && touched.add(one.target)))"
        ".observe(document.querySelector('.v-panels'), { attributes: true, subtree: true })"
    )
    for place in (5000, 5001, 100):
        page.evaluate("window.touched.clear()")
        page.locator(".v-slide").fill(str(place))
        page.wait_for_timeout(150)
        assert 0 < page.evaluate("window.touched.size") < 2500
        assert page.locator("[data-panel=student] .now").get_attribute("data-step") == str(place)


def long_record(one, steps):
    """The record with a response of so many tokens, and weights made up."""
    prompts = {role: one[role]["tokens"][: one[role]["prompt"]] for role in ("student", "teacher")}
    shared = [p for p in one["shared"]["student"] if p < one["student"]["prompt"]]
    shared_teacher = one["shared"]["teacher"][: len(shared)]
    words = [f" word{n}" for n in range(steps)]
    rng = np.random.default_rng(0)
    seen = {
        "teacher": [len(prompts["teacher"]) + n for n in range(steps)],
        "shared": [len(shared) + n for n in range(steps)],
    }

    def made(lengths):
        rows = []
        for length in lengths:
            row = np.zeros(length)
            row[rng.integers(0, length, 200)] = rng.random(200) / 200
            rows.append(row)
        return packed(rows)

    curve = rng.random(steps).round(4).tolist()
    layer = {
        "layer": 1,
        "teacher": made(seen["teacher"]),
        "projected": made(seen["shared"]),
        "rho": curve,
        "rho_text": curve,
    }
    view = {"stage": "after", "layer": 1, "student": made(seen["shared"]), "divergence": curve}
    return {
        **one, "seen": seen, "layers": [layer], "views": [view, {**view, "stage": "before"}],
        "student": {**one["student"], "tokens": prompts["student"] + words},
        "teacher": {**one["teacher"], "tokens": prompts["teacher"] + words},
        "shared": {
            "student": shared + [len(prompts["student"]) + n for n in range(steps)],
            "teacher": shared_teacher + [len(prompts["teacher"]) + n for n in range(steps)],
        },
    }  # fmt: skip


def test_on_paper_all_three_panels_are_there_with_their_shades(open_page, shown):
    page = open_page(shown, width=718, height=1015, ready=READY)
    page.emulate_media(media="print")
    for panel in ("teacher", "projected", "student"):
        box = page.locator(f"[data-panel={panel}]").bounding_box()
        assert 0 <= box["x"] < box["x"] + box["width"] <= 718
    assert page.locator(".v-now").bounding_box()["y"] < 200, "it begins on the first sheet, below the title"
    assert page.locator("#viewer").evaluate("node => getComputedStyle(node).breakInside") == "auto"
    adjust = "node => getComputedStyle(node).printColorAdjust"
    assert page.locator("[data-panel=student] .r").first.evaluate(adjust) == "exact"


def test_on_paper_no_sheet_is_blank(open_page, shown, tmp_path):
    if shutil.which("pdftotext") is None:
        pytest.skip("no pdftotext here")
    page = open_page(shown, ready=READY)
    page.pdf(path=tmp_path / "page.pdf", format="A4")
    text = subprocess.run(
        ["pdftotext", "-layout", tmp_path / "page.pdf", "-"], capture_output=True, text=True, check=True
    )
    sheets = text.stdout.split("\f")[:-1]
    assert "Teacher" in sheets[0]
    assert all(len([line for line in sheet.splitlines() if line.strip()]) > 1 for sheet in sheets)
