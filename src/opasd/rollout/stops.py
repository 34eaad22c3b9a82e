"""The tokens that end a completion."""

from torch import nn
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from opasd.model.unwrap import unwrap


def stop_ids(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None = None) -> frozenset[int]:
    """Return every token that the model or its tokenizer declares to end a completion."""
    base = unwrap(model)
    return _declared(base.generation_config, base.config.get_text_config(), tokenizer)


def stop_ids_of_files(
    source: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, revision: str | None = None
) -> frozenset[int]:
    """Return the same for a model that is not loaded: `config` and the generation settings are read from `source`."""
    try:
        generation = GenerationConfig.from_pretrained(source, revision=revision or "main")
    except OSError:  # the model has no such file
        generation = None
    return _declared(generation, config.get_text_config(), tokenizer)


def _declared(*sources: object) -> frozenset[int]:
    ids = [getattr(source, "eos_token_id", None) for source in sources]
    lists = [value if isinstance(value, list | tuple) else [value] for value in ids]
    return frozenset(token for tokens in lists for token in tokens if token is not None)
