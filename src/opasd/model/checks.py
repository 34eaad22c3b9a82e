"""Facts about a model that a run depends on: its context, positions, vocabulary, and weights that no loss reaches."""

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from opasd.errors import ConfigError
from opasd.model.unwrap import unwrap

_log = logging.getLogger(__name__)


def context(config: Any) -> int:
    """Return the longest sequence, in tokens, that a model of this configuration was made for."""
    return int(getattr(config.get_text_config(), "max_position_embeddings", None) or 2**31)


def same_positions_up_to(config: Any) -> int:
    """Return the length up to which a sequence's positions do not depend on the other sequences of a forward.

    Beyond it, `dynamic` and `longrope` rotations follow the longest sequence.
    """
    text = config.get_text_config()
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    for settings in (rope, *(inner for inner in rope.values() if isinstance(inner, dict))):
        if settings.get("rope_type") in ("dynamic", "longrope"):
            original = getattr(text, "original_max_position_embeddings", None)
            return int(settings.get("original_max_position_embeddings") or original or context(config))
    return 2**31


def warn_of_positions(model: nn.Module, longest: int) -> None:
    """Warn if sequences are so long that their positions depend on one another."""
    if longest > (limit := same_positions_up_to(unwrap(model).config)):
        _log.warning(
            "sequences of up to %d tokens, but beyond %d this model's positions depend on the longest sequence of a "
            "forward: losses and rollouts then depend on which problems share one; keep sequences below that",
            longest,
            limit,
        )


def takes_more_than_text(model: nn.Module) -> bool:
    """Return whether the model has weights for images or sounds, which text never reaches."""
    config = unwrap(model).config
    return config.get_text_config() is not config


def leave_head(model: nn.Module) -> None:
    """Freeze an output head that is not tied to the embeddings; without a token loss it would learn nothing."""
    head, table = unwrap(model).get_output_embeddings(), unwrap(model).get_input_embeddings()
    if head is not None and head.weight is not table.weight:
        head.requires_grad_(False)


def check_vocabulary(model: nn.Module, size: int, contexts: Iterable[Sequence[int]]) -> None:
    """Refuse contexts with a token the model has no embedding for; `size` is the tokenizer's number of tokens."""
    rows = getattr(unwrap(model).get_input_embeddings(), "num_embeddings", None)
    if rows is None or size <= rows:
        return
    largest = max(map(max, contexts))
    if largest >= rows:
        raise ConfigError(
            f"the tokenizer gives the token {largest}, but the model has embeddings for {rows}; give the model's own "
            "tokenizer, or resize the embeddings"
        )
