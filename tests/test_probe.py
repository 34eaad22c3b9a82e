"""The probe's readings against all logits in float64, its figures against plain loops, its choice of problems."""

import itertools
import json
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd import probe
from opasd.config import OPASDConfig, PromptConfig, RunConfig
from opasd.errors import CaptureError, ConfigError, PromptError
from opasd.evaluation.statistics import estimate
from opasd.losses import token
from opasd.losses.token import OutputHead, log_probabilities
from opasd.probe import Probe, Reply, Trajectory, held_out, judge, summarise
from opasd.prompts import PromptBuilder
from tests.models import attention_function, fast, make_model
from tests.rollouts import make_rollouts
from tests.training import TOKENIZER

ROW = Trajectory("data", "p", 0, True, "stop", 5, -0.5, 0.1, 0.8, 0.2, 0.05, 0.3)


class Silent:
    """Notes what it is told."""

    def __init__(self):
        self.said, self.advanced = [], 0

    def begin(self, total, done):
        self.advanced = 0

    def advance(self, label, samples, tokens, seconds):
        self.advanced += samples

    def say(self, text):
        self.said.append(text)


# ---- readings -------------------------------------------------------------------------------------------------------


def all_logits(model, rollout, role):
    """log p [T, V] from the model's own logits, without anything of the package."""
    prompt = rollout.pair.student_ids if role == "student" else rollout.pair.teacher_ids
    ids = torch.tensor([[*prompt, *rollout.completion_ids]])
    with torch.no_grad():
        return model(input_ids=ids).logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)


@pytest.mark.parametrize(
    ("family", "layout"),
    [("qwen3", "padded"), ("qwen3", "packed"), ("granite", "padded"), ("granite", "packed"), ("gemma2", "padded")],
)
def test_readings_are_those_of_all_logits_in_float64(family, layout):
    rollouts = make_rollouts((9, 1, 23, 14))
    token_loss = {"temperature": 1.0, "clip": "per_token", "clip_threshold": 0.05}
    method = {"layout": layout, "tokens_per_microbatch": 70, "objective": {"token": token_loss, "token_weight": 0.0}}
    progress = Silent()
    readings = judge(make_model(family, fast(family)), rollouts, OPASDConfig.model_validate(method), progress=progress)
    oracle = make_model(family, "eager", torch.float64)
    assert progress.advanced == len(rollouts)
    for rollout, reading in zip(rollouts, readings, strict=True):
        student, teacher = (all_logits(oracle, rollout, role) for role in ("student", "teacher"))
        chosen = torch.tensor(rollout.completion_ids)[:, None]
        ratio = (teacher - student).gather(-1, chosen)[:, 0]
        divergence = (teacher.exp() * (teacher - student)).sum(-1)
        assert reading["log_ratio"] == pytest.approx(ratio.tolist(), abs=2e-4)
        assert reading["divergence"] == pytest.approx(divergence.tolist(), abs=2e-4)
        clear = (divergence - 0.05).abs() > 1e-3
        assert [c for c, sure in zip(reading["clipped"], clear, strict=True) if sure] == (divergence > 0.05)[
            clear
        ].tolist()
        assert {len(values) for values in reading.values()} == {rollout.num_tokens}
        assert all(0 <= mass <= 1 for mass in reading["solution_mass"])


@given(
    tokens=st.integers(0, 12), vocabulary=st.integers(2, 40), chunk=st.integers(1, 15), capped=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_chunks_change_nothing_and_hold_no_more_logits_than_they_may(tokens, vocabulary, chunk, capped, seed):
    torch.manual_seed(seed)
    head = OutputHead(torch.randn(vocabulary, 6), torch.randn(vocabulary), 0.7, 2.0 if capped else None)
    hidden, ids = torch.randn(tokens, 6), torch.randint(vocabulary, (tokens,))
    rows, own = [], token._logits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token, "_logits", lambda hidden_CE, head: rows.append(len(hidden_CE)) or own(hidden_CE, head))
        found = log_probabilities(hidden, head, ids, chunk_tokens=chunk)
    assert sum(rows) == tokens
    assert all(count <= chunk for count in rows)
    wide = OutputHead(head.weight_VE.double(), head.bias_V.double(), head.scale, head.softcap)
    expected = wide.logits(hidden.double()).log_softmax(-1)[torch.arange(tokens), ids]
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_long_rollout_of_a_large_vocabulary_keeps_to_the_workspace(monkeypatch):
    monkeypatch.setattr(token, "WORKSPACE_BYTES", 4 * 10 * 1000 * 8)  # eight rows
    rows, own = [], token._logits
    monkeypatch.setattr(token, "_logits", lambda hidden_CE, head: rows.append(len(hidden_CE)) or own(hidden_CE, head))
    log_probabilities(
        torch.randn(30, 4).bfloat16(), OutputHead(torch.randn(1000, 4).bfloat16()), torch.zeros(30).long()
    )
    assert rows == [8, 8, 8, 6]


def test_mixed_precision_and_both_losses_whatever_their_weights():
    rollouts, config = make_rollouts((6, 3)), OPASDConfig.model_validate({"objective": {"attention_weight": 0.0}})
    plain = judge(make_model("qwen3"), rollouts, config)
    mixed = judge(make_model("qwen3"), rollouts, config, precision=torch.bfloat16)
    for one, other in zip(plain, mixed, strict=True):
        assert one["attention_divergence"]
        assert one["log_ratio"] != other["log_ratio"]
        assert one["log_ratio"] == pytest.approx(other["log_ratio"], abs=0.3)


def biased(module, query, key, value, attention_mask, scaling, **_):
    """Attention with a bias that nobody declared."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    distance = torch.arange(key.shape[-2]).expand(query.shape[-2], -1) * 0.1
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(key.shape[-2] - query.shape[-2])
    scores = (query @ key.transpose(-1, -2) * scaling + distance).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def test_attention_that_cannot_be_read_is_left_out_where_it_is_not_learned_from():
    rollouts, progress = make_rollouts((6, 3)), Silent()
    with attention_function("biased", biased):
        model = make_model("qwen3", "biased")
        opsd = RunConfig.model_validate({"objective": {"attention_weight": 0.0}})
        readings = probe._judge_what_can_be(model, rollouts, opsd, None, progress)
        with pytest.raises(CaptureError):
            probe._judge_what_can_be(model, rollouts, RunConfig(), None, progress)
    assert "attention is not measured" in progress.said[0]
    assert all(set(reading) == {"log_ratio", "divergence", "clipped"} for reading in readings)
    means = probe._means(readings[0])
    assert (means["attention_divergence"], means["solution_mass"]) == (None, None)
    assert means["log_ratio"] == pytest.approx(statistics.fmean(readings[0]["log_ratio"]))


# ---- figures --------------------------------------------------------------------------------------------------------

ROWS = st.builds(
    lambda correct, finish, tokens, ratio, divergence, attention: replace(
        ROW, correct=correct, finish_reason=finish, tokens=tokens, log_ratio=ratio, divergence=divergence,
        attention_divergence=attention,
    ),
    st.booleans(), st.sampled_from(["stop", "stop", "length"]), st.integers(1, 50),
    st.integers(-2, 2).map(float), st.floats(0, 3), st.floats(0, 1),
)  # fmt: skip
TEACHER = Reply("data", "p", 0, True, "stop", 7)


@settings(max_examples=40)
@given(problems=st.integers(1, 4).flatmap(lambda k: st.lists(st.lists(ROWS, min_size=k, max_size=k), min_size=1)))
def test_figures_are_means_over_problems_by_plain_loops(problems):
    found = summarise(Probe(problems, [TEACHER] * len(problems)))
    shares, pairs = [], 0
    for rows in problems:
        won = [
            1.0 if a.log_ratio > b.log_ratio else 0.0 if a.log_ratio < b.log_ratio else 0.5
            for a, b in itertools.product(rows, rows)
            if a.correct and not b.correct and "length" not in (a.finish_reason, b.finish_reason)
        ]
        shares += [sum(won) / len(won)] if won else []
        pairs += len(won)
    if not shares:
        assert (found["preference"], found["verdict"]) == (None, "none")
    else:
        assert found["preference"]["mean"] == pytest.approx(statistics.fmean(shares))
        assert (found["preference"]["problems"], found["preference"]["pairs"]) == (len(shares), pairs)
        low, high = found["preference"]["low"], found["preference"]["high"]
        assert (low, high) == estimate(shares)[1:]
        expected = "above" if low > 0.5 else "below" if high < 0.5 else "open"
        assert found["verdict"] == (expected if len(shares) >= probe.FEWEST else "too few")
    for name, wanted in (("log_ratio_right", True), ("log_ratio_wrong", False)):
        kept = [[row.log_ratio for row in rows if row.correct == wanted] for rows in problems]
        means = [statistics.fmean(values) for values in kept if values]
        assert (found[name] and found[name]["mean"]) == (pytest.approx(statistics.fmean(means)) if means else None)
    for name in ("divergence", "attention_divergence"):
        means = [statistics.fmean(getattr(row, name) for row in rows) for rows in problems]
        assert found[name]["mean"] == pytest.approx(statistics.fmean(means))
    flat = [row for rows in problems for row in rows]
    assert found["student"]["accuracy"]["mean"] == pytest.approx(statistics.fmean(row.correct for row in flat))
    assert found["student"]["tokens"]["mean"] == pytest.approx(statistics.fmean(row.tokens for row in flat))
    assert found["student"]["truncated"]["mean"] == pytest.approx(
        statistics.fmean(row.finish_reason == "length" for row in flat)
    )
    assert found["teacher"]["accuracy"] == {"mean": 1, "low": 1, "high": 1}


@pytest.mark.parametrize(
    ("wins", "losses", "verdict"),
    [(30, 0, "above"), (2, 28, "below"), (16, 15, "open"), (9, 0, "too few"), (0, 0, "none")],
)
def test_what_the_interval_says_of_one_half(wins, losses, verdict):
    wrong = replace(ROW, correct=False)
    problems = [[replace(ROW, log_ratio=0.0), wrong]] * wins + [[replace(ROW, log_ratio=-1.0), wrong]] * losses
    problems = problems or [[ROW, ROW]]
    assert summarise(Probe(problems, [TEACHER] * len(problems)))["verdict"] == verdict


def test_attention_that_was_not_measured_has_no_figure():
    found = summarise(Probe([[replace(ROW, attention_divergence=None, solution_mass=None)]], [TEACHER]))
    assert (found["attention_divergence"], found["solution_mass"], found["log_ratio_wrong"]) == (None, None, None)


# ---- problems -------------------------------------------------------------------------------------------------------


def chosen(config, count=8, **prompts):
    said = []
    builder = PromptBuilder(TOKENIZER, PromptConfig(**prompts))
    return [(one.section, one.pair.problem.question) for one in held_out(config, builder, count, said.append)], said


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, count in (("train", 3), ("a", 2), ("b", 3)):
        rows = [f'{{"problem": "{name}{i}?", "solution": "s", "answer": "{i}"}}\n' for i in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("".join(rows))


def config_of(data=None, **sets):
    sections = {name: {"source": f"{name}.jsonl"} | more for name, more in sets.items()}
    return RunConfig.model_validate({"data": {"source": "train.jsonl"} | (data or {}), "validation_data": sections})


@pytest.mark.usefixtures("files")
def test_validation_sets_in_order_else_the_training_data():
    questions = [("validation_data.a", "a0?"), ("validation_data.a", "a1?"), ("validation_data.b", "b0?")]
    assert chosen(config_of(a={}, b={}), 3) == (questions, [])
    assert chosen(config_of(a={}, gone={}), 2) == (questions[:2], [])  # what is not needed is not read
    found, said = chosen(config_of(), 5)
    assert found == [("data", f"train{i}?") for i in range(3)]
    assert said == ["5 problems were asked for; data has 3"]
    found, said = chosen(config_of(a={"columns": {"solution": None}}), 2)
    assert found == [("data", "train0?"), ("data", "train1?")]
    assert "validation_data.a has no solutions" in said[0]


@pytest.mark.usefixtures("files")
def test_rows_that_cannot_be_used(tmp_path):
    rows = [{"problem": question, "solution": "s", "answer": "1"} for question in ("x " * 300, "q?")]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(PromptError, match="a problem is never cut"):
        chosen(config_of(a={}), max_student_tokens=100)
    skipping = config_of({"on_bad_row": "skip"}, a={})
    assert chosen(skipping, 1, max_student_tokens=100)[0] == [("validation_data.a", "q?")]
    with pytest.raises(ConfigError, match="no problem of validation_data.a can be used"):
        chosen(skipping, max_student_tokens=3)


@pytest.mark.usefixtures("files")
def test_a_problem_without_an_answer_is_told(tmp_path):
    with (tmp_path / "a.jsonl").open("a") as file:
        file.write('{"problem": "open?", "solution": "s", "answer": null}\n')
    with pytest.raises(
        ConfigError, match=r"1 of 3 problems have no answer, such as .*a.jsonl:3 of validation_data.a, so"
    ):
        chosen(config_of({"on_bad_row": "skip"}, a={}), 3)
    assert len(chosen(config_of(a={}), 2)[0]) == 2
