"""The transformers model inside data-parallel, compiled and PEFT wrappers."""

from torch import nn
from transformers import PreTrainedModel

from opasd.errors import CaptureError


def unwrap(model: nn.Module) -> PreTrainedModel:
    """Return the transformers model inside data-parallel, compiled and PEFT wrappers."""
    from peft import PeftModel

    while not isinstance(model, PreTrainedModel):
        if isinstance(model, PeftModel):
            model = model.get_base_model()
        elif isinstance(inner := getattr(model, "module", getattr(model, "_orig_mod", None)), nn.Module):
            model = inner
        else:
            raise CaptureError(f"expected a transformers model, got {type(model).__name__}")
    return model


def model_type(model: nn.Module) -> str:
    """Return the family's name for errors."""
    return str(unwrap(model).config.model_type)
