"""The words a configuration chooses between, each defined once, and checks for calls without one. Nothing heavy."""

import math
import reprlib
from numbers import Integral, Real
from typing import Any, Literal, get_args

from opasd.errors import ConfigError

Divergence = Literal["forward_kl", "reverse_kl", "jsd"]
"""How two distributions are compared, teacher first: KL(T‖S), KL(S‖T), or the generalised JSD."""

Clip = Literal["none", "pointwise", "per_token"]
"""`per_token`: min(D_t, c). `pointwise`: each vocabulary entry's contribution is at most c, before the sum."""

Handling = Literal["project", "redistribute", "shuffle"]
"""What becomes of the teacher's attention on the solution: dropped and renormalised, given to the shared
prompt positions in proportion to the teacher's attention there, or the same shares randomly permuted."""

Support = Literal["context", "problem", "response"]
"""Which shared positions are compared: all that both see, the problem's tokens, or the response so far."""

Query = Literal["predicting", "generated"]
"""Whose attention row belongs to step t: the position that predicts the token, or the token's own."""

Impl = Literal["auto", "fused", "chunked", "reference"]
"""`reference` is the definition in plain PyTorch; `chunked` is exact and never holds the whole matrix."""

Layout = Literal["auto", "packed", "padded"]
"""How rollouts share a forward."""

BadRow = Literal["stop", "skip"]
"""What to do with a row that cannot be used."""

CutPolicy = Literal["tail", "head", "middle", "skip"]
"""Which part of a solution that does not fit is cut away; `skip` gives the row up instead."""

Imitation = Literal["neutralise", "refuse"]
"""What to do with text that imitates the chat template's control tokens."""

Role = Literal["student", "teacher"]

TeacherUpdate = Literal["frozen", "ema", "live", "snapshot"]
"""Whose weights judge: the initial ones, a moving average of the student's, the student's own, or copies of them."""

Engine = Literal["transformers", "vllm", "vllm_server"]
"""What samples rollouts: the training model itself, vLLM in the same process, or vLLM servers."""

Adaptation = Literal["lora", "full", "qlora"]
"""What is trained: adapters, all weights, or adapters on a 4-bit base."""

Precision = Literal["auto", "float32", "bfloat16", "float16"]
"""Number format of the model's weights; `auto` is the checkpoint's own on a GPU and float32 on a CPU."""

NonFinite = Literal["stop", "skip"]
"""What to do with a step whose loss is NaN or infinite."""

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
"""transformers' schedules of the learning rate that need nothing but the step."""
FinishReason = Literal["stop", "length", "error"]
"""A declared stop token, `max_new_tokens`, or logits from which nothing can be drawn: NaN or infinite."""


def check_choice(name: str, value: object, words: Any) -> None:
    """Refuse a value that is not one of the words, a Literal."""
    if value not in get_args(words):
        raise ConfigError(f"{name}: got {reprlib.repr(value)}; use one of {', '.join(get_args(words))}")


def check_positive(
    name: str, value: Any, *, below: float = math.inf, whole: bool = False, optional: bool = False
) -> None:
    """Refuse what is not a finite number above 0 and below `below`; `optional` may be None."""
    kind: Any = Integral if whole else Real
    if not (isinstance(value, kind) and 0 < value < below) and not (optional and value is None):
        wanted = f"a {'whole ' if whole else ''}number above 0"
        wanted += "" if below == math.inf else f" and below {below:g}"
        raise ConfigError(f"{name}: got {reprlib.repr(value)}; use {wanted}{', or None' if optional else ''}")
