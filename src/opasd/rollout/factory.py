"""The engine that a configuration asks for."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import nn
from transformers import AutoConfig, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from opasd.config import RolloutConfig
from opasd.errors import ConfigError
from opasd.model.checks import context
from opasd.model.unwrap import unwrap
from opasd.rollout.adapters import AdapterExport
from opasd.rollout.engine import RolloutEngine
from opasd.rollout.transformers.engine import TransformersEngine, stop_ids
from opasd.rollout.vllm.in_process import VLLMEngine
from opasd.rollout.vllm.server import ServerEngine
from opasd.rollout.vllm.serving import ServingEngine


def make_engine(
    config: RolloutConfig,
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    *,
    longest: int,
    process: int = 0,
    processes: int = 1,
) -> RolloutEngine:
    """An engine that samples from `model` as it is at the moment of the call.

    `longest` is the most tokens of a prompt and its completion; `process` of `processes` is the one we are.
    """
    stop = stop_ids(model, tokenizer)
    if config.engine == "transformers":
        return TransformersEngine(model, stop, config.max_batch)
    base = unwrap(model)
    if getattr(base.config, "quantization_config", None) is not None:
        raise ConfigError(
            f"rollout.engine: {config.engine} samples from the whole base, but the student's is quantized; use "
            "model.adaptation: lora or full, or rollout.engine: transformers"
        )
    room = min(longest, context(base.config)) if config.max_model_len is None else config.max_model_len
    if config.engine == "vllm_server":
        if not isinstance(model, PeftModel):
            raise ConfigError(
                "rollout.engine: vllm_server takes adapters only, but all weights are trained; use model.adaptation: "
                "lora, or rollout.engine: vllm"
            )
        folder = config.servers.adapter_dir
        student = AdapterExport(model, Path(folder).expanduser().absolute() if folder else None)
        return ServerEngine(
            config.servers,
            stop,
            room,
            vocabulary=_vocabulary(base.config),
            max_batch=config.max_batch,
            student=student,
            first=process == 0,
        )
    export = AdapterExport(model) if isinstance(model, PeftModel) else None
    return VLLMEngine(
        _source(base),
        stop,
        room,
        config.vllm,
        dtype=_name(base.dtype) if config.vllm.dtype == "auto" else config.vllm.dtype,
        max_batch=config.max_batch,
        rank=export.rank if export else 0,
        student=export or model,
        processes=processes,
        **_loading(base),
    )


def serve_base(
    config: RolloutConfig, source: str, tokenizer: PreTrainedTokenizerBase, *, longest: int, rank: int = 0, dtype: str,
    configured: bool = True, **loading: Any,
) -> ServingEngine:  # fmt: skip
    """A vLLM engine over the base in `source`, for adapters of up to `rank` that `use_adapter` switches between;
    `configured` as `ServerEngine` has it."""
    described = AutoConfig.from_pretrained(source, **loading)
    room = min(longest, context(described)) if config.max_model_len is None else config.max_model_len
    stop = _declared(source, described, tokenizer, **loading)
    if config.engine == "vllm_server":
        return ServerEngine(
            config.servers,
            stop,
            room,
            vocabulary=_vocabulary(described),
            max_batch=config.max_batch,
            configured=configured,
        )
    assert config.engine == "vllm"
    return VLLMEngine(source, stop, room, config.vllm, dtype=dtype, max_batch=config.max_batch, rank=rank, **loading)


def computes_in_half(config: RolloutConfig, model: nn.Module) -> bool:
    """Whether the model, or vLLM's copy of it, has a number format of 16 bits."""
    return unwrap(model).dtype != torch.float32 or config.vllm.dtype in ("bfloat16", "float16")


def _vocabulary(config: Any) -> int:
    return int(getattr(config.get_text_config(), "vocab_size", None) or 2**31)


def _source(base: PreTrainedModel) -> str:
    if not (source := base.name_or_path):
        raise ConfigError(
            "rollout.engine: vllm loads the base itself, but the model was not loaded from a folder or the hub; save "
            "it with save_pretrained and load it from there"
        )
    return source


def _loading(base: PreTrainedModel) -> dict[str, Any]:
    """How the same base is loaded once more."""
    commit = getattr(base.config, "_commit_hash", None)
    foreign = type(base).__module__.startswith("transformers_modules")
    return ({"revision": commit} if commit else {}) | ({"trust_remote_code": True} if foreign else {})


def _declared(source: str, config: Any, tokenizer: PreTrainedTokenizerBase, **loading: Any) -> frozenset[int]:
    try:
        generation = GenerationConfig.from_pretrained(source, **loading)
    except OSError:  # a model without such a file
        generation = None
    declared = [getattr(found, "eos_token_id", None) for found in (generation, config.get_text_config(), tokenizer)]
    several = [value if isinstance(value, list | tuple) else [value] for value in declared]
    return frozenset(token for tokens in several for token in tokens if token is not None)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
