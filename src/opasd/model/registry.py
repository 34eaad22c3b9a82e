"""Change a model's attention for a while: the one place that patches transformers.

Every model of transformers looks its attention function up in a registry, by the name in its configuration. This module
changes that in two ways, and undoes both:

    replaced       another function under a name, for the length of a block. The name stays the same, so masks,
                   kernels and caches stay the same too; a new name would lose the mask.
    use_attention  another name in the configuration of the model's parts, until the returned function is called.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from transformers import PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface


def attention_registries(model: nn.Module) -> list[AttentionInterface]:
    """Return the registries that a model's code reads: nearly always only the shared one."""
    registries = {id(ALL_ATTENTION_FUNCTIONS): ALL_ATTENTION_FUNCTIONS}
    for name in {type(module).__module__ for module in model.modules()}:
        registry = getattr(sys.modules.get(name), "ALL_ATTENTION_FUNCTIONS", None)
        if isinstance(registry, AttentionInterface):
            registries[id(registry)] = registry
    return list(registries.values())


def configurations(model: nn.Module) -> list[PreTrainedConfig]:
    """Return the configurations of the model's parts, each once."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return list({id(config): config for config in configs if isinstance(config, PreTrainedConfig)}.values())


@contextmanager
def replaced(names: dict[str, Any], name: str, value: object) -> Iterator[None]:
    """Within the block, `name` has another value in the names of a registry, a module or an object."""
    before = names.get(name)
    names[name] = value
    try:
        yield
    finally:
        if before is None:
            names.pop(name, None)
        else:
            names[name] = before


def use_attention(configs: list[PreTrainedConfig], implementation: str) -> Callable[[], None]:
    """Give these configurations another attention implementation; return what gives them their own back."""
    before = [config._attn_implementation_internal for config in configs]
    for config in configs:
        # Past the setter, which would change the configurations of other parts as well.
        config._attn_implementation_internal = implementation

    def restore() -> None:
        for config, own in zip(configs, before, strict=True):
            config._attn_implementation_internal = own

    return restore
