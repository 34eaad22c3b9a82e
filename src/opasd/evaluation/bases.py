"""A base model for evaluation: its tokenizer and context, and an engine that swaps adapters on one copy of it."""

from collections.abc import Sequence
from pathlib import Path

from transformers import AutoConfig

from opasd.config import ModelConfig, RolloutConfig
from opasd.model.checks import context
from opasd.model.loading import load_tokenizer, loading_errors, model_source
from opasd.rollout.engine import AdapterEngine
from opasd.rollout.factory import serve_base


class Base:
    """The base `model`, to be sampled from by the engine that `rollout` names."""

    def __init__(self, model: ModelConfig, rollout: RolloutConfig) -> None:
        self.model, self.rollout = model, rollout
        self.tokenizer = load_tokenizer(model)
        with loading_errors("model", model):
            config = AutoConfig.from_pretrained(
                model_source(model), revision=model.revision, trust_remote_code=model.trust_remote_code
            )
        self.context = rollout.max_model_len or context(config)
        """The most tokens of a prompt with its completion."""

    def engine(self, longest: int, adapters: Sequence[Path]) -> AdapterEngine:
        """Return the engine, for sequences of up to `longest` tokens and for these adapters."""
        return serve_base(self.rollout, self.model, self.tokenizer, longest=longest, adapters=adapters)
