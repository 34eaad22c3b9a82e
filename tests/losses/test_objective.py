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
from opasd.model.objective import opasd_loss, teacher_contexts, teacher_scores
from opasd.model.scoring import Scorer
from tests.models import FAMILIES, HYBRID, add_lora, fast, make_model
from tests.rollouts import make_rollout, make_rollouts

PLAIN = ObjectiveConfig(token=TokenLossConfig(clip="none", temperature=1.0))


def step(model, rollouts, config=PLAIN, *, layout="padded", num_rollouts=None):
    """One forward of both roles and the loss; the teacher is the base model, adapters off."""
    layers = config.attention.layers if config.attention_weight > 0 else 0
    scorer, query = Scorer(model, layers), config.attention.query
    with torch.no_grad(), model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext():
        teacher = teacher_scores(scorer, rollouts, config, query=query, layout=layout)
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


def eager_oracle(model, rollouts, attention_weight, attention=PLAIN.attention):
    """Algorithm 1 with `output_attentions`, all logits and plain formulas; shares no code with the package."""

    def run(ids):
        output = model(input_ids=torch.tensor([ids]), output_attentions=True, use_cache=False)
        return output.logits[0], [matrix[0] for matrix in output.attentions if matrix is not None]

    total = 0
    for rollout in rollouts:
        pair, tokens = rollout.pair, rollout.num_tokens
        start_s, start_t = len(pair.student_ids), len(pair.teacher_ids)
        with torch.no_grad(), model.disable_adapter():
            logits_t, layers_t = run(rollout.teacher_ids)
        logits_s, layers_s = run(rollout.student_ids)
        # rollouts.py: [2 | problem | 3 | 2 student-only | ŷ] against [2 | problem | solution | 3 | ŷ]
        before, block = 2 + len(pair.student_question), len(pair.reference)
        prompt = [*zip(range(before), range(before), strict=True)]
        prompt += [(before + i, before + block + i) for i in range(3)]
        if attention.support == "content":
            prompt = [match for match in prompt if 2 <= match[0] <= before]
        if not attention.first_token:
            prompt = [match for match in prompt if match[0] > 0]
        shared = prompt + [(start_s + t, start_t + t) for t in range(tokens)]
        log_s, log_t = logits_s[start_s - 1 : -1].log_softmax(-1), logits_t[start_t - 1 : -1].log_softmax(-1)
        loss = (log_t.exp() * (log_t - log_s)).sum(-1).mean()
        entropies = -(log_s.exp() * log_s).sum(-1)
        numbers = attention.layers if isinstance(attention.layers, tuple) else range(-attention.layers, 0)
        by_layer = []
        for heads_s, heads_t in [(layers_s[number], layers_t[number]) for number in numbers]:
            if attention.heads == "mean":
                heads_s, heads_t = heads_s.mean(0, keepdim=True), heads_t.mean(0, keepdim=True)
            chosen = []
            for step in range(tokens):
                jsd, rho = [], []
                for row_s, row_t in zip(heads_s[:, start_s - 1 + step], heads_t[:, start_t - 1 + step], strict=True):
                    s, t = row_s[[a for a, _ in shared]], row_t[[b for _, b in shared]]
                    both = (s > 0) & (t > 0)  # causal, and inside both sliding windows
                    solution = row_t[before : before + block].sum()
                    rho.append((solution / (solution + t[both].sum())).item())
                    s, t = s[both] / s[both].sum(), t[both] / t[both].sum()
                    m = (s + t) / 2
                    jsd.append(0.5 * (t * (t / m).log()).sum() + 0.5 * (s * (s / m).log()).sum())
                values = {"all": 0, "entropy": entropies[step].item(), "solution_mass": sum(rho) / len(rho)}
                if values[attention.queries] >= (attention.query_threshold or 0):
                    chosen.append(torch.stack(jsd).mean())
            by_layer.append(torch.stack(chosen).mean() if chosen else torch.zeros((), dtype=torch.float64))
        total = total + loss + attention_weight * torch.stack(by_layer).mean()
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


MEMBERS = {
    "a layer in the middle": {"layers": (1,)},
    "two layers, each head": {"layers": (0, -1), "heads": "each"},
    "content": {"support": "content"},
    "without the first token": {"first_token": False, "layers": 2},
    "uncertain steps": {"queries": "entropy", "query_threshold": 0},
    "steps that look at the solution": {"queries": "solution_mass", "query_threshold": 0.4, "layers": (1, 3)},
    "everything": {
        "layers": (2, 3), "heads": "each", "support": "content", "queries": "solution_mass", "query_threshold": 0.46,
    },
}  # fmt: skip
"""Members of the family of attention losses beside the paper's."""


@pytest.mark.parametrize(
    ("family", "layout", "member"),
    [
        ("qwen3", "packed", "a layer in the middle"),
        ("gpt_oss", "padded", "two layers, each head"),
        ("gemma2", "padded", "content"),
        ("gpt_oss", "padded", "without the first token"),
        ("gemma2", "padded", "uncertain steps"),
        ("qwen3", "packed", "steps that look at the solution"),
        ("qwen3", "packed", "everything"),
        ("gemma2", "padded", "everything"),
        ("gpt_oss", "padded", "everything"),
    ],
)
def test_every_member_of_the_family_equals_the_eager_oracle(family, layout, member):
    """Grouped heads; a sliding window and a soft cap; sinks. Both implementations, all at once and one by one."""
    attention = AttentionLossConfig(**MEMBERS[member])
    rollouts = make_rollouts((6, 1, 9))
    model = add_lora(make_model(family, fast(family), torch.float64))
    if attention.queries == "entropy":
        entropies = torch.cat([reading["token/student_entropy"] for reading in step(model, rollouts).readings]).sort()
        attention = attention.model_copy(update={"query_threshold": entropies.values[7:9].mean().item()})
    reference = add_lora(make_model(family, "eager", torch.float64))
    expected = eager_oracle(reference, rollouts, 1.0, attention) - eager_oracle(reference, rollouts, 0.0)
    wanted = gradients(reference, expected)
    for impl in ("reference", "chunked"):
        config = ObjectiveConfig(
            token_weight=0, attention_weight=1, token=PLAIN.token,
            attention=attention.model_copy(update={"impl": impl, "chunk_queries": 4}),
        )  # fmt: skip
        output = step(model, rollouts, config, layout=layout)
        assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
        assert_same_gradients(gradients(model, output.loss), wanted)
        assert attention.queries == "all" or 0.1 < output.metrics["attention/queries"] < 0.9
    apart = step_one_by_one(model, rollouts, config)
    assert apart.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert_same_gradients(gradients(model, apart.loss), wanted)


def test_chosen_steps_are_measured():
    """The mean over chosen steps; a rollout without one counts 0 and is counted; with a token loss or without."""
    model, rollouts = make_model("qwen3", dtype=torch.float64), make_rollouts((8, 1, 5))
    everything = step(model, rollouts)
    entropies = torch.cat([reading["token/student_entropy"] for reading in everything.readings])
    threshold = entropies.sort().values[-3:].mean().item()
    attention = AttentionLossConfig(queries="entropy", query_threshold=threshold)
    output = step(model, rollouts, PLAIN.model_copy(update={"attention": attention}))
    losses, shares = [], []
    for reading in everything.readings:
        chosen = reading["token/student_entropy"] >= threshold
        losses.append(reading["attention/divergence"][chosen].mean().item() if chosen.any() else 0.0)
        shares.append(chosen.double().mean().item())
    assert 0.0 in shares
    assert output.metrics["attention/loss"] == pytest.approx(sum(losses) / 3, rel=1e-9)
    assert output.metrics["attention/queries"] == pytest.approx(sum(shares) / 3, rel=1e-9)
    assert output.metrics["attention/no_queries"] == pytest.approx(shares.count(0.0) / 3, rel=1e-9)
    assert output.metrics["attention/divergence"] == everything.metrics["attention/divergence"]
    alone = step(model, rollouts, PLAIN.model_copy(update={"attention": attention, "token_weight": 0.0}))
    assert alone.metrics["attention/loss"] == pytest.approx(output.metrics["attention/loss"], rel=1e-9)
    nothing = AttentionLossConfig(queries="entropy", query_threshold=99)
    none = step(model, rollouts, PLAIN.model_copy(update={"attention": nothing, "token_weight": 0.0}))
    assert none.loss.item() == 0
    assert none.metrics["attention/no_queries"] == pytest.approx(1)


def test_masses_of_template_and_first_token_do_not_depend_on_the_support():
    model, rollouts = make_model("qwen3", dtype=torch.float64), make_rollouts()
    names = ("attention/template_mass", "attention/first_token_mass")
    everything = step(model, rollouts).metrics
    assert all(0.01 < everything[name] < 0.9 for name in names)
    for options in ({"support": "content"}, {"first_token": False}, {"support": "content", "first_token": False}):
        restricted = step(model, rollouts, PLAIN.model_copy(update={"attention": AttentionLossConfig(**options)}))
        for name in names:
            assert restricted.metrics[name] == pytest.approx(everything[name], rel=1e-9)
        assert restricted.metrics["attention/visible_mass"] < everything["attention/visible_mass"]


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


OWN_MEMBERS = [
    {}, {"heads": "each", "layers": (1, 2)}, {"support": "content", "layers": (0,)},
    {"queries": "solution_mass", "query_threshold": 0.3, "heads": "each"},
]  # fmt: skip


@pytest.mark.parametrize("layout", ["padded", "packed"])
@pytest.mark.parametrize("member", OWN_MEMBERS, ids=str)
def test_a_reference_of_its_own_for_the_attention_loss_equals_the_oracle(member, layout):
    """L = token loss with reference A + λ attention loss with reference B; the oracle runs each by itself."""
    rollouts = make_rollouts((6, 1, 12), own=4)
    attention = PLAIN.attention.model_copy(update=member)
    config = PLAIN.model_copy(update={"attention_weight": 0.7, "attention": attention})
    model = add_lora(make_model("qwen3", dtype=torch.float64))
    output = step(model, rollouts, config, layout=layout)
    actual = gradients(model, output.loss)

    reference = add_lora(make_model("qwen3", "eager", torch.float64))
    own = [replace(rollout, pair=rollout.pair.attention) for rollout in rollouts]
    attention_loss = eager_oracle(reference, own, 0.7, attention) - eager_oracle(reference, own, 0.0)
    expected = eager_oracle(reference, rollouts, 0.0) + attention_loss
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert_same_gradients(actual, gradients(reference, expected))
    one_by_one = step_one_by_one(model, rollouts, config)
    assert one_by_one.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    # the readings of a rollout are those of its own context
    alone = step(model, [own[2]], config).readings[0]["attention/divergence"]
    torch.testing.assert_close(output.readings[2]["attention/divergence"], alone)


def test_scores_of_one_rollout_have_the_attention_of_their_own_context():
    rollouts, model = make_rollouts((6, 3), own=4), make_model("qwen3", dtype=torch.float64)
    scorer = Scorer(model)
    with torch.no_grad():
        both = teacher_scores(scorer, rollouts, PLAIN)
        token, attention = (
            scorer(some, "teacher") for some in (rollouts, [replace(r, pair=r.pair.attention) for r in rollouts])
        )
    for index in range(2):
        torch.testing.assert_close(both[index].hidden_TE, token[index].hidden_TE)
        for name in ("query_HTD", "key_KSD"):
            torch.testing.assert_close(getattr(both[index].layers[0], name), getattr(attention[index].layers[0], name))


@pytest.mark.parametrize(
    ("weights", "read"), [((1.0, 0.5), ["token", "attention"]), ((0.0, 0.5), ["attention"]), ((1.0, 0.0), ["token"])]
)
def test_the_teacher_reads_only_the_contexts_that_a_loss_needs(weights, read):
    rollout = make_rollout(3, own=5)
    config = PLAIN.model_copy(update=dict(zip(("token_weight", "attention_weight"), weights, strict=True)))
    contexts = {"token": rollout.pair.teacher_ids, "attention": rollout.pair.attention.teacher_ids}
    assert [one.pair.teacher_ids for one in teacher_contexts(rollout, config)] == [contexts[name] for name in read]
    assert len(teacher_contexts(rollout, config, everything=True)) == 2
    assert len(teacher_contexts(make_rollout(3), config, everything=True)) == 1


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
        "token/clip_inner", "token/gradient_square",
        "attention/divergence", "attention/solution_mass", "attention/visible_mass",
        "attention/student_entropy", "attention/teacher_entropy", "attention/template_mass",
        "attention/first_token_mass",
    }  # fmt: skip
    assert metrics["loss"] == pytest.approx(metrics["token/loss"] + 0.5 * metrics["attention/divergence"], rel=1e-9)
    assert metrics["token/loss"] <= 0.05 + 1e-9
    assert 0 < metrics["attention/solution_mass"] < 1
    pointwise = ObjectiveConfig(token=TokenLossConfig(clip="pointwise", clip_threshold=1e-6))
    assert step(add_lora(make_model("qwen3")), make_rollouts(), pointwise).metrics["token/reversed"] > 0.5
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


@pytest.mark.parametrize("support", ["context", "content", "problem", "response"])
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
