"""Families of models: each trains, with attention or without, or is refused with one message."""

import pytest
import torch
from peft import AdaLoraConfig, get_peft_model
from transformers import (
    BartConfig,
    BartForCausalLM,
    BartForConditionalGeneration,
    BertConfig,
    BertForMaskedLM,
    BertLMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3ForSequenceClassification,
    T5Config,
    T5ForConditionalGeneration,
)

from opasd.errors import CaptureError, ConfigError
from opasd.run.records import Records
from tests.training import TOKENIZER, make_model, make_trainer

IDS = {"vocab_size": len(TOKENIZER), "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": TOKENIZER.eos_token_id}
SIZES = {
    **IDS, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 512,
}  # fmt: skip
BART = BartConfig(
    **IDS, d_model=16, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=512, forced_eos_token_id=None,
)  # fmt: skip
BERT = BertConfig(**{name: value for name, value in SIZES.items() if name not in ("num_key_value_heads", "head_dim")})
QWEN3 = Qwen3Config(**SIZES)
OPT = OPTConfig(
    **IDS, hidden_size=16, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=512,
    word_embed_proj_dim=8, do_layer_norm_before=False,
)  # fmt: skip
MINIMAX = MiniMaxConfig(**SIZES, num_local_experts=2, num_experts_per_tok=1, block_size=16)
MAMBA = MambaConfig(**IDS, hidden_size=16, state_size=4, num_hidden_layers=2)
T5 = T5Config(vocab_size=len(TOKENIZER), d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2)


def trainer(folder, model, attention_weight=0.5):
    method = {"objective": {"attention_weight": attention_weight, "token": {"clip": "none"}}}
    return make_trainer(folder, lora=False, model=model, method=method, max_steps=1, gradient_accumulation_steps=1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: T5ForConditionalGeneration(T5), r"\(t5\) has an encoder"),
        (lambda: BartForConditionalGeneration(BART), r"\(bart\) has an encoder"),
        (lambda: BertForMaskedLM(BERT), "writes no text; load the model with AutoModelForCausalLM"),
        (lambda: Qwen3ForSequenceClassification(QWEN3), "writes no text"),
    ],
    ids=["t5", "bart", "bert", "classifier"],
)
def test_a_model_that_does_not_write_from_left_to_right_is_refused(tmp_path, make, message):
    with pytest.raises(ConfigError, match=message):
        trainer(tmp_path, make())


def test_adalora_is_refused(tmp_path):
    config = AdaLoraConfig(init_r=4, target_r=2, total_step=9, target_modules=["q_proj"], task_type="CAUSAL_LM")
    with pytest.raises(ConfigError, match=r"changes its ranks by a loss and a schedule of its own \(AdaLoraConfig\)"):
        trainer(tmp_path, get_peft_model(make_model(), config))


def looking_ahead():
    model = Qwen3ForCausalLM(QWEN3)
    for layer in model.model.layers:
        layer.self_attn.is_causal = False
    model.config.is_causal = False
    return model


@pytest.mark.parametrize("make", [looking_ahead, lambda: BertLMHeadModel(BERT)], ids=["qwen3", "bert"])
def test_a_model_that_looks_ahead_is_refused_without_attention_too(tmp_path, make):
    with pytest.raises(CaptureError, match="looks ahead"):
        trainer(tmp_path, make(), attention_weight=0.0).check()


@pytest.mark.parametrize(
    ("make", "attention_weight"),
    [
        (lambda: OPTForCausalLM(OPT), 0.5),
        (lambda: BartForCausalLM(BART), 0.5),
        (lambda: MiniMaxForCausalLM(MINIMAX), 0.5),
        (lambda: MambaForCausalLM(MAMBA), 0.0),
    ],
    ids=["opt", "bart", "minimax", "mamba"],
)
def test_families_train(tmp_path, make, attention_weight):
    torch.manual_seed(0)
    model = make()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    trainer(tmp_path, model, attention_weight).train()
    (row,) = Records(tmp_path / "metrics.jsonl")
    assert row["token/loss"] > 0
    assert ("attention/divergence" in row) == (attention_weight > 0)
    assert any(not torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_a_model_without_attention_layers_names_the_setting(tmp_path):
    with pytest.raises(CaptureError, match="objective.attention_weight to 0 to train without it"):
        trainer(tmp_path, MambaForCausalLM(MAMBA)).check()
