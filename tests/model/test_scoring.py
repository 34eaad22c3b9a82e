"""Scoring: whatever rollouts share a forward, each gets what it would get alone."""

import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, CohereConfig, FalconH1Config, Llama4TextConfig, PhiConfig, PhimoeConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from opasd.config import PromptConfig
from opasd.errors import CaptureError, ConfigError
from opasd.model.scoring import Scorer, microbatches, output_head
from opasd.model.unwrap import unwrap
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from tests.models import CUDNN, FAMILIES, HYBRID, SIZES, add_lora, attention_function, fast, make_model
from tests.rollouts import make_rollout, make_rollouts
from tests.training import PROBLEMS, TOKENIZER

LAYOUTS = ("padded", "packed")


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
            for actual, expected in zip(tensors(together), tensors(alone), strict=True):
                torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-5)  # eager softmax is float32


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_states_and_head_give_the_models_own_logits(family):
    model, rollout = make_model(family, fast(family)), make_rollout()
    scorer = Scorer(model)
    with torch.no_grad():
        scores = scorer([rollout], "student")
        logits = model(input_ids=torch.tensor([rollout.student_ids])).logits[0]
    start = len(rollout.pair.student_ids)
    torch.testing.assert_close(scores.head.logits(scores.hidden_TE), logits[start - 1 : -1], atol=1e-4, rtol=1e-4)


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
    with pytest.raises(ValueError, match="no rollouts"):
        Scorer(make_model("qwen3"))([], "student")


def test_no_attention_is_captured_where_none_is_asked_for():
    scorer = Scorer(make_model("qwen3"), layers=0)
    with torch.no_grad():
        (scores,) = scorer([make_rollout()], "student")
    assert scores.layers == ()


@pytest.mark.parametrize("layers", [0, 1])
def test_packing_a_hybrid_is_refused(layers):
    scorer = Scorer(make_model("qwen3_next"), layers)
    with pytest.raises(ConfigError, match="hybrid qwen3_next.*layout: padded"):
        scorer(make_rollouts(), "student", layout="packed")


def test_packing_a_model_that_is_half_recurrent_in_every_layer_is_refused():
    sizes = SIZES | {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1}
    model = AutoModelForCausalLM.from_config(FalconH1Config(**sizes, head_dim=8))
    with pytest.raises(ConfigError, match="hybrid falcon_h1.*layout: padded"):
        Scorer(model, 0)(make_rollouts(), "student", layout="packed")


def test_packing_under_a_kernel_that_forgets_the_mask_is_refused():
    def forgetful(module, query, key, value, mask, **kwargs):
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, None, **kwargs)

    with attention_function("opasd_test_forgetful", forgetful):
        scorer = Scorer(make_model("llama", "opasd_test_forgetful"), 0)
        with pytest.raises(ConfigError, match="packed sequences influence one another"):
            scorer(make_rollouts(), "student", layout="packed")


def windowed_by_its_mask_alone(family):
    sizes = SIZES | {"num_hidden_layers": 2, "num_local_experts": 2, "head_dim": 8}
    if family == "llama4_text":
        return Llama4TextConfig(
            **sizes, intermediate_size_mlp=48, attention_chunk_size=16, no_rope_layers=[1, 1],
            layer_types=["full_attention", "chunked_attention"],
        )  # fmt: skip
    return PhimoeConfig(**sizes, num_experts_per_tok=1, sliding_window=16)


@pytest.mark.parametrize("family", ["llama4_text", "phimoe"])
def test_packing_a_model_whose_window_only_its_mask_knows_is_refused(family):
    """Packed rows have no mask, so their attention would reach too far; in a short probe that does not show."""
    model = AutoModelForCausalLM.from_config(windowed_by_its_mask_alone(family), attn_implementation="sdpa").eval()
    scorer = Scorer(model, 0)
    assert "mask" in (scorer.packing_obstacle or "")
    assert model.config._attn_implementation == "sdpa"


def test_dropout_is_not_taken_for_sequences_that_mix():
    model = get_peft_model(make_model("qwen3"), LoraConfig(r=2, lora_dropout=0.4, target_modules=["q_proj", "o_proj"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_()
    model.train()
    frozen = unwrap(model).model.norm.eval()
    assert Scorer(model, 0).packing_obstacle is None
    assert model.training
    assert all(module.training for module in model.modules() if module is not frozen)
    assert not frozen.training


def test_a_model_that_takes_no_bounds_is_padded_and_stays_as_it_was():
    model = make_model("qwen3", "sdpa")
    forward = model.model.forward

    def strict(input_ids=None, position_ids=None, attention_mask=None, use_cache=None, **kwargs):
        if "cu_seq_lens_q" in kwargs:
            raise TypeError("forward() got an unexpected keyword argument 'cu_seq_lens_q'")
        return forward(input_ids, attention_mask, position_ids, use_cache=use_cache, **kwargs)

    model.model.forward = strict
    assert "unexpected keyword argument" in (Scorer(model, 0).packing_obstacle or "")
    assert model.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("full"), RuntimeError(CUDNN)])
def test_a_trial_without_memory_is_no_reason_against_packing(error):
    """A GPU that is full for a moment says nothing about the model."""
    model = make_model("qwen3", "sdpa")

    def full(_module, _args, kwargs):
        if "cu_seq_lens_q" in kwargs:
            raise type(error)(*error.args)

    scorer, handle = Scorer(model, 0), model.register_forward_pre_hook(full, with_kwargs=True)
    with pytest.raises(type(error), match=re.escape(str(error))):
        _ = scorer.packing_obstacle
    assert model.config._attn_implementation == "sdpa"
    handle.remove()
    assert scorer.packing_obstacle is None


def test_an_output_head_with_a_bias():
    config = PhiConfig(**SIZES)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        model.lm_head.bias.normal_()
        (scores,) = Scorer(model, 0)([make_rollout()], "student")
        logits = model(input_ids=torch.tensor([make_rollout().student_ids])).logits[0]
    start = len(make_rollout().pair.student_ids)
    torch.testing.assert_close(
        output_head(model).logits(scores.hidden_TE), logits[start - 1 : -1], atol=1e-4, rtol=1e-4
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_logit_scale_nobody_told_of_is_refused(dtype):
    model = make_model("qwen3", dtype=dtype)
    forward = model.lm_head.forward
    model.lm_head.forward = lambda hidden: forward(hidden) * 0.9
    with pytest.raises(CaptureError, match="qwen3 model's logits are not those of its output head"):
        Scorer(model)([make_rollout()], "student")


def test_a_model_whose_mask_shows_only_at_length_is_refused_when_it_does():
    """Llama 4's chunked attention looks like full attention until a sequence is longer than a chunk."""
    sizes = SIZES | {"num_hidden_layers": 2, "intermediate_size_mlp": 48, "num_local_experts": 2, "head_dim": 8}
    model = AutoModelForCausalLM.from_config(
        Llama4TextConfig(**sizes, attention_chunk_size=16, no_rope_layers=[1, 1], layer_types=["chunked_attention"] * 2)
    )
    scorer = Scorer(model)
    with torch.no_grad():
        scorer([make_rollout(tokens=1, problem=3, solution=1)], "student")
        with pytest.raises(CaptureError, match="the llama4_text model's attention"):
            scorer([make_rollout(tokens=40)], "student")


def test_a_deferred_verdict_comes_when_it_is_asked_for_and_once():
    def biased(module, query, key, value, mask, **kwargs):
        length = query.shape[2]
        distance = torch.arange(length)[:, None] - torch.arange(length)
        bias = (-0.5 * distance).masked_fill(distance < 0, -torch.inf).to(query.dtype)[None, None]
        return ALL_ATTENTION_FUNCTIONS["sdpa"](module, query, key, value, bias, **kwargs)

    with attention_function("opasd_test_biased", biased):
        scorer = Scorer(make_model("llama", "opasd_test_biased"))
        with torch.no_grad():
            rollouts = make_rollouts()
            with pytest.raises(CaptureError, match="is not the one its queries and keys give"):
                scorer(rollouts, "student")
            scorer(rollouts, "student", deferred=True)
            with pytest.raises(CaptureError, match="is not the one its queries and keys give"):
                scorer.settle()
            scorer.settle()


def test_an_adapted_output_head_is_refused():
    model = make_model("qwen3")
    model = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "lm_head"]))  # starts as no change at all
    with pytest.raises(CaptureError, match="leave lm_head out of LoRA's target_modules"):
        Scorer(model)([make_rollout()], "student")


def test_a_head_trained_whole_is_read_with_adapters_on_and_off():
    base = make_model("qwen3")
    model = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    with torch.no_grad():
        unwrap(model).get_output_embeddings().modules_to_save["default"].weight.mul_(2)
        with torch.enable_grad():
            assert Scorer(model)([make_rollout()], "student").head.weight_VE.requires_grad
        with model.disable_adapter():
            off = Scorer(model)([make_rollout()], "student")
            assert not off.head.weight_VE.requires_grad
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


@given(lengths=st.lists(st.integers(0, 40), min_size=1, max_size=30), budget=st.integers(1, 200), packed=st.booleans())
def test_microbatches_hold_every_rollout_once_and_keep_to_the_budget(lengths, budget, packed):
    pair = PromptBuilder(TOKENIZER, PromptConfig()).pair(PROBLEMS[0])
    rollouts = [Rollout(pair, (5,) * length, str(number)) for number, length in enumerate(lengths)]
    groups = microbatches(rollouts, budget, packed=packed)
    assert sorted(r.id for group in groups for r in group) == sorted(r.id for r in rollouts)
    for group in groups:
        sizes = [len(rollout.teacher_ids) for rollout in group]
        assert len(group) == 1 or (sum(sizes) if packed else len(sizes) * max(sizes)) <= budget
