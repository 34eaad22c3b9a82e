"""The words that a configuration chooses between, and checks of arguments for calls without a configuration.

Imports no torch. The losses import this module and not the configuration.
"""

import math
import reprlib
from collections.abc import Collection
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args

from opasd.errors import CaptureError, ConfigError, closest


@dataclass(frozen=True, eq=False)
class OneOf:
    """Annotation of a text that must be a key of a table; plugins may add keys at run time."""

    table: Collection[str]
    added_by: str = ""
    """The function with which a plugin adds a key."""

    def check(self, value: str) -> str:
        """Return a known key, or say which there are."""
        if value in self.table:
            return value
        hint = closest(value, self.table, 0.5)
        advice = f" ({hint})" if hint else ""
        if self.added_by and not hint:
            advice = f"; a plugin that calls {self.added_by} is loaded with `plugins: [MODULE]`"
        raise ValueError(f"got {value!r:.60}; use one of {', '.join(self.table)}{advice}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import AfterValidator

        return AfterValidator(self.check).__get_pydantic_core_schema__(source, handler)


DIVERGENCES: list[str] = ["forward_kl", "reverse_kl", "jsd"]
"""Names of the divergences; `opasd.losses.divergence` has their formulas."""

Divergence = Annotated[str, OneOf(DIVERGENCES, "opasd.register_divergence")]
"""Comparison of two distributions, teacher first: KL(T‖S), KL(S‖T), the generalised JSD, or a plugin's."""

Clip = Literal["none", "pointwise", "pointwise_masked", "per_token"]
"""`per_token`: min(D_t, c). `pointwise`: each vocabulary entry contributes at most c to the sum. `pointwise_masked`:
the same, and a token whose gradient that turns away from the teacher counts nothing."""

Handling = Literal["project", "redistribute", "shuffle"]
"""Treatment of the teacher's attention on the solution. `project` drops it and renormalises the rest. `redistribute`
gives it to the shared prompt positions in proportion to the teacher's attention there. `shuffle` permutes those shares
randomly."""

Support = Literal["context", "content", "problem", "response"]
"""Shared positions that are compared: all that both roles see, the same without the chat template's tokens, the
problem's tokens, or the response so far."""

Heads = Literal["mean", "each"]
"""Attention rows that are compared: the mean of a layer's heads, or those of each head, whose losses are averaged."""

Layers = int | tuple[int, ...] | Literal["all"]
"""Attention layers that are compared: the last k, those with these numbers (from 0, or negative from the end), all."""

Weight = float | Literal["balanced"]
"""Weight of the attention loss: a number, or one that follows the gradients' norms."""

Queries = Literal["all", "entropy", "solution_mass"]
"""Steps whose attention is compared: all, those at which the student's next token has at least an entropy, or those at
which the teacher gives the solution at least a share ρ of its attention."""

Query = Literal["predicting", "generated"]
"""Attention row of step t: that of the position that predicts the token, or that of the token itself."""

Impl = Literal["auto", "fused", "chunked", "reference"]
"""`reference` is the definition in plain PyTorch; `chunked` is exact and holds a part of the matrix at a time; `fused`
is a GPU kernel; `auto` takes the fastest that works."""

LayoutChoice = Literal["auto", "packed", "padded"]
"""How rollouts share a forward pass."""

StopOrSkip = Literal["stop", "skip"]
"""What to do with a row that cannot be used, or with a step whose loss is NaN or infinite."""

CutPolicy = Literal["tail", "head", "middle", "skip"]
"""Part of a too long solution that is cut away; `skip` skips the row instead."""

Imitation = Literal["neutralise", "refuse"]
"""What to do with text that imitates the chat template's control tokens."""

Role = Literal["student", "teacher"]

TEACHERS: list[str] = ["frozen", "ema", "live", "snapshot"]
"""Names of the rules by which a teacher follows its student."""

TeacherUpdate = Annotated[str, OneOf(TEACHERS, "opasd.register_teacher")]
"""The teacher's weights: the initial ones, a moving average of the student's, the student's own, copies of them, or a
plugin's rule."""

Adaptation = Literal["lora", "full", "qlora"]
"""What is trained: adapters, all weights, or adapters on a 4-bit base."""


@dataclass(frozen=True)
class EngineEntry:
    """What the configuration and the commands know about a rollout engine without importing it."""

    path: str
    """`module:class` of the engine, which is an `opasd.rollout.engine.EngineKind`."""
    adaptations: tuple[Adaptation, ...] = ("lora", "full", "qlora")
    """Values of `model.adaptation` that it can sample from."""
    package: str = ""
    """Python package that it needs."""
    install: str = ""
    """Command that installs the package."""
    servers: bool = False
    """Whether it samples on servers, at the addresses in `rollout.servers.urls`."""
    texts: bool = False
    """Whether it returns texts without token ids, which is enough to evaluate and not to train."""


GRADERS: dict[str, str] = {}
"""Graders that plugins have registered: their names and `module:function`."""

LOSS_TERMS: list[str] = ["likelihood", "rejection"]
"""Names of the loss terms: those of `opasd.losses.terms`, and what plugins have registered."""

RolloutSource = Literal["student", "solution"]
"""What is learned from: the student's own samples, or the verified solutions."""

ENGINES = {
    "transformers": EngineEntry("opasd.rollout.transformers.engine:TransformersEngine"),
    "vllm": EngineEntry(
        "opasd.rollout.vllm.in_process:VLLMEngine", ("lora", "full"), "vllm", "pip install 'opasd[vllm]'"
    ),
    "vllm_server": EngineEntry("opasd.rollout.vllm.server:ServerEngine", ("lora",), servers=True),
    "openai": EngineEntry("opasd.rollout.openai:OpenAIEngine", (), servers=True, texts=True),
}
"""The samplers of rollouts: the training model itself, vLLM in the same process, vLLM servers; of texts alone, any
OpenAI-compatible server."""

Engine = Annotated[str, OneOf(ENGINES, "opasd.register_engine")]


def register_engine(name: str, path: str, **about: Any) -> None:
    """Add a rollout engine; `path` is its `module:class`, `about` are the other fields of `EngineEntry`."""
    if name in ENGINES:
        raise ConfigError(f"there is already a rollout engine named {name!r}; choose another name")
    ENGINES[name] = EngineEntry(path, **about)


Precision = Literal["auto", "float32", "bfloat16", "float16"]
"""Number format of the model's weights; `auto` is the checkpoint's own on a GPU and float32 on a CPU."""

Schedule = Literal[
    "constant",
    "constant_with_warmup",
    "linear",
    "cosine",
    "cosine_with_restarts",
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "polynomial",
    "inverse_sqrt",
    "warmup_stable_decay",
]
"""transformers' schedules of the learning rate that depend on the step alone."""

FinishReason = Literal["stop", "length", "error"]
"""Why sampling ended: a stop token, `max_new_tokens`, or NaN or infinite logits."""


def layer_numbers(layers: Layers, count: int, model: str = "the model") -> list[int]:
    """Return which of the `count` attention layers of `model` are meant, from 0 and increasing."""
    if layers == "all":
        return list(range(count))
    wanted = range(-min(layers, count + 1), 0) if isinstance(layers, int) else layers
    numbers = sorted({number % count for number in wanted if -count <= number < count})
    if not numbers or len(numbers) < len(wanted):
        shown = layers if isinstance(layers, int) else list(layers)
        raise CaptureError(
            f"objective.attention.layers is {shown}, but {model} has {count} attention layers; use a number from 1 "
            f"to {count}, different layers from 0 to {count - 1} (or {-count} to -1, from the end), or all"
        )
    return numbers


def check_choice(name: str, value: object, words: Any) -> None:
    """Refuse a value that is not one of the words of a Literal."""
    if value not in get_args(words):
        raise ConfigError(f"{name}: got {reprlib.repr(value)}; use one of {', '.join(get_args(words))}")


def check_positive(
    name: str, value: Any, *, below: float = math.inf, whole: bool = False, optional: bool = False
) -> None:
    """Refuse a value that is not a finite number above 0 and below `below`; None is allowed if `optional`."""
    kind: Any = Integral if whole else Real
    if not (isinstance(value, kind) and 0 < value < below) and not (optional and value is None):
        wanted = f"a {'whole ' if whole else ''}number above 0"
        wanted += "" if below == math.inf else f" and below {below:g}"
        raise ConfigError(f"{name}: got {reprlib.repr(value)}; use {wanted}{', or None' if optional else ''}")
