"""What is learned: the token loss, the attention loss and their weights."""

import math
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from opasd.choices import (
    LOSS_TERMS,
    Clip,
    Divergence,
    Handling,
    Heads,
    Impl,
    Layers,
    OneOf,
    Queries,
    Query,
    Support,
    Weight,
)


class Section(BaseModel):
    """A strict, immutable group of fields; the docstring of an attribute is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _countable(cls, value: Any) -> Any:
        """Refuse a whole number that no library below can hold."""
        if isinstance(value, int) and abs(value) >= 2**63:
            raise ValueError("got too large a whole number; it may have 18 digits")
        return value


class TokenLossConfig(Section):
    """The token-level loss (OPSD): the student learns the teacher's next-token distribution."""

    divergence: Divergence = "forward_kl"
    """Divergence between the next-token distributions, teacher first."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of the Jensen-Shannon divergence."""
    temperature: float = Field(default=1.1, gt=0, allow_inf_nan=False)
    """Temperature of both distributions in the loss; the sampling temperature is another setting."""
    clip: Clip = "per_token"
    """Clip each token's divergence, each vocabulary entry's contribution to it (also without the tokens that this turns
    away from the teacher), or nothing."""
    clip_threshold: float = Field(default=0.05, gt=0, le=1e30)
    """Threshold of the clipping."""
    top_k: int | None = Field(default=None, gt=0)
    """Compare the teacher's k likeliest tokens one by one and all others as one. Unset: the full vocabulary."""
    impl: Impl = "auto"
    """Implementation."""
    chunk_tokens: int | None = Field(default=None, gt=0)
    """Number of tokens whose logits are in memory at a time. Unset: as many as fit a fixed workspace."""


def _whole_number(value: Any) -> int | None:
    if isinstance(value, str) and len(value) < 20 and value.strip().removeprefix("-").isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _read_layers(value: Any) -> Any:
    """Return a number of last layers, the numbers of some layers, or `all`; a text may list them: `15,16`."""
    many = [part for part in value.split(",") if part] if isinstance(value, str) and "," in value else value
    if isinstance(many, list | tuple):
        numbers = tuple(map(_whole_number, many))
        if numbers and None not in numbers and len(set(numbers)) == len(numbers):
            return numbers
    elif value == "all" or (_whole_number(value) or 0) > 0:
        return value if value == "all" else _whole_number(value)
    raise ValueError(
        f"got {value!r:.60}; give how many of the last layers (1 or more), a list of different layers such as "
        "[15, 16] (from 0, or negative from the end), or all"
    )


class AttentionLossConfig(Section):
    """The attention-level loss (OPASD): the student learns where the teacher looks."""

    divergence: Divergence = "jsd"
    """Divergence between the attention rows, teacher first."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of the Jensen-Shannon divergence."""
    layers: Annotated[Layers, BeforeValidator(_read_layers)] = 1
    """Attention layers to compare; their losses are averaged. A number is how many of the last, a list such as [15, 16]
    names them (from 0, or negative from the end), and `all` is every one."""
    heads: Heads = "mean"
    """Compare the mean of a layer's heads, or each head by itself; the heads' losses are averaged."""
    handling: Handling = "project"
    """Treatment of the teacher's attention on the solution."""
    support: Support = "context"
    """Shared positions to compare: all, all without the chat template's tokens (`content`), the problem's, or the
    response's."""
    first_token: bool = True
    """Whether the first token of the context is one of them."""
    query: Query = "predicting"
    """Attention row of a step: that of the position that predicts its token, or that of the token itself."""
    queries: Queries = "all"
    """Steps to compare: all, or those at which the student's next token has at least the threshold's entropy (nats), or
    at which the teacher gives the solution at least the threshold's share ρ of its attention."""
    query_threshold: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """Threshold of `queries`: an entropy or ρ."""
    shuffle_seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the permutation that `handling: shuffle` uses."""
    impl: Impl = "auto"
    """Implementation."""
    chunk_queries: int = Field(default=128, gt=0)
    """Number of query rows whose attention is in memory at a time."""

    @model_validator(mode="after")
    def _threshold_of_queries(self) -> Self:
        if self.queries == "all" and self.query_threshold is not None:
            raise ValueError("query_threshold has no effect with queries: all; set queries: entropy or solution_mass")
        if self.queries != "all" and self.query_threshold is None:
            raise ValueError(f"queries: {self.queries} needs query_threshold, such as 0.5")
        if self.queries == "solution_mass" and (self.query_threshold or 0) > 1:
            raise ValueError(
                f"query_threshold: got {self.query_threshold}; with queries: solution_mass it is a share, at most 1"
            )
        return self

    @model_validator(mode="after")
    def _redistribution_needs_the_prompt(self) -> Self:
        if self.handling != "project" and self.support == "response":
            raise ValueError(
                f"handling: {self.handling} gives the solution's attention to shared prompt positions, "
                "but support: response leaves none; use support: context or problem, or handling: project"
            )
        return self


def _read_weight(value: Any) -> Any:
    """Return a weight of at least 0, or `balanced`."""
    try:
        number = value if isinstance(value, bool) or value == "balanced" else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number == "balanced" or (isinstance(number, float) and 0 <= number < math.inf):
        return number
    raise ValueError(f"got {value!r:.60}; give a number of at least 0, or balanced")


class ObjectiveConfig(Section):
    """λ_tok · token loss + λ_attn · attention loss, averaged over a rollout's tokens, then over rollouts."""

    token_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the token loss; 0 trains on attention alone."""
    attention_weight: Annotated[Weight, BeforeValidator(_read_weight)] = 0.5
    """Weight of the attention loss; 0 is OPSD. `balanced`: by `attention_ratio`."""
    attention_ratio: float = Field(default=0.5, gt=0, allow_inf_nan=False)
    """For `attention_weight: balanced`: the attention loss's gradient gets this many times the norm of the token
    loss's, measured every `gradients_every` steps."""
    gradients_every: int | None = Field(default=None, ge=0)
    """Steps between measurements of both losses' gradients, from the first step on. Such a step goes over its rollouts
    twice. 0: never, or once for `balanced`. Unset: 10, but never with a constant weight where all weights train."""
    token: TokenLossConfig = TokenLossConfig()
    """Token loss."""
    attention: AttentionLossConfig = AttentionLossConfig()
    """Attention loss."""
    terms: dict[Annotated[str, OneOf(LOSS_TERMS, "opasd.register_loss_term")], float] = Field(default={})
    """Weights of more loss terms: `likelihood` of the rollout's tokens, the same of right rollouts alone (`rejection`),
    and what plugins have registered."""

    @property
    def attends(self) -> bool:
        """Whether the attention loss has a weight."""
        return self.attention_weight == "balanced" or self.attention_weight > 0

    @model_validator(mode="after")
    def _balanced_against_something(self) -> Self:
        if self.attention_weight == "balanced" and self.token_weight == 0:
            raise ValueError("attention_weight: balanced needs a token loss to balance; set token_weight above 0")
        return self

    @model_validator(mode="after")
    def _something_to_learn(self) -> Self:
        if self.token_weight == 0 and self.attention_weight == 0 and not any(self.terms.values()):
            raise ValueError("token_weight and attention_weight are both 0: nothing to learn; set one of them above 0")
        return self

    def warnings(self) -> list[str]:
        """Return what is allowed and rarely wanted."""
        clip = (
            "objective.token.clip: pointwise is no divergence: it can turn a token's gradient away from the teacher "
            "(docs/method.md; the metric token/reversed counts such tokens); per_token and none cannot"
        )
        return [clip] if self.token_weight > 0 and self.token.clip == "pointwise" else []
