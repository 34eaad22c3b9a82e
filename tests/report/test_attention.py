"""The viewer's record: the rows of the loss itself, packed so that a browser shows them nearly exactly."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.config import AttentionLossConfig, PromptConfig
from opasd.data.made.counts import make_problems
from opasd.losses.attention import attention_loss
from opasd.losses.divergence import divergence
from opasd.model.scoring import Scorer
from opasd.prompts.alignment import align
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.report.attend import load
from opasd.report.attention import Stage, layer_rows, make_record, token_texts
from opasd.report.build import build_report
from opasd.report.folders import read_run
from opasd.report.run import Run
from opasd.report.viewer import is_record
from tests.models import make_model
from tests.report.unpacking import unpacked


@pytest.fixture(scope="module")
def subject():
    return load("lab")


@pytest.fixture(scope="module")
def rollout(subject):
    problem = make_problems("test", 3, 0)[2]
    pair = PromptBuilder(subject.tokenizer, PromptConfig()).pair(problem)
    return Rollout(pair, tuple(subject.tokenizer(problem.solution, add_special_tokens=False)["input_ids"]), "r")


@pytest.mark.parametrize("handling", ["project", "redistribute", "shuffle"])
@pytest.mark.parametrize("query", ["predicting", "generated"])
def test_rows_are_those_of_the_loss(subject, rollout, handling, query):
    config = AttentionLossConfig(handling=handling, query=query)
    scorer = Scorer(subject.before, 2)
    alignment = align(rollout.pair, rollout.num_tokens, query=query)
    with torch.no_grad():
        student = scorer([rollout], "student", query=query)[0].layers[-1]
        teacher = scorer([rollout], "teacher", query=query)[0].layers[-1]
        rows = layer_rows(student, teacher, alignment, config)
        loss = attention_loss(student, teacher, alignment, handling=handling, impl="reference")
    ones = torch.ones(rollout.num_tokens)
    torch.testing.assert_close(rows.teacher_TS.sum(-1), ones)
    torch.testing.assert_close(rows.projected_TJ.sum(-1), ones)
    torch.testing.assert_close(rows.student_TJ.sum(-1), ones)
    torch.testing.assert_close(
        rows.teacher_TS[:, alignment.solution].sum(-1), loss.solution_mass_T, atol=1e-5, rtol=1e-4
    )
    again = divergence(rows.projected_TJ, rows.student_TJ, "jsd", 0.5)
    torch.testing.assert_close(again, loss.divergence_T, atol=1e-6, rtol=1e-3)
    torch.testing.assert_close(rows.divergence_T, loss.divergence_T, atol=1e-6, rtol=1e-3)


def test_a_sliding_window_is_kept_to(subject, rollout):
    model = make_model("mistral")
    scorer = Scorer(model, 1)
    vocabulary = model.config.vocab_size
    pair = rollout.pair
    ids = [tuple(token % vocabulary for token in part) for part in (pair.student_ids, pair.teacher_ids)]
    pair = type(pair)(**{**pair.__dict__, "student_ids": ids[0], "teacher_ids": ids[1]})
    small = Rollout(pair, tuple(token % vocabulary for token in rollout.completion_ids), "r")
    alignment = align(pair, small.num_tokens)
    with torch.no_grad():
        student, teacher = (scorer([small], role)[0].layers[0] for role in ("student", "teacher"))
        assert student.sliding_window
        rows = layer_rows(student, teacher, alignment, AttentionLossConfig())
        loss = attention_loss(student, teacher, alignment, impl="reference")
    again = divergence(rows.projected_TJ, rows.student_TJ, "jsd", 0.5)
    torch.testing.assert_close(again, loss.divergence_T, atol=1e-6, rtol=1e-3)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=30))
def test_pieces_are_the_text(subject, text):
    """Every token has a text, and together they are what was written, however bytes were split."""
    ids = subject.tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = token_texts(subject.tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == subject.tokenizer.decode(ids, skip_special_tokens=False)


@pytest.fixture(scope="module")
def record(subject, rollout):
    stages = [Stage("before", Scorer(subject.before, 1)), Stage("after", Scorer(subject.before, 1))]
    return make_record(rollout, stages, stages[0], subject.tokenizer, AttentionLossConfig(), about={"title": "t"})


def test_a_record_can_be_unpacked_and_says_what_the_rows_say(subject, rollout, record):
    assert is_record(json.loads(json.dumps(record)))
    steps = rollout.num_tokens
    alignment = align(rollout.pair, steps)
    teacher = unpacked(record["layers"][0]["teacher"], record["seen"]["teacher"])
    assert len(teacher) == steps
    for step, row in enumerate(teacher):
        assert len(row) == len(rollout.pair.teacher_ids) + step
        solution = row[record["teacher"]["solution"][0] : record["teacher"]["solution"][1]].sum()
        assert solution == pytest.approx(record["layers"][0]["rho"][step], abs=0.03)
    student = unpacked(record["views"][0]["student"], record["seen"]["shared"])
    assert [len(row) for row in student] == alignment.visible().tolist()
    assert all(0.95 < row.sum() < 1.03 for row in student)
    assert record["views"][0]["divergence"] == record["views"][1]["divergence"]
    assert "".join(record["student"]["tokens"][record["student"]["prompt"] :]) == rollout.pair.problem.solution


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("views"), lambda r: r.update(version=9), lambda r: r["views"].clear(),
        lambda r: r["layers"][0].update(rho=[1]), lambda r: r["student"].update(tokens=[1]),
        lambda r: r["seen"].update(shared="x"), lambda r: r["shared"]["student"].append(-1),
        lambda r: r["layers"][0]["rho"].__setitem__(0, float("nan")), lambda r: r.update(model=float("inf")),
        lambda r: r["shared"]["student"].__setitem__(0, 10**9),
    ],
)  # fmt: skip
def test_a_damaged_record_is_left_out_of_a_report_and_named(tmp_path, record, damage):
    damaged = json.loads(json.dumps(record))
    damage(damaged)
    assert not is_record(damaged)
    (tmp_path / "attention").mkdir()
    (tmp_path / "attention" / "problem-1.json").write_text(json.dumps(damaged))
    (tmp_path / "attention" / "problem-2.json").write_text(json.dumps(record))
    run = read_run(tmp_path)
    assert len(run.attention) == 1
    assert "problem-1.json is damaged" in " ".join(run.notes)
    assert build_report([run]).page.html().count('"kind":"opasd attention"') == 1
    assert not is_record([1])


def test_many_records_go_into_side_files_and_each_run_has_one_in_the_page(tmp_path, record):
    size = len(json.dumps(record))
    many = [{**record, "padding": "x" * (2_600_000 - size)} for _ in range(4)]
    made = build_report(
        [Run("a", tmp_path, attention=many), Run("b", tmp_path, attention=[{**record, "title": "of b"}])]
    )
    page = made.page.html()
    assert len(page) < 10e6
    assert "of b" in page
    assert list(made.side_pages) == ["attention/part-002.html"]
    assert 'href="attention/part-002.html"' in page
    assert sum(text.count('"kind":"opasd attention"') for text in (page, *made.side_pages.values())) == 5


def test_each_head_is_kept_beside_their_mean_and_rho_is_split(subject, rollout):
    scorer = Scorer(subject.before, 1)
    stage = Stage("as it is", scorer)
    record = make_record(rollout, [stage], stage, subject.tokenizer, AttentionLossConfig(), about={})
    (layer,), (view,) = record["layers"], record["views"]
    assert is_record(json.loads(json.dumps(record)))
    heads = scorer.model.config.num_attention_heads
    assert len(layer["heads"]) == len(view["heads"]) == heads
    lengths = record["seen"]["teacher"]
    mean = sum(row for head in layer["heads"] for row in [unpacked(head["teacher"], lengths)[-1]]) / heads
    assert mean == pytest.approx(unpacked(layer["teacher"], lengths)[-1], abs=0.01)
    begin, end = record["teacher"]["text"]
    assert "".join(record["teacher"]["tokens"][begin:end]).strip() == rollout.pair.problem.solution.strip()
    row = unpacked(layer["teacher"], lengths)[3]
    assert layer["rho_text"][3] == pytest.approx(row[begin:end].sum(), rel=0.05)
    assert all(0 <= own <= whole for own, whole in zip(layer["rho_text"], layer["rho"], strict=True))
    without = make_record(rollout, [stage], stage, subject.tokenizer, AttentionLossConfig(), about={}, heads=False)
    assert without["layers"][0]["heads"] == []
    damaged = {**record, "layers": [{**layer, "heads": [{**layer["heads"][0], "rho": [1.0]}]}]}
    assert not is_record(damaged)
