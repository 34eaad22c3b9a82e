"""Small random models of many families, sharpened so that attention is far from uniform."""

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

CUDNN = "Expected mha_graph.execute(handle, variant_pack, workspace_ptr.get()).is_good() to be true, but got false."
"""What cuDNN's attention says on a full GPU."""
VOCABULARY = 128
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}

FAMILIES: dict[str, PreTrainedConfig] = {
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "qwen2": Qwen2Config(**SIZES),
    "llama": LlamaConfig(**SIZES),
    "mistral": MistralConfig(**SIZES, sliding_window=8, head_dim=16),
    "gemma2": Gemma2Config(
        **SIZES, head_dim=16, sliding_window=8, attn_logit_softcapping=5.0, final_logit_softcapping=3.0
    ),
    "gemma3": Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, layer_types=["full_attention"] * 3 + ["sliding_attention"]
    ),
    "gemma3_full": Gemma3TextConfig(
        **SIZES, head_dim=16, sliding_window=8, layer_types=["sliding_attention"] * 3 + ["full_attention"]
    ),
    "gpt_oss": GptOssConfig(**SIZES, head_dim=16, num_local_experts=2, num_experts_per_tok=1, sliding_window=8),
    "qwen3_moe": Qwen3MoeConfig(**SIZES, **EXPERTS, head_dim=16),
    "qwen3_next": Qwen3NextConfig(**SIZES, **EXPERTS, **LINEAR, head_dim=16, shared_expert_intermediate_size=16),
    "qwen3_5": Qwen3_5TextConfig(**SIZES, **LINEAR, head_dim=16),
    "granite": GraniteConfig(**SIZES, logits_scaling=4.0, attention_multiplier=0.3),
}
HYBRID = ("qwen3_next", "qwen3_5")
EAGER_ONLY = ("gemma2", "gpt_oss")
"""Families whose fast attention here would leave out the soft cap or the sinks."""


@functools.cache
def _weights(family: str, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(copy.deepcopy(FAMILIES[family]), dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "q_proj" in name or "k_proj" in name:
                parameter.mul_(12)
            if "sinks" in name:
                parameter.normal_()
    return model.state_dict()


def make_model(
    family: str, implementation: str = "sdpa", dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A model of the family; equal seeds give equal weights whatever the attention implementation and precision."""
    config = copy.deepcopy(FAMILIES[family])
    # The grouped matrix product of experts knows no float64.
    experts = {"experts_implementation": "eager"} if "moe" in family or family in ("gpt_oss", "qwen3_next") else {}
    model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=dtype, **experts)
    model.load_state_dict(_weights(family, seed))
    return model.eval()


@contextmanager
def attention_function(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """While entered, models can be made with an attention function of the test's own, masks as for sdpa."""
    AttentionInterface.register(name, function)
    AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    try:
        yield
    finally:
        del AttentionInterface._global_mapping[name]
        del AttentionMaskInterface._global_mapping[name]


def fast(family: str) -> str:
    return "eager" if family in EAGER_ONLY else "sdpa"


def add_lora(model: PreTrainedModel, seed: int = 3) -> PeftModel:
    """LoRA on every linear layer that the family has, with weights that are not zero."""
    torch.manual_seed(seed)
    names = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    present = {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    config = LoraConfig(r=4, lora_alpha=8, target_modules=[name for name in names if name in present])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The following \w+ keys did not match", RuntimeWarning)  # fused experts
        adapted = get_peft_model(model, config)
    dtype = model.dtype
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_" in name:
                generator = torch.Generator().manual_seed(seed)
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
                parameter.data = parameter.data.to(dtype)
    return adapted
