"""Merge an adapter into its base model and write the whole model."""

from pathlib import Path

import torch
from peft import PeftModel
from safetensors import SafetensorError
from transformers import AutoTokenizer, PreTrainedModel

from opasd.config import ModelConfig
from opasd.errors import ConfigError
from opasd.files import full_disk_errors, staged_files
from opasd.model.loading import load_model, load_tokenizer, loading_errors
from opasd.model.unwrap import unwrap
from opasd.run.folder import base_of


def merge(adapter: Path, output: Path, *, trust_remote_code: bool = False) -> None:
    """Write the whole model that `adapter` and its base make together."""
    if not (adapter / "adapter_config.json").exists():
        raise ConfigError(f"{adapter} is no adapter: it has no adapter_config.json; give a run's `final` folder")
    config = base_of(adapter)
    if config is None:
        raise ConfigError(f"{adapter}/adapter_config.json does not name the base model; add base_model_name_or_path")
    trust = {"trust_remote_code": trust_remote_code}
    config = config.model_copy(update=trust)
    with loading_errors("adapter", ModelConfig(name_or_path=str(adapter))):
        has_tokenizer = (adapter / "tokenizer_config.json").exists()
        tokenizer = AutoTokenizer.from_pretrained(str(adapter), **trust) if has_tokenizer else load_tokenizer(config)
        merged = _merged(PeftModel.from_pretrained(load_model(config), str(adapter)), adapter)
    try:
        with full_disk_errors(output, "merge again"), staged_files(output, last="config.json") as staged:
            merged.save_pretrained(str(staged))
            tokenizer.save_pretrained(str(staged))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


@torch.no_grad()
def _merged(model: PeftModel, adapter: Path) -> PreTrainedModel:
    """Return the whole model, and refuse it if it computes something else: PEFT may merge into a tied weight."""
    ids = torch.arange(1, min(9, unwrap(model).config.get_text_config().vocab_size), device=model.device)[None]
    model.eval()
    with model.disable_adapter():
        base = model(input_ids=ids).logits.double()
    adapted = model(input_ids=ids).logits.double()
    merged = model.merge_and_unload(safe_merge=True)
    assert isinstance(merged, PreTrainedModel)
    error = (merged(input_ids=ids).logits.double() - adapted).norm()
    rounding = (1e-3 if merged.dtype.itemsize > 2 else 5e-2) * adapted.norm()
    if error > max(rounding, (adapted - base).norm() / 2):
        raise ConfigError(
            f"the adapter in {adapter} cannot be merged: the whole model would compute something else (as with an "
            "adapter on an embedding that is tied to the output head); use it as an adapter"
        )
    return merged
