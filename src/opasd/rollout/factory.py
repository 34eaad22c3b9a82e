"""Make the engine that a configuration names.

`opasd.choices.ENGINES` says where each engine is defined. To add an engine, write its class, with the two class methods
of `opasd.rollout.engine.EngineKind`, and add an entry there.
"""

from collections.abc import Sequence
from pathlib import Path
from pkgutil import resolve_name

from torch import nn
from transformers import PreTrainedTokenizerBase

from opasd.choices import ENGINES
from opasd.config import ModelConfig, RolloutConfig
from opasd.rollout.engine import AdapterEngine, EngineKind, RolloutEngine


def engine_kind(name: str) -> EngineKind:
    """Import and return the class of the engine called `name`."""
    return resolve_name(ENGINES[name].path)


def make_engine(
    config: RolloutConfig, model: nn.Module, tokenizer: PreTrainedTokenizerBase, *, longest: int
) -> RolloutEngine:
    """Return an engine that samples from `model`; the arguments are those of `EngineKind.for_training`."""
    return engine_kind(config.engine).for_training(config, model, tokenizer, longest=longest)


def serve_base(
    config: RolloutConfig, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, *,
    longest: int, adapters: Sequence[Path] = (),
) -> AdapterEngine:  # fmt: skip
    """Return an engine over the base `model`; the arguments are those of `EngineKind.for_evaluation`."""
    return engine_kind(config.engine).for_evaluation(config, model, tokenizer, longest=longest, adapters=adapters)
