"""The sizes of a decoder, read from its `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from opasd.errors import ConfigError

_QWEN3: dict[str, Any] = {"model_type": "qwen3", "vocab_size": 151_936, "head_dim": 128, "num_key_value_heads": 8}
_SIZES = {
    "Qwen/Qwen3-0.6B": (1024, 3072, 28, 16, True),
    "Qwen/Qwen3-1.7B": (2048, 6144, 28, 16, True),
    "Qwen/Qwen3-4B": (2560, 9728, 36, 32, True),
    "Qwen/Qwen3-8B": (4096, 12_288, 36, 32, False),
    "Qwen/Qwen3-14B": (5120, 17_408, 40, 40, False),
    "Qwen/Qwen3-32B": (5120, 25_600, 64, 64, False),
}
KNOWN: dict[str, dict[str, Any]] = {
    name: _QWEN3
    | {
        "hidden_size": hidden,
        "intermediate_size": wide,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "tie_word_embeddings": tied,
    }
    for name, (hidden, wide, layers, heads, tied) in _SIZES.items()
}
"""Configurations of hub models that can be planned for before they are fetched (from the models' config.json)."""
_UNGATED = ("gpt2", "gpt_neo", "gpt_neox", "opt", "bloom", "phi", "falcon", "starcoder2", "gpt_bigcode")
"""Families whose feed-forward blocks have two matrices and not three."""


@dataclass(frozen=True)
class Shape:
    """One decoder. Sizes count numbers, not bytes."""

    hidden: int
    wide: int
    """Size of the feed-forward block, of all experts that a token uses."""
    layers: int
    heads: int
    key_heads: int
    head_size: int
    vocabulary: int
    tied: bool
    """Whether the output head is the table of embeddings."""
    matrices: int = 3
    """Matrices of a feed-forward block."""
    stored_wide: int = 0
    """Size of the feed-forward blocks of all experts."""

    @classmethod
    def of(cls, config: Mapping[str, Any], name: str = "the model") -> Self:
        """Read a `config.json`, or the part of it that describes the text decoder."""
        text = config.get("text_config")
        config = {**config, **text} if isinstance(text, Mapping) else config

        def size(*keys: str, default: int | None = None) -> int:
            for key in keys:
                value = config.get(key)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
            if default is None:
                raise ConfigError(f"{name}: its config.json has no {keys[0]}; a plan needs the sizes of a decoder")
            return default

        hidden, heads = size("hidden_size", "n_embd"), size("num_attention_heads", "n_head")
        gated = config.get("model_type") not in _UNGATED
        wide = size("intermediate_size", "n_inner", default=4 * hidden)
        experts = size("num_experts", "num_local_experts", "n_routed_experts", default=1)
        used = size("num_experts_per_tok", default=1)
        if experts > 1:
            wide = size("moe_intermediate_size", default=wide)
        return cls(
            hidden=hidden,
            wide=wide * (used if experts > 1 else 1),
            layers=size("num_hidden_layers", "n_layer"),
            heads=heads,
            key_heads=size("num_key_value_heads", default=heads),
            head_size=size("head_dim", default=max(1, hidden // heads)),
            vocabulary=size("vocab_size"),
            tied=bool(config.get("tie_word_embeddings", config.get("model_type") in ("gpt2", "gemma", "gemma2"))),
            matrices=3 if gated else 2,
            stored_wide=wide * experts,
        )

    @property
    def queries(self) -> int:
        """Numbers of all query heads of a token."""
        return self.heads * self.head_size

    @property
    def keys(self) -> int:
        """Numbers of all key heads of a token; the values have as many."""
        return self.key_heads * self.head_size

    @property
    def table(self) -> int:
        """Numbers of the output head."""
        return self.vocabulary * self.hidden

    @property
    def layer(self) -> int:
        """Parameters of one layer."""
        attention = self.hidden * (2 * self.queries + 2 * self.keys)
        return attention + self.matrices * self.hidden * (self.stored_wide or self.wide) + 2 * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters, a shared table counted once."""
        return self.layers * self.layer + self.table * (1 if self.tied else 2) + self.hidden

    @property
    def active(self) -> int:
        """Parameters that a token is multiplied with in the layers."""
        idle = self.matrices * self.hidden * (max(self.stored_wide, self.wide) - self.wide)
        return self.layers * (self.layer - idle)

    def adapters(self, rank: int, modules: tuple[str, ...]) -> int:
        """Parameters of LoRA adapters on the layers with these names; unknown names count nothing."""
        sizes = {
            "q_proj": self.hidden + self.queries,
            "k_proj": self.hidden + self.keys,
            "v_proj": self.hidden + self.keys,
            "o_proj": self.queries + self.hidden,
            "gate_proj": self.hidden + self.wide,
            "up_proj": self.hidden + self.wide,
            "down_proj": self.wide + self.hidden,
        }
        if "all-linear" in modules:
            modules = tuple(sizes)
        return self.layers * rank * sum(sizes.get(module.rsplit(".", 1)[-1], 0) for module in modules)

    def cache(self) -> float:
        """Bytes of the keys and values of one token, two bytes a number."""
        return 2 * self.layers * self.keys * 2
