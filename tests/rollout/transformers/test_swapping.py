"""Adapters swapped on one base: each as if loaded alone, and an adapter that does not fit is refused."""

import json

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model

from opasd.config import SamplingConfig
from opasd.errors import ConfigError
from opasd.model.loading import load_model, load_tokenizer
from opasd.rollout.transformers.swapping import SwappingEngine
from tests.evaluation.lab import LAB, make_adapter

SAMPLING = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=12)


def make_engine():
    return SwappingEngine(LAB, load_tokenizer(LAB), max_batch=8)


def test_the_base_is_the_same_before_and_after_an_adapter(tmp_path):
    engine = make_engine()
    prompts, seeds = [[3, 4, 5], [6, 7]], [1, 2]
    alone = engine.generate(prompts, SAMPLING, seeds)
    adapters = [make_adapter(tmp_path / str(seed), seed, rank=4 + seed) for seed in range(2)]
    drawn = []
    for adapter in (*adapters, *adapters):
        engine.use_adapter(adapter)
        drawn.append(engine.generate(prompts, SAMPLING, seeds))
        engine.use_adapter(None)
        assert engine.generate(prompts, SAMPLING, seeds) == alone
    assert drawn[:2] == drawn[2:]
    assert drawn[0] != drawn[1] != alone
    engine.close()


ODD = {
    "pissa": LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights="pissa"),
    "head": LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"], init_lora_weights=False),
    "embedding": LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"], init_lora_weights=False),
    "ia3": IA3Config(target_modules=["k_proj", "v_proj"], feedforward_modules=[]),
}


@pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT's of tied weights
def test_adapters_of_any_kind_leave_nothing_behind(tmp_path):
    """PiSSA changes the base, a saved module and IA3 leave layers in it."""
    plain = make_adapter(tmp_path / "plain", 0)
    prompts, seeds = [[3, 4, 5], [6, 7]], [1, 2]
    engine = make_engine()

    def drawn(path):
        engine.use_adapter(path)
        return engine.generate(prompts, SAMPLING, seeds)

    alone, adapted = drawn(None), drawn(plain)
    for name, config in ODD.items():
        model = get_peft_model(load_model(LAB), config)
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in (p for p in model.parameters() if p.requires_grad):
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.save_pretrained(str(tmp_path / name))
        first = drawn(tmp_path / name)
        assert first not in (alone, adapted), name
        assert drawn(plain) == adapted, name
        assert drawn(tmp_path / name) == first, name
        assert drawn(None) == alone, name


def test_an_adapter_that_does_not_fit_is_refused(tmp_path):
    fitting, broken = (make_adapter(tmp_path / name, 0) for name in ("fitting", "broken"))
    about = json.loads((broken / "adapter_config.json").read_text())
    for change in (
        {"r": 8},
        {"target_modules": ["absent"]},
        {"target_modules": ["q_proj"]},
        {"target_modules": ["q_proj", "v_proj", "k_proj"]},
    ):
        (broken / "adapter_config.json").write_text(json.dumps(about | change))
        with pytest.raises(ConfigError, match="does not fit its base model"):
            make_engine().use_adapter(broken)
    engine = make_engine()
    engine.use_adapter(fitting)
    with pytest.raises(ConfigError, match="k_proj.* is missing"):
        engine.use_adapter(broken)
    (broken / "adapter_config.json").write_text(json.dumps(about))
    whole = (broken / "adapter_model.safetensors").read_bytes()
    for content in (b"damaged", whole[: len(whole) // 2], whole[:100], b""):
        (broken / "adapter_model.safetensors").write_bytes(content)
        with pytest.raises(ConfigError, match=r"is damaged \(.*\); give a whole one"):
            make_engine().use_adapter(broken)
