"""Decoding without a cache gives the tokens of decoding with one, and is chosen where a cache would be wrong."""

import pytest
import torch
from transformers import BartConfig, BartForCausalLM, MambaConfig, MambaForCausalLM

from opasd.config import SamplingConfig
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.transformers.whole import cache_obstacle, decode_whole
from tests.models import make_model

PROMPTS = [[5, 6, 7, 8, 9], [3, 4, 5], [9, 8, 7, 6, 5, 4, 3, 2]]
RANDOM = SamplingConfig(temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=6)
SIZES = {"vocab_size": 128, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1}


def bart():
    torch.manual_seed(0)
    config = BartConfig(
        **SIZES, d_model=16, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=16, forced_eos_token_id=None
    )
    model = BartForCausalLM(config).eval()
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.normal_()
    return model


def mamba():
    torch.manual_seed(0)
    return MambaForCausalLM(MambaConfig(**SIZES, hidden_size=8, state_size=2, num_hidden_layers=1)).eval()


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("family", ["qwen3", "qwen3_next"])
def test_the_same_tokens_with_a_cache_and_without(family, rows):
    model, stop = make_model(family, dtype=torch.float64), frozenset(range(60, 90))
    assert cache_obstacle(model) == ""
    expected = TransformersEngine(model, stop).generate(PROMPTS, RANDOM, range(3))
    assert any(completion.finish_reason == "stop" for completion in expected)
    assert dict(decode_whole(model, PROMPTS, RANDOM, range(3), stop, rows)) == dict(enumerate(expected))


@pytest.mark.parametrize(
    ("make", "reason"), [(mamba, "mamba model keeps no key-value cache"), (bart, "bart model sees padding on the left")]
)
def test_a_model_whose_cache_would_be_wrong_is_decoded_without_one(make, reason, caplog):
    model = make()
    engine = TransformersEngine(model, frozenset())
    together = engine.generate(PROMPTS, RANDOM, range(3))
    assert reason in engine.cache_obstacle()
    assert f"rollouts are slow: the {reason}" in caplog.text
    alone = [engine.generate([prompt], RANDOM, [seed])[0] for seed, prompt in enumerate(PROMPTS)]
    assert together == alone


def test_broken_weights_end_at_once():
    model = mamba()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    completions = TransformersEngine(model, frozenset()).generate(PROMPTS, RANDOM, range(3))
    assert {(len(completion.ids), completion.finish_reason) for completion in completions} == {(1, "error")}
