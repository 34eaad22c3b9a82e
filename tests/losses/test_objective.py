"""The objective end to end on models: an eager oracle, invariance to batching, weights of zero, hostile rollouts."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from opasd.config import AttentionLossConfig, ObjectiveConfig, TokenLossConfig
from opasd.errors import ConfigError, NonFiniteError
from opasd.losses.objective import LossOutput
from opasd.losses.token import OutputHead
from opasd.model.objective import opasd_loss
from opasd.model.scoring import Scorer
from tests.models import FAMILIES, HYBRID, add_lora, fast, make_model
from tests.rollouts import make_rollout, make_rollouts

PLAIN = ObjectiveConfig(token=TokenLossConfig(clip="none", temperature=1.0))


def step(model, rollouts, config=PLAIN, *, layout="padded", num_rollouts=None):
    """One forward of both roles and the loss; the teacher is the base model, adapters off."""
    layers = config.attention.layers if config.attention_weight > 0 else 0
    scorer, query = Scorer(model, layers), config.attention.query
    with torch.no_grad(), model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
        teacher = scorer(rollouts, "teacher", query=query, layout=layout)
    student = scorer(rollouts, "student", query=query, layout=layout)
    return opasd_loss(rollouts, student, teacher, student.head, teacher.head, config, num_rollouts=num_rollouts)


def step_one_by_one(model, rollouts, config=PLAIN):
    """The same minibatch with a forward for each rollout."""
    outputs = [step(model, [rollout], config, num_rollouts=len(rollouts)) for rollout in rollouts]
    loss = torch.stack([output.loss for output in outputs]).sum()
    return LossOutput(loss, {}, [reading for output in outputs for reading in output.readings])


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(actual, expected, tolerance=1e-5):
    assert actual.keys() == expected.keys()
    scale = max(gradient.abs().max() for gradient in expected.values())
    assert scale > 0
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name] / scale, gradient / scale, atol=tolerance, rtol=1e-3, msg=name)


def eager_oracle(model, rollouts, attention_weight):
    """Algorithm 1 with `output_attentions`, all logits and plain formulas; shares no code with the package."""

    def run(ids):
        return model(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False)

    total = 0
    for rollout in rollouts:
        pair, tokens = rollout.pair, rollout.num_tokens
        start_s, start_t = len(pair.student_ids), len(pair.teacher_ids)
        with torch.no_grad(), model.disable_adapter():
            teacher = run(rollout.teacher_ids)
        student = run(rollout.student_ids)
        # rollouts.py: [2 | problem | 3 | 2 student-only | ŷ] against [2 | problem | solution | 3 | ŷ]
        before, block = 2 + len(pair.student_question), len(pair.reference)
        shared_s = [*range(before + 3), *range(start_s, start_s + tokens)]
        shared_t = [*range(before), *range(before + block, start_t), *range(start_t, start_t + tokens)]
        log_s = student.logits[0, start_s - 1 : -1].log_softmax(-1)
        log_t = teacher.logits[0, start_t - 1 : -1].log_softmax(-1)
        loss = (log_t.exp() * (log_t - log_s)).sum(-1).mean()
        rows_s = [a for a in student.attentions if a is not None][-1][0].mean(0)[start_s - 1 : -1]
        rows_t = [a for a in teacher.attentions if a is not None][-1][0].mean(0)[start_t - 1 : -1]
        jsd = []
        for row_s, row_t in zip(rows_s, rows_t, strict=True):
            s, t = row_s[shared_s], row_t[shared_t]
            both = (s > 0) & (t > 0)  # causal, and inside both sliding windows
            s, t = s[both] / s[both].sum(), t[both] / t[both].sum()
            m = (s + t) / 2
            jsd.append(0.5 * (t * (t / m).log()).sum() + 0.5 * (s * (s / m).log()).sum())
        total = total + loss + attention_weight * torch.stack(jsd).mean()
    return total / len(rollouts)


@pytest.mark.parametrize("weights", [(1.0, 0.5), (0.0, 1.0)], ids=["both", "attention only"])
@pytest.mark.parametrize("family", FAMILIES)
def test_loss_and_every_lora_gradient_equal_an_eager_float64_oracle(family, weights):
    token_weight, attention_weight = weights
    rollouts = make_rollouts((6, 1, 12))
    model = add_lora(make_model(family, fast(family), torch.float64))
    config = PLAIN.model_copy(update={"token_weight": token_weight, "attention_weight": attention_weight})
    output = step(model, rollouts, config)
    actual = gradients(model, output.loss)

    reference = add_lora(make_model(family, "eager", torch.float64))
    both = eager_oracle(reference, rollouts, attention_weight)
    expected = both if token_weight else both - eager_oracle(reference, rollouts, 0.0)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(actual, gradients(reference, expected))


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("family", ["qwen3", "gemma3", "gpt_oss", "qwen3_next"])
def test_batch_layout_chunks_and_accumulation_change_nothing(family, layout):
    if layout == "packed" and family in HYBRID:
        pytest.skip("packing a hybrid is refused")
    rollouts = make_rollouts((5, 17, 2))
    expected = step_one_by_one(add_lora(make_model(family, fast(family), torch.float64)), rollouts)
    model = add_lora(make_model(family, fast(family), torch.float64))
    expected_gradients = gradients(model, step_one_by_one(model, rollouts).loss)

    small = PLAIN.model_copy(
        update={
            "token": PLAIN.token.model_copy(update={"chunk_tokens": 3}),
            "attention": PLAIN.attention.model_copy(update={"chunk_queries": 4}),
        }
    )
    together = step(model, rollouts, small, layout=layout)
    assert_same_gradients(gradients(model, together.loss), expected_gradients)
    for actual, wanted in zip(together.readings, expected.readings, strict=True):
        assert actual.keys() == wanted.keys()
        for name, values in wanted.items():
            torch.testing.assert_close(actual[name], values, atol=1e-6, rtol=1e-5)

    model.zero_grad()
    parts = [step(model, [rollout], layout=layout, num_rollouts=3).loss for rollout in reversed(rollouts)]
    for part in parts:
        part.backward()
    summed = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert_same_gradients(summed, expected_gradients)
    assert sum(part.item() for part in parts) == pytest.approx(expected.loss.item(), rel=1e-6)


def test_chunked_and_reference_agree_on_a_model():
    rollouts = make_rollouts()
    config = ObjectiveConfig(attention=AttentionLossConfig(layers=2, handling="shuffle"))
    plain = config.model_copy(
        update={
            "token": config.token.model_copy(update={"impl": "reference"}),
            "attention": config.attention.model_copy(update={"impl": "reference"}),
        }
    )
    model = add_lora(make_model("qwen3", dtype=torch.float64))
    chunked, expected = step(model, rollouts, config), step(model, rollouts, plain)
    assert chunked.metrics == pytest.approx(expected.metrics, rel=1e-9)
    assert_same_gradients(gradients(model, chunked.loss), gradients(model, expected.loss))


def test_mean_over_tokens_first_then_over_rollouts():
    model, rollouts = make_model("qwen3", dtype=torch.float64), make_rollouts((2, 20))
    alone = [step(model, [rollout], ObjectiveConfig(attention_weight=0.5)).loss.item() for rollout in rollouts]
    assert step(model, rollouts).metrics["token/loss"] == pytest.approx(
        sum(reading["token/loss"].mean().item() for reading in step(model, rollouts).readings) / 2
    )
    assert step(model, rollouts, ObjectiveConfig()).loss.item() == pytest.approx(sum(alone) / 2, rel=1e-9)


def test_metrics_are_what_the_paper_plots():
    output = step(add_lora(make_model("qwen3", dtype=torch.float64)), make_rollouts(), ObjectiveConfig())
    metrics = output.metrics
    assert set(metrics) == {
        "loss",
        "token/loss", "token/divergence", "token/clipped", "token/student_entropy",
        "attention/divergence", "attention/solution_mass", "attention/visible_mass",
        "attention/student_entropy", "attention/teacher_entropy",
    }  # fmt: skip
    assert metrics["loss"] == pytest.approx(metrics["token/loss"] + 0.5 * metrics["attention/divergence"], rel=1e-9)
    assert metrics["token/loss"] <= 0.05 + 1e-9
    assert 0 < metrics["attention/solution_mass"] < 1
    assert metrics["attention/visible_mass"] == pytest.approx(1 - metrics["attention/solution_mass"], rel=1e-9)


def test_layers_are_averaged():
    model, rollouts = make_model("qwen3", dtype=torch.float64), make_rollouts()
    config = ObjectiveConfig(token_weight=0, attention_weight=1)

    def loss(layers):
        attention = AttentionLossConfig(layers=layers)
        return step(model, rollouts, config.model_copy(update={"attention": attention})).loss.item()

    one, two = loss(1), loss(2)
    scorer = Scorer(model, 2)
    with torch.no_grad():
        student, teacher = scorer(rollouts, "student"), scorer(rollouts, "teacher")
    student, teacher = (replace(scores, layers=scores.layers[:1]) for scores in (student, teacher))
    earlier = opasd_loss(rollouts, student, teacher, student.head, teacher.head, config).loss.item()
    assert two == pytest.approx((one + earlier) / 2, rel=1e-9)
    assert abs(one - earlier) > 1e-6


def test_a_weight_of_zero_skips_the_work():
    rollouts, model = make_rollouts(), add_lora(make_model("qwen3"))
    scorer = Scorer(model)
    with torch.no_grad(), model.disable_adapter():
        teacher = scorer(rollouts, "teacher")
    student = scorer(rollouts, "student")
    poison = OutputHead(torch.full((128, 32), math.nan))
    only_attention = opasd_loss(rollouts, student, teacher, poison, poison, ObjectiveConfig(token_weight=0))
    assert only_attention.loss.isfinite()
    assert not any(name.startswith("token") for name in only_attention.metrics)
    actual = gradients(model, only_attention.loss)
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)  # all stay in the graph
    last = [gradient for name, gradient in actual.items() if ".layers.3.mlp" in name]
    assert last
    assert all((gradient == 0).all() for gradient in last)

    no_attention = Scorer(model, 0)
    with torch.no_grad(), model.disable_adapter():
        teacher = no_attention(rollouts, "teacher")
    only_token = opasd_loss(
        rollouts,
        no_attention(rollouts, "student"),
        teacher,
        student.head,
        teacher.head,
        ObjectiveConfig(attention_weight=0),
    )
    assert not any(name.startswith("attention") for name in only_token.metrics)
    assert only_token.loss.item() > 0


@pytest.mark.parametrize("weights", [(1.0, 0.5), (0.0, 0.5), (1.0, 0.0)])
def test_a_rollout_of_no_tokens_contributes_nothing(weights):
    config = ObjectiveConfig(token_weight=weights[0], attention_weight=weights[1])
    model = add_lora(make_model("qwen3", dtype=torch.float64))
    full, empty = make_rollouts((7, 4)), make_rollout(tokens=0, seed=9)
    expected = gradients(model, step(model, full, config).loss)
    output = step(model, [full[0], empty, full[1]], config)
    assert_same_gradients(gradients(model, output.loss), expected, 1e-9)
    alone = step(model, [empty], config)
    assert alone.loss.item() == 0
    assert all((gradient == 0).all() for gradient in gradients(model, alone.loss).values())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("part", ["hidden", "query", "key"])
@pytest.mark.parametrize("role", ["student", "teacher"])
def test_nan_and_inf_are_reported_with_the_rollouts_id(role, part, value):
    rollouts = make_rollouts()
    scorer = Scorer(make_model("qwen3"))
    with torch.no_grad():
        scores = {name: scorer(rollouts, name) for name in ("student", "teacher")}
    layer = scores[role][2].layers[0]
    {"hidden": scores[role][2].hidden_TE, "query": layer.query_HTD, "key": layer.key_KSD}[part][..., 1, 3] = value
    with pytest.raises(NonFiniteError, match=f"the {role}'s .* of rollout rollout-2;"):
        opasd_loss(rollouts, *scores.values(), *(role.head for role in scores.values()), PLAIN)


@pytest.mark.parametrize("support", ["context", "problem", "response"])
@pytest.mark.parametrize("query", ["predicting", "generated"])
def test_every_support_and_query_runs_and_differs(support, query):
    model, rollouts = make_model("qwen3", dtype=torch.float64), make_rollouts()
    config = ObjectiveConfig(
        token_weight=0, attention_weight=1, attention=AttentionLossConfig(support=support, query=query)
    )
    default = ObjectiveConfig(token_weight=0, attention_weight=1)
    loss, other = step(model, rollouts, config).loss.item(), step(model, rollouts, default).loss.item()
    assert loss > 0
    assert (loss == pytest.approx(other, rel=1e-9)) == (support == "context" and query == "predicting")


def test_shuffling_does_not_depend_on_the_batch():
    config = ObjectiveConfig(attention=AttentionLossConfig(handling="shuffle"))
    model, rollouts = make_model("qwen3", dtype=torch.float64), make_rollouts()
    forward = step_one_by_one(model, rollouts, config).readings
    backward = step(model, rollouts[::-1], config).readings
    for first, second in zip(forward, backward[::-1], strict=True):
        torch.testing.assert_close(first["attention/divergence"], second["attention/divergence"])


def test_rollouts_are_shuffled_each_in_a_way_of_its_own():
    """The same rollout under two names: two permutations, two losses."""
    config = ObjectiveConfig(attention=AttentionLossConfig(handling="shuffle"))
    rollout = make_rollout(9, problem=12)
    twins = [rollout, replace(rollout, id="other")]
    first, second = step(make_model("qwen3", dtype=torch.float64), twins, config).readings
    assert not torch.allclose(first["attention/divergence"], second["attention/divergence"])
    torch.testing.assert_close(first["token/divergence"], second["token/divergence"])


def test_nan_in_the_output_head_is_reported_with_the_rollouts_id():
    rollouts = make_rollouts()
    scorer = Scorer(make_model("qwen3"))
    with torch.no_grad():
        student, teacher = scorer(rollouts, "student"), scorer(rollouts, "teacher")
    weight = student.head.weight_VE.detach().clone()
    weight[5] = math.nan
    with pytest.raises(NonFiniteError, match="token/loss of rollout rollout-0"):
        opasd_loss(rollouts, student, teacher, OutputHead(weight), teacher.head, PLAIN)


def test_scores_for_another_objective_are_refused():
    rollouts = make_rollouts()
    model = make_model("qwen3")
    with torch.no_grad():
        none, one = Scorer(model, 0), Scorer(model)
        bare, scores = none(rollouts, "student"), one(rollouts, "student")
    with pytest.raises(ConfigError, match="needs 1 captured layers"):
        opasd_loss(rollouts, bare, bare, bare.head, bare.head, PLAIN)
    generated = ObjectiveConfig(attention=AttentionLossConfig(query="generated"))
    with pytest.raises(ConfigError, match="not those of attention.query: generated"):
        opasd_loss(rollouts, scores, scores, scores.head, scores.head, generated)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_autocast_around_the_losses_changes_nothing(impl):
    rollouts, model = make_rollouts(), add_lora(make_model("qwen3"))
    config = ObjectiveConfig(token=TokenLossConfig(impl=impl), attention=AttentionLossConfig(impl=impl))
    scorer = Scorer(model)
    with torch.no_grad():
        with model.disable_adapter():
            teacher = scorer(rollouts, "teacher")
        student = scorer(rollouts, "student")
        plain = opasd_loss(rollouts, student, teacher, student.head, teacher.head, config)
        with torch.autocast("cpu", torch.bfloat16):
            mixed = opasd_loss(rollouts, student, teacher, student.head, teacher.head, config)
    assert mixed.metrics == plain.metrics
