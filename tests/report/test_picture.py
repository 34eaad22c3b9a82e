"""The two pictures of the method: drawn from a record, with its own numbers."""

import html
import re
import xml.etree.ElementTree as ET

import pytest

from opasd.config import AttentionLossConfig
from opasd.data.made.counts import make_problems
from opasd.model.scoring import Scorer
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.report.attend import load
from opasd.report.attention import Stage, make_record
from opasd.report.picture import EDGE, WIDTH, both, contexts, projection
from opasd.report.viewer import unpacked
from tests.report import unpacking


@pytest.fixture(scope="module")
def record():
    subject, (problem,) = load("lab"), make_problems("test", 1, 0)
    stage = Stage("as it is", Scorer(subject.before, 1))
    ids = tuple(subject.tokenizer(problem.solution, add_special_tokens=False)["input_ids"])
    rollout = Rollout(PromptBuilder(subject.tokenizer, subject.config.prompts).pair(problem), ids, "r")
    return make_record(rollout, [stage], stage, subject.tokenizer, AttentionLossConfig(), about={}, heads=False)


def test_the_two_contexts_show_the_problem_twice_and_the_solution_once(record):
    picture = contexts(record)
    ET.fromstring(picture)
    start = record["problem"]["question"][:30]
    assert picture.count(start) == 2
    assert picture.count("only the teacher sees this") == 1
    assert "xlink" not in picture
    hostile = {**record, "problem": {"question": "</text><script>alert(1)</script>"}}
    assert "<script" not in contexts(hostile)


def test_the_projection_draws_the_weights_of_its_step(record):
    (layer,), (view,) = record["layers"], record["views"]
    picture = projection(record, 5)
    ET.fromstring(picture)
    heights = [float(h) for h in re.findall(r'<rect class="student"[^>]*height="([\d.]+)"', picture)]
    seen = record["seen"]
    rows = [unpacking.unpacked(pack, seen["shared"])[5] for pack in (layer["projected"], view["student"])]
    rows.append(unpacking.unpacked(layer["teacher"], seen["teacher"])[5])
    assert record["shared"]["teacher"][0] == 0
    largest = max(row[1:].max() for row in rows)
    expected = [92 * min(weight / largest, 1) ** 0.5 for weight in rows[1]]
    assert heights == pytest.approx([tall for tall in expected if tall >= 0.3], abs=0.06)
    assert f"{100 * layer['rho'][5]:.0f} % of its attention is on the solution" in picture
    begin, end = record["teacher"]["solution"]
    bars = re.findall(r'<rect class="projected" x="([\d.]+)"', picture)
    wide = (WIDTH - 2 * EDGE) / len(unpacking.unpacked(layer["teacher"], record["seen"]["teacher"])[5])
    assert not [x for x in map(float, bars) if 24 + begin * wide + 0.1 < x < 24 + end * wide - 0.1]


def test_rows_are_unpacked_as_a_browser_does(record):
    (layer,) = record["layers"]
    ours, theirs = (read(layer["teacher"], record["seen"]["teacher"]) for read in (unpacked, unpacking.unpacked))
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other)


@pytest.mark.parametrize("question", ["", "Short?", "How many " * 90, "x" * 400])
def test_no_text_leaves_its_picture(record, question):
    """As wide as characters are at most: 8.5 units in monospace, 8.6 otherwise."""
    long = {**record, "problem": {"question": question}}
    for picture in (contexts(long), projection(long, 0), projection(long)):
        assert "prefers-color-scheme:dark" in picture
        height = float(re.search(r'viewBox="0 0 840 (\d+)"', picture).group(1))
        for kind, x, y, anchor, text in re.findall(
            r'<text class="(\w*)" x="([\d.]+)" y="([\d.]+)" text-anchor="(\w+)"[^>]*>([^<]*)</text>', picture
        ):
            wide = len(html.unescape(text)) * {"m": 8.5, "h": 9.6, "s": 7.6}.get(kind, 8.6)
            left = float(x) - {"start": 0, "middle": wide / 2, "end": wide}[anchor]
            assert 0 <= left <= left + wide <= WIDTH, text
            assert 12 < float(y) < height, text


def test_both_pictures_stand_below_one_another_in_one(record):
    whole = ET.fromstring(both(record))
    inner = whole.findall("{http://www.w3.org/2000/svg}svg")
    assert [float(part.get("y")) for part in inner] == [0, float(inner[0].get("height"))]
    assert float(whole.get("height")) == sum(float(part.get("height")) for part in inner)
