"""On-policy attention self-distillation: a model teaches itself what to predict and where to look."""
# ruff: noqa: F401 (type checkers read the imports below; at run time `__getattr__` makes them)

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opasd.choices import register_engine
    from opasd.config import ObjectiveConfig, OPASDConfig, RunConfig
    from opasd.data.problems import Problem, load_problems
    from opasd.errors import OpasdError
    from opasd.evaluation.benchmarks import register_benchmark
    from opasd.grading.outside import register_grader
    from opasd.losses.attention import attention_loss
    from opasd.losses.divergence import register_divergence
    from opasd.losses.terms import LossTerm, MicroBatch, register_loss_term
    from opasd.losses.token import token_loss
    from opasd.model.objective import opasd_loss
    from opasd.model.rules import register_teacher
    from opasd.model.scoring import Scorer
    from opasd.prompts.alignment import Alignment, align
    from opasd.prompts.contexts import PromptPair
    from opasd.prompts.pairs import PromptBuilder
    from opasd.prompts.rollout import Rollout
    from opasd.trainer.arguments import OPASDArguments
    from opasd.trainer.trainer import OPASDTrainer

__version__ = "0.1.0"

_NAMES = {
    "choices": ("register_engine",),
    "config": ("OPASDConfig", "ObjectiveConfig", "RunConfig"),
    "data.problems": ("Problem", "load_problems"),
    "errors": ("OpasdError",),
    "evaluation.benchmarks": ("register_benchmark",),
    "grading.outside": ("register_grader",),
    "losses.attention": ("attention_loss",),
    "losses.divergence": ("register_divergence",),
    "losses.terms": ("LossTerm", "MicroBatch", "register_loss_term"),
    "losses.token": ("token_loss",),
    "model.objective": ("opasd_loss",),
    "model.rules": ("register_teacher",),
    "model.scoring": ("Scorer",),
    "prompts.alignment": ("Alignment", "align"),
    "prompts.contexts": ("PromptPair",),
    "prompts.pairs": ("PromptBuilder",),
    "prompts.rollout": ("Rollout",),
    "trainer.arguments": ("OPASDArguments",),
    "trainer.trainer": ("OPASDTrainer",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import opasd` is quick."""
    if name not in _MODULES:
        raise AttributeError(f"module 'opasd' has no attribute {name!r}")
    return getattr(import_module(f"opasd.{_MODULES[name]}"), name)
