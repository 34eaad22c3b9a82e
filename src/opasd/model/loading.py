"""Load a model and its tokenizer, and set up the weights to train."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers import BitsAndBytesConfig as FourBitConfig
from transformers.integrations import deepspeed
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging

from opasd.config import ModelConfig
from opasd.errors import ConfigError, OpasdError
from opasd.files import refuse_pipes
from opasd.lab import LAB, model_path


def model_source(config: ModelConfig) -> str:
    """Return the source of the model: a folder for the embedded model, else the configured name."""
    return str(model_path()) if config.name_or_path == LAB else config.name_or_path


def hub_commit(config: ModelConfig) -> str | None:
    """Return the commit of a hub's model that this machine has; a local model has none."""
    if Path(model_source(config)).expanduser().exists():
        return None
    try:
        file = try_to_load_from_cache(config.name_or_path, "config.json", revision=config.revision)
    except HFValidationError:
        return None
    return Path(file).parent.name if isinstance(file, str) else None


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    with loading_errors("tokenizer", config):
        tokenizer = AutoTokenizer.from_pretrained(
            model_source(config), revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    # transformers makes an empty tokenizer from the model's type if there is none.
    if not tokenizer("What is 1 + 1?", add_special_tokens=False)["input_ids"]:
        raise ConfigError(
            f"{config.name_or_path} has no tokenizer: a text gives no token; put the tokenizer's files "
            "(tokenizer.json, tokenizer_config.json) beside the model's"
        )
    return tokenizer


def load_model(config: ModelConfig) -> PreTrainedModel:
    """Load the model in the configured precision, on the CPU; Trainer moves it."""
    options: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    if (config.attn_implementation or "").startswith("flex_attention") and not torch.cuda.is_available():
        raise ConfigError("model.attn_implementation: flex_attention needs a GPU; use sdpa or eager")
    if config.attn_implementation is not None:
        options["attn_implementation"] = config.attn_implementation
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    elif not torch.cuda.is_available():
        options["dtype"] = torch.float32
    if config.adaptation == "qlora":
        if find_spec("bitsandbytes") is None:
            raise ConfigError("model.adaptation: qlora needs bitsandbytes; pip install bitsandbytes")
        four_bit = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
        options["quantization_config"] = FourBitConfig(**four_bit, bnb_4bit_compute_dtype=torch.bfloat16)
    with loading_errors("model", config), _undivided():
        loaded: Any = AutoModelForCausalLM.from_pretrained(model_source(config), output_loading_info=True, **options)
    model, info = loaded
    if config.adaptation != "qlora" and (missing := sorted(info["missing_keys"])):
        raise ConfigError(
            f"{config.name_or_path} has no {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}, and random "
            "weights would take their place; give a folder with all of the model's weights"
        )
    return model


@contextmanager
def _undivided() -> Iterator[None]:
    """Within the block, a model is loaded whole; else ZeRO-3 would divide it before it can be read and adapted."""
    reference = deepspeed._hf_deepspeed_config_weak_ref
    settings = None if reference is None else reference()
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        if settings is not None:
            deepspeed.set_hf_deepspeed_config(settings)


def adapt(model: PreTrainedModel, config: ModelConfig, *, checkpointing: bool) -> PreTrainedModel | PeftModel:
    """Return the model with the weights to train set up."""
    if config.adaptation == "full":
        return model
    if config.adaptation == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
    transposed = _named(model, Conv1D)  # GPT-2's layers have rows and columns exchanged
    linear = transposed | _named(model, torch.nn.Linear)
    if missing := set(config.lora_target_modules) - linear:
        raise ConfigError(
            f"model.lora_target_modules names {', '.join(sorted(missing))}, which the {model.config.model_type} model "
            f"does not have; its linear layers are {', '.join(sorted(linear))}"
        )
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=list(config.lora_target_modules),
        task_type="CAUSAL_LM",
        fan_in_fan_out=transposed.issuperset(config.lora_target_modules),
    )
    try:
        return get_peft_model(model, lora, revision=config.revision)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"model.lora_target_modules: the {model.config.model_type} model cannot be adapted like this: "
            f"{' '.join(str(error).split())[:300]}; name other modules"
        ) from error


def _named(model: PreTrainedModel, kind: type[torch.nn.Module]) -> set[str]:
    """Return the last parts of the names of the model's modules of this kind."""
    return {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, kind)}


@contextmanager
def loading_errors(what: str, config: ModelConfig) -> Iterator[None]:
    """Turn any error of loading into one message, and show no progress bar."""
    logging.disable_progress_bar()
    try:
        if (folder := Path(model_source(config))).is_dir():
            refuse_pipes(folder)
        yield
    except OpasdError:
        raise
    except Exception as error:  # transformers, tokenizers, torch and a model's own code raise anything on broken files
        if "trust_remote_code" in str(error):
            raise ConfigError(
                f"the {what} {config.name_or_path!r} needs code that comes with it; if you trust that code, add "
                "--model.trust-remote-code true (train, probe, prompt) or --trust-remote-code (evaluate, merge, attend)"
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300].rstrip(".")
        raise ConfigError(
            f"cannot load the {what} {config.name_or_path!r}: {reason}; give a folder with the model's files, or a hub "
            "name while the hub can be reached"
        ) from error
    finally:
        logging.enable_progress_bar()
