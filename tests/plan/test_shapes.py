"""Sizes read from a config.json, against the models that transformers makes of the same configurations."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from opasd.errors import ConfigError
from opasd.plan.shapes import KNOWN, Shape

SMALL = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "vocab_size": 997,
}
FAMILIES = {
    "qwen3": {"num_key_value_heads": 2, "head_dim": 32},
    "qwen2": {"num_key_value_heads": 4},
    "llama": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "mistral": {"num_key_value_heads": 2, "head_dim": 16},
    "gemma2": {"num_key_value_heads": 2, "head_dim": 16},
    "phi3": {"num_key_value_heads": 2, "pad_token_id": 0},
    "olmo2": {"num_key_value_heads": 8},
    "qwen3_moe": {
        "num_key_value_heads": 2, "head_dim": 16, "moe_intermediate_size": 64, "num_experts": 4,
        "num_experts_per_tok": 2,
    },
    "gpt_neox": {},
}  # fmt: skip


def count(config: AutoConfig) -> int:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_are_those_of_the_model(family):
    config = AutoConfig.for_model(family, **SMALL | FAMILIES[family])
    shape = Shape.of(config.to_dict())
    assert shape.parameters == pytest.approx(count(config), rel=0.02)  # biases and extra norms are not counted


@pytest.mark.parametrize("name", KNOWN)
def test_known_models_have_the_sizes_in_their_names(name):
    config = dict(KNOWN[name])
    shape = Shape.of(config, name)
    family = str(config.pop("model_type"))
    assert shape.parameters == pytest.approx(count(AutoConfig.for_model(family, **config)), rel=0.001)
    billions = float(name.rsplit("-", 1)[-1].removesuffix("B"))
    assert shape.parameters / 1e9 == pytest.approx(billions, rel=0.1)


def test_a_token_uses_some_of_the_experts():
    config = AutoConfig.for_model("qwen3_moe", **SMALL | FAMILIES["qwen3_moe"]).to_dict()
    all_used = config | {"num_experts_per_tok": 4}
    assert Shape.of(config).active < Shape.of(all_used).active
    assert Shape.of(config).parameters == Shape.of(all_used).parameters


def test_adapters_are_those_that_peft_makes():
    from peft import LoraConfig, get_peft_model

    config = AutoConfig.for_model("qwen3", **SMALL | FAMILIES["qwen3"])
    modules = ("q_proj", "k_proj", "o_proj", "gate_proj", "down_proj")
    model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraConfig(r=5, target_modules=list(modules)))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    assert Shape.of(config.to_dict()).adapters(5, modules) == trained


def test_the_text_part_of_a_multimodal_configuration_counts():
    text = AutoConfig.for_model("qwen2", **SMALL).to_dict()
    assert Shape.of({"model_type": "other", "text_config": text}) == Shape.of(text)


@given(
    st.dictionaries(
        st.sampled_from([*SMALL, "num_key_value_heads", "head_dim", "num_experts", "text_config"]),
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    )
)
def test_a_strange_configuration_is_read_or_refused(config):
    try:
        parameters = Shape.of(config).parameters
    except ConfigError:
        return
    assert parameters > 0
