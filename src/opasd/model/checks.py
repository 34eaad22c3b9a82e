"""Lengths that a model's configuration sets limits to."""

from typing import Any


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
