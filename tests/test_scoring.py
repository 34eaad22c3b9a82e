"""Scoring: whatever rollouts share a forward, each gets what it would get alone."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, CohereConfig

from opasd.errors import CaptureError, ConfigError
from opasd.models import unwrap
from opasd.scoring import Scorer, output_head
from tests.models import FAMILIES, HYBRID, SIZES, add_lora, fast, make_model
from tests.rollouts import make_rollout, make_rollouts

LAYOUTS = ("padded", "packed", "single")


def tensors(scores):
    """Everything in a list of scores, flat."""
    return [
        tensor for score in scores for tensor in (score.hidden_TE, *(t for l in score.layers for t in vars(l).values()))
        if isinstance(tensor, torch.Tensor)
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["student", "teacher"])
@pytest.mark.parametrize("family", FAMILIES)
def test_layouts_and_batch_composition_change_nothing(family, role):
    rollouts = make_rollouts()
    scorer = Scorer(make_model(family, fast(family), torch.float64))
    with torch.no_grad():
        alone = [score for rollout in rollouts for score in scorer([rollout], role)]
        for layout in LAYOUTS:
            if layout == "packed" and family in HYBRID:
                continue
            together = scorer(rollouts, role, layout=layout)
            for mine, theirs in zip(tensors(together), tensors(alone), strict=True):
                torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)  # eager softmax is float32


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_head_give_the_models_own_logits(family):
    model, rollout = make_model(family, fast(family)), make_rollout()
    scorer = Scorer(model)
    with torch.no_grad():
        (scores,) = scorer([rollout], "student")
        logits = model(input_ids=torch.tensor([rollout.student_ids])).logits[0]
    start = len(rollout.pair.student_ids)
    torch.testing.assert_close(scorer.head.logits(scores.hidden_TE), logits[start - 1 : -1], atol=1e-4, rtol=1e-4)


def test_logit_scale_of_cohere():
    config = CohereConfig(**SIZES, logit_scale=0.25)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        Scorer(model)([make_rollout()], "student")  # verifies the head
    assert output_head(model).scale == 0.25


def test_shapes_and_query_conventions():
    rollout = make_rollout(tokens=6)
    scorer = Scorer(make_model("qwen3"), layers=2)
    with torch.no_grad():
        (predicting,) = scorer([rollout], "teacher")
        (generated,) = scorer([rollout], "teacher", query="generated")
    total = len(rollout.teacher_ids)
    assert predicting.hidden_TE.shape == (6, 32)
    assert [layer.query_HTD.shape for layer in predicting.layers] == [(4, 6, 16)] * 2
    assert [layer.key_KSD.shape for layer in predicting.layers] == [(2, total, 16)] * 2
    # The row that predicts token t + 1 is the row of token t.
    torch.testing.assert_close(predicting.layers[0].query_HTD[:, 1:], generated.layers[0].query_HTD[:, :-1])
    torch.testing.assert_close(predicting.hidden_TE, generated.hidden_TE)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rollout_of_no_tokens(layout):
    rollouts = [make_rollout(tokens=0, seed=1), make_rollout(tokens=4, seed=2)]
    with torch.no_grad():
        empty, full = Scorer(make_model("qwen3"))(rollouts, "student", layout=layout)
    assert empty.hidden_TE.shape == (0, 32)
    assert empty.layers[0].query_HTD.shape == (4, 0, 16)
    assert full.hidden_TE.shape == (4, 32)


def test_no_rollouts():
    assert Scorer(make_model("qwen3"))([], "student") == []


def test_no_attention_is_captured_where_none_is_asked_for():
    scorer = Scorer(make_model("qwen3"), layers=0)
    with torch.no_grad():
        (scores,) = scorer([make_rollout()], "student")
    assert scores.layers == ()


def test_packing_a_hybrid_is_refused():
    scorer = Scorer(make_model("qwen3_next"))
    with pytest.raises(ConfigError, match="hybrid qwen3_next.*layout: padded"):
        scorer(make_rollouts(), "student", layout="packed")


def test_an_adapted_output_head_is_refused():
    model = make_model("qwen3")
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "lm_head"], init_lora_weights=False))
    with pytest.raises(CaptureError, match="qwen3 model's logits.*leave lm_head out"):
        Scorer(model)([make_rollout()], "student")


def test_a_head_trained_whole_is_read_with_adapters_on_and_off():
    base = make_model("qwen3")
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    with torch.no_grad():
        unwrap(model).get_output_embeddings().modules_to_save["default"].weight.mul_(2)
        on = Scorer(model)
        on([make_rollout()], "student")
        assert on.head.weight_VE.requires_grad
        with model.disable_adapter():
            off = Scorer(model)
            off([make_rollout()], "student")
            torch.testing.assert_close(2 * off.head.weight_VE, on_weight(model))


def on_weight(model):
    return unwrap(model).get_output_embeddings().modules_to_save["default"].weight


def test_scores_carry_gradients_only_in_gradient_mode():
    model = add_lora(make_model("qwen3"))
    scorer = Scorer(model)
    (scores,) = scorer([make_rollout()], "student")
    assert scores.hidden_TE.requires_grad
    assert scores.layers[0].query_HTD.requires_grad
    with torch.no_grad(), model.disable_adapter():
        (scores,) = scorer([make_rollout()], "teacher")
    assert not scores.hidden_TE.requires_grad
