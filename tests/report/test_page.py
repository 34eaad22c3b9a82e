"""The page and its folder: nothing that a model wrote is obeyed, nothing that is not ours is overwritten."""

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.errors import ConfigError
from opasd.report.facts import read_facts
from opasd.report.folders import Run, Sample, read_run, read_runs
from opasd.report.page import Page, notice, paragraph
from opasd.report.samples import LONGEST, comparisons, explorer
from opasd.report.text import digest, embedded, printable, shortened, slug
from opasd.report.write import MANIFEST, check_folder, make, write
from tests.report.made import HOSTILE, make_run

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


def run_of(text, name="run", other=None):
    samples = [
        Sample("set", 1, "p", 0, text, text, text, 10, True, True),
        Sample("set", 1, "q", 0, text, text, other or text, 9, None, False),
    ]
    return Run(
        name, path=None, state="evaluated", samples=samples, notes=[text], config={"model": {"name_or_path": text}}
    )  # pyright: ignore[reportArgumentType]


@settings(max_examples=60, deadline=None)
@given(st.text(min_size=1) | st.just(HOSTILE))
def test_hostile_text_adds_no_tag_and_every_block_of_data_can_be_read(text):
    """Names, notes, settings, questions and completions are whatever they are."""
    page = make([run_of(text, text), run_of(text, text + "b", text + "c")], title=text).page.html()
    page.encode("utf-8")
    found = parsed(page)
    harmless = parsed(make([run_of("a", "a"), run_of("a", "ab", "ac")], title="a").page.html())
    kept = [tag for tag in found.seen if tag not in ("span", "mark")]
    assert kept == [tag for tag in harmless.seen if tag not in ("span", "mark")]
    for kind, content in found.scripts:
        if kind == "application/json":
            json.loads(content)
            assert not re.search("[<>&\u2028\u2029]", content)


def test_nothing_is_fetched_and_only_our_own_scripts_may_run(tmp_path):
    page = make([read_run(make_run(tmp_path, "one", text=HOSTILE))], [read_facts("paper")]).page.html()
    assert parsed(page).links <= {f"#{name}" for name in re.findall(r'<section id="([^"]*)"', page)}
    assert not re.search(r"url\(|@import", page)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    for kind, script in parsed(page).scripts:
        assert kind == "application/json" or digest(script) in policy
    (style,) = re.findall(r"<style>(.*?)</style>", page, re.DOTALL)
    assert digest(style) in policy


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


def test_samples_that_fit_are_all_in_the_page():
    found = explorer([run_of("text")])
    assert (found.shown, found.total, found.side) == (2, 2, [])
    assert [row[8] for row in found.data["rows"]] == ["text", "text"]


def test_samples_that_do_not_fit_are_spread_evenly_and_whole_in_side_files():
    runs = []
    for name in ("a", "b"):
        samples = [Sample("set", n, f"p{n}", 0, "q", "7", f"{n} " + "x" * 500, 10, True, False) for n in range(100)]
        runs.append(Run(name, None, "evaluated", samples=samples))
    found = explorer(runs, page_bytes=12_000, side_bytes=40_000)
    steps = [[row[2] for row in found.data["rows"] if row[0] == run] for run in (0, 1)]
    assert len(steps[0]) == len(steps[1]) == found.shown / 2
    assert steps[0][0] == 0
    assert steps[0][-1] >= 80
    assert sum(len(side["rows"]) for side in found.side) == 200 == found.total
    assert len(found.side) > 1


def test_a_completion_of_a_hundred_thousand_tokens_is_cut_in_the_page_and_whole_beside_it(tmp_path):
    text = "begin " + "word " * 100_000 + "end"
    run = Run("long", tmp_path, "evaluated", samples=[Sample("s", 1, "p", 0, "q", "", text, 100_002, False, True)])
    made = make([run])
    (row,) = explorer([run]).data["rows"]
    assert len(row[8]) <= LONGEST
    assert row[8].endswith("end")
    (side,) = made.side.values()
    assert text in side
    assert 'href="samples/part-001.html"' in made.page.html()


def test_side_by_side_marks_where_answers_part():
    first = run_of("q", "base", "Same. Then wrong.\nEnd")
    second = run_of("q", "other", "Same. Then <right>.\nEnd")
    html, count = comparisons([first, second])
    assert count == 1
    assert '<span class="same">Same. </span><mark>Then &lt;right&gt;.\n</mark>End' in html
    assert "parts at step 2" in html


def test_a_folder_is_written_and_written_again(tmp_path):
    runs = read_runs([make_run(tmp_path, "one")])
    folder = tmp_path / "out"
    page = write(make(runs, [read_facts("paper")]), folder)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "figures/rollout-accuracy.svg" in files
    assert {f"tables/results.{kind}" for kind in ("csv", "md", "tex")} <= files
    assert page.read_text().startswith("<!doctype html>")
    (folder / "notes.txt").write_text("mine")
    check_folder(folder)
    write(make(runs), folder)
    again = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "tables/facts-seeds.tex" not in again
    assert "notes.txt" in again


def test_what_is_no_report_is_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(ConfigError, match="not overwritten"):
            check_folder(tmp_path / name)
    check_folder(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty")


def test_a_forged_list_of_files_removes_nothing_outside(tmp_path):
    (tmp_path / "precious").write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps({"files": ["../precious", 7, "missing"]}))
    write(make([Run("a", tmp_path)]), folder)
    assert (tmp_path / "precious").exists()


def test_a_report_of_the_same_runs_is_the_same_page(tmp_path):
    path = make_run(tmp_path, "one")
    assert make([read_run(path)]).page.html() == make([read_run(path)]).page.html()


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


@pytest.mark.parametrize("text", ["漢<" * 11_000, "\x01" * 22_000, "\U0001f642&" * 8_000])
def test_the_page_is_bounded_by_what_is_in_it(text):
    """Questions, answers and characters that take several bytes or escapes count as what they are."""
    samples = [Sample("s", 1, f"p{n}", 0, f"{n}{text}", text, f"{n}{text}", 9, True, False) for n in range(40)]
    found = explorer([Run("a", None, "evaluated", samples=samples)], page_bytes=1_000_000)  # pyright: ignore[reportArgumentType]
    assert 0 < found.shown < 40
    assert len(embedded(found.data).encode()) < 1_100_000


def test_a_problem_stands_side_by_side_once_with_the_sample_that_says_most():
    def run(name, verdicts):
        samples = [
            Sample("s", None, "p", n, "q", "", f"{name} {n}", 5, found, False) for n, found in enumerate(verdicts)
        ]
        return Run(name, None, "evaluated", samples=samples)  # pyright: ignore[reportArgumentType]

    html, count = comparisons([run("a", [True, False, False]), run("b", [True, True, False])])
    assert (count, html.count("<details")) == (1, 1)
    assert "a 1" in html


def test_line_ends_of_another_system_are_line_ends():
    assert printable("a\r\nb\rc") == "a\nb\ufffdc"


def test_a_report_that_was_not_written_to_its_end_can_be_written_again(tmp_path):
    made = make([Run("a", tmp_path)])
    made.side["samples/x.html"] = None  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttributeError):
        write(made, tmp_path / "out")
    check_folder(tmp_path / "out")
