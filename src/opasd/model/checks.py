"""What a model can and cannot do with a run: context, positions, vocabulary, weights that text never reaches."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from opasd.errors import ConfigError
from opasd.model.unwrap import unwrap

_log = logging.getLogger(__name__)


def context(config: Any) -> int:
    """The most tokens of a sequence that a model of this configuration was made for."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31)


def same_positions_up_to(config: Any) -> int:
    """Up to which length positions are what they are whatever else is in a forward: beyond it, `dynamic` and `longrope`
    rotations follow its longest sequence."""
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for one in (rope, *(inner for inner in rope.values() if isinstance(inner, dict))):
        if one.get("rope_type") in ("dynamic", "longrope"):
            own = getattr(text, "original_max_position_embeddings", None)
            return int(one.get("original_max_position_embeddings") or own or context(config))
    return 2**31


def warn_of_positions(model: nn.Module, longest: int) -> None:
    """Tell where sequences are so long that their positions depend on one another."""
    if longest > (same := same_positions_up_to(unwrap(model).config)):
        _log.warning(
            "sequences of up to %d tokens, but beyond %d this model's positions depend on the longest sequence of a "
            "forward: losses and rollouts then depend on which problems share one; keep sequences below that",
            longest, same,
        )  # fmt: skip


def takes_more_than_text(model: nn.Module) -> bool:
    """Whether it has weights for images or sounds, which text leaves alone."""
    config = unwrap(model).config
    return config.get_text_config() is not config


def leave_head(model: nn.Module) -> None:
    """Do not train an output head of its own, by which nothing is learned where no token loss is."""
    head, table = unwrap(model).get_output_embeddings(), unwrap(model).get_input_embeddings()
    if head is not None and head.weight is not table.weight:
        head.requires_grad_(False)


def check_vocabulary(model: nn.Module, size: int, contexts: Iterable[Sequence[int]]) -> None:
    """Refuse contexts, of a tokenizer of so many tokens, that have one without an embedding in the model."""
    rows = getattr(unwrap(model).get_input_embeddings(), "num_embeddings", None)
    if rows is None or size <= rows:
        return
    largest = max(map(max, contexts))
    if largest >= rows:
        raise ConfigError(
            f"the tokenizer makes the token {largest}, but the model has embeddings for {rows}; give the model's own "
            "tokenizer, or resize the embeddings"
        )
