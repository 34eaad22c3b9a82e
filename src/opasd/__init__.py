"""On-policy attention self-distillation: a model teaches itself what to predict and where to look."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opasd.config import ObjectiveConfig, OPASDConfig, RunConfig
    from opasd.data.problems import Problem, load_problems
    from opasd.errors import OpasdError
    from opasd.losses.attention import attention_loss
    from opasd.losses.objective import opasd_loss
    from opasd.losses.token import token_loss
    from opasd.model.scoring import Scorer
    from opasd.prompts.alignment import Alignment, align
    from opasd.prompts.pairs import PromptBuilder, PromptPair
    from opasd.prompts.rollout import Rollout
    from opasd.trainer.trainer import OPASDTrainer

__version__ = "0.1.0"

_HOMES = {
    "Alignment": "prompts.alignment",
    "OPASDConfig": "config",
    "OPASDTrainer": "trainer.trainer",
    "ObjectiveConfig": "config",
    "OpasdError": "errors",
    "Problem": "data.problems",
    "PromptBuilder": "prompts.pairs",
    "PromptPair": "prompts.pairs",
    "Rollout": "prompts.rollout",
    "RunConfig": "config",
    "Scorer": "model.scoring",
    "align": "prompts.alignment",
    "attention_loss": "losses.attention",
    "load_problems": "data.problems",
    "opasd_loss": "losses.objective",
    "token_loss": "losses.token",
}

__all__ = [
    "Alignment",
    "OPASDConfig",
    "OPASDTrainer",
    "ObjectiveConfig",
    "OpasdError",
    "Problem",
    "PromptBuilder",
    "PromptPair",
    "Rollout",
    "RunConfig",
    "Scorer",
    "align",
    "attention_loss",
    "load_problems",
    "opasd_loss",
    "token_loss",
]


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first used, so that `import opasd` is quick."""
    if name not in _HOMES:
        raise AttributeError(f"module 'opasd' has no attribute {name!r}")
    return getattr(import_module(f"opasd.{_HOMES[name]}"), name)
