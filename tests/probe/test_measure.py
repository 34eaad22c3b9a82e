"""The probe's readings against all logits in float64, its rows, its choice of problems."""

import json
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.leaks import leak_pattern
from opasd.config import OPASDConfig, PromptConfig, RunConfig
from opasd.data.problems import Problem
from opasd.errors import CaptureError, ConfigError, PromptError
from opasd.grading.outside import rollout_grader
from opasd.losses import token, token_chunked
from opasd.losses.token import OutputHead, log_probabilities
from opasd.probe import measure as probe
from opasd.probe.measure import held_out, judge, with_others_references
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import Completion
from tests.models import attention_function, fast, make_model
from tests.rollouts import make_rollouts
from tests.training import TOKENIZER


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
    rows, own = [], token.head_logits
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token, "head_logits", lambda hidden_CE, head: rows.append(len(hidden_CE)) or own(hidden_CE, head))
        log_probs = log_probabilities(hidden, head, ids, chunk_tokens=chunk)
    assert sum(rows) == tokens
    assert all(count <= chunk for count in rows)
    wide = OutputHead(head.weight_VE.double(), head.bias_V.double(), head.scale, head.softcap)
    expected = wide.logits(hidden.double()).log_softmax(-1)[torch.arange(tokens), ids]
    torch.testing.assert_close(log_probs.double(), expected, atol=1e-5, rtol=1e-5)


def test_a_long_rollout_of_a_large_vocabulary_keeps_to_the_workspace(monkeypatch):
    monkeypatch.setattr(token_chunked, "WORKSPACE_BYTES", 4 * 10 * 1000 * 8)  # eight rows
    rows, own = [], token.head_logits
    monkeypatch.setattr(
        token, "head_logits", lambda hidden_CE, head: rows.append(len(hidden_CE)) or own(hidden_CE, head)
    )
    log_probabilities(
        torch.randn(30, 4).bfloat16(), OutputHead(torch.randn(1000, 4).bfloat16()), torch.zeros(30).long()
    )
    assert rows == [8, 8, 8, 6]


def test_mixed_precision_and_both_losses_whatever_their_weights():
    rollouts, config = make_rollouts((6, 3)), OPASDConfig.model_validate({"objective": {"attention_weight": 0.0}})
    plain = judge(make_model("qwen3"), rollouts, config)
    mixed = judge(make_model("qwen3"), rollouts, config, precision=torch.bfloat16)
    for reading, other in zip(plain, mixed, strict=True):
        assert reading["attention_divergence"]
        assert reading["log_ratio"] != other["log_ratio"]
        assert reading["log_ratio"] == pytest.approx(other["log_ratio"], abs=0.3)


def biased(module, query, key, value, attention_mask, scaling, **_):
    """Attention with a bias that nobody declared."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    distance = torch.arange(key.shape[-2]).expand(query.shape[-2], -1) * 0.1
    mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril(key.shape[-2] - query.shape[-2])
    scores = (query @ key.transpose(-1, -2) * scaling + distance).masked_fill(~mask, -torch.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2), None


def test_attention_that_cannot_be_read_is_left_out_where_it_is_not_learned_from():
    rollouts, progress = make_rollouts((26, 3)), Silent()
    with attention_function("biased", biased):
        model = make_model("qwen3", "biased")
        opsd = RunConfig.model_validate({"objective": {"attention_weight": 0.0}})
        readings = probe.judge_if_possible(model, rollouts, opsd, None, progress)
        with pytest.raises(CaptureError):
            probe.judge_if_possible(model, rollouts, RunConfig(), None, progress)
    assert "attention is not measured" in progress.said[0]
    assert all(set(reading) == {"log_ratio", "divergence", "clipped"} for reading in readings)
    row = probe.measures(readings[0])
    assert (row["attention_divergence"], row["solution_mass"]) == (None, None)
    assert row["log_ratio"] == pytest.approx(statistics.fmean(readings[0]["log_ratio"]))
    assert set(row["tenths"]) == {"log_ratio", "divergence"}


def test_a_row_keeps_the_sums_of_each_tenth_of_its_tokens():
    """26 tokens: six parts of three, then four of two. Three tokens have no tenths."""
    readings = judge(make_model("qwen3"), make_rollouts((26, 3)), OPASDConfig())
    row = probe.measures(readings[0])
    assert set(row["tenths"]) == {"log_ratio", "divergence", "attention_divergence"}
    for name, sums in row["tenths"].items():
        values = readings[0][name]
        threes = [sum(values[start : start + 3]) for start in range(0, 18, 3)]
        assert sums == pytest.approx(threes + [sum(values[start : start + 2]) for start in range(18, 26, 2)])
        assert sum(sums) == pytest.approx(26 * row[name])
    assert probe.measures(readings[1])["tenths"] == {}


@pytest.mark.parametrize("prompts", [PromptConfig(), PromptConfig(reference="Hint: {solution}\n")])
def test_a_reply_is_graded_and_searched_for_leaks(prompts):
    pair = PromptBuilder(TOKENIZER, PromptConfig()).pair(Problem("How many?", "Five.", "5", "one"))
    texts = {r"As the reference solution says, \boxed{5}.": (True, True), r"It is \boxed{4}.": (False, False)}
    leak = leak_pattern(prompts)
    for text, (correct, leaks) in texts.items():
        completion = Completion(TOKENIZER.encode(text, add_special_tokens=False), "stop")
        attempt = (probe.HeldOutProblem("data", pair), 2)
        (answer,) = probe.grade(TOKENIZER, [attempt], "teacher", [completion], leak, rollout_grader("math"))
        expected = leaks if leak else None
        assert answer == probe.GradedAnswer("data", "one", 2, correct, "stop", len(completion.ids), expected)


def test_another_problems_reference_is_the_next_with_another_answer():
    builder = PromptBuilder(TOKENIZER, PromptConfig(max_teacher_tokens=300, cut_solution="skip"))
    made = [Problem(f"q{i}?", f"s{i}", answer, f"p{i}") for i, answer in enumerate(["1", "1", "2", "1"])]
    changed = with_others_references(builder, [builder.pair(problem) for problem in made])
    assert [pair and (pair.problem.id, pair.problem.solution) for pair in changed] == [
        ("p0", "s2"), ("p1", "s2"), ("p2", "s3"), ("p3", "s2"),
    ]  # fmt: skip
    assert [pair.student_ids for pair in changed if pair] == [builder.pair(problem).student_ids for problem in made]
    same = [builder.pair(problem) for problem in made[:2]]
    assert with_others_references(builder, same) == [None, None]
    tight = PromptBuilder(TOKENIZER, PromptConfig(max_teacher_tokens=len(same[0].teacher_ids), cut_solution="skip"))
    long = Problem("q?", "s " * 200, "9", "long")
    pairs = [same[0], builder.pair(replace(long, solution="s")), same[1]]
    pairs[1] = replace(pairs[1], problem=long)
    assert with_others_references(tight, pairs)[0] is None  # it does not fit


# ---- problems -------------------------------------------------------------------------------------------------------


def chosen(config, count=8, **prompts):
    said = []
    builder = PromptBuilder(TOKENIZER, PromptConfig(**prompts))
    return [
        (problem.section, problem.pair.problem.question) for problem in held_out(config, builder, count, said.append)
    ], said


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
    problems, said = chosen(config_of(), 5)
    assert problems == [("data", f"train{i}?") for i in range(3)]
    assert said == ["5 problems were asked for; data has 3"]
    problems, said = chosen(config_of(a={"columns": {"solution": None}}), 2)
    assert problems == [("data", "train0?"), ("data", "train1?")]
    assert "validation_data.a has no solutions" in said[0]
    shown = {"reference": "It is {answer}."}
    config = config_of(a={"columns": {"solution": None}}).model_copy(update={"prompts": PromptConfig(**shown)})
    assert chosen(config, 2, **shown) == (questions[:2], [])


@pytest.mark.usefixtures("files")
def test_rows_that_cannot_be_used(tmp_path):
    rows = [{"problem": question, "solution": "s", "answer": "1"} for question in ("x " * 300, "q?")]
    (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(PromptError, match="a problem is never cut"):
        chosen(config_of(a={}), max_student_tokens=100)
    with pytest.raises(PromptError, match="a problem is never cut"):
        chosen(config_of({"on_bad_row": "skip"}, a={}), max_student_tokens=100)  # that is the training data's
    skipping = config_of(a={"on_bad_row": "skip"})
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
