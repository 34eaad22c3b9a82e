"""What is learned: the token loss, the attention loss and their weights."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from opasd.choices import LOSS_TERMS, Clip, Divergence, Handling, Impl, OneOf, Query, Support


class Section(BaseModel):
    """A strict, immutable group of fields; the docstring of an attribute is its help text."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, use_attribute_docstrings=True)


class TokenLossConfig(Section):
    """The token-level loss (OPSD): the student learns the teacher's next-token distribution."""

    divergence: Divergence = "forward_kl"
    """Divergence between the next-token distributions, teacher first."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of the Jensen-Shannon divergence."""
    temperature: float = Field(default=1.1, gt=0, allow_inf_nan=False)
    """Temperature of both distributions in the loss; the sampling temperature is another setting."""
    clip: Clip = "per_token"
    """Clip each token's divergence, each vocabulary entry's contribution to it, or nothing."""
    clip_threshold: float = Field(default=0.05, gt=0, allow_inf_nan=False)
    """Threshold of the clipping."""
    top_k: int | None = Field(default=None, gt=0)
    """Compare the teacher's k likeliest tokens one by one and all others as one. Unset: the full vocabulary."""
    impl: Impl = "auto"
    """Implementation."""
    chunk_tokens: int | None = Field(default=None, gt=0)
    """Number of tokens whose logits are in memory at a time. Unset: as many as fit a fixed workspace."""


class AttentionLossConfig(Section):
    """The attention-level loss (OPASD): the student learns where the teacher looks."""

    divergence: Divergence = "jsd"
    """Divergence between the attention rows, teacher first."""
    jsd_beta: float = Field(default=0.5, gt=0, lt=1)
    """Weight of the teacher in the mixture of the Jensen-Shannon divergence."""
    layers: int = Field(default=1, gt=0)
    """Number of last attention layers to compare; their losses are averaged."""
    handling: Handling = "project"
    """Treatment of the teacher's attention on the solution."""
    support: Support = "context"
    """Shared positions to compare."""
    query: Query = "predicting"
    """Attention row of a step: that of the position that predicts its token, or that of the token itself."""
    shuffle_seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of the permutation that `handling: shuffle` uses."""
    impl: Impl = "auto"
    """Implementation."""
    chunk_queries: int = Field(default=128, gt=0)
    """Number of query rows whose attention is in memory at a time."""

    @model_validator(mode="after")
    def _redistribution_needs_the_prompt(self) -> Self:
        if self.handling != "project" and self.support == "response":
            raise ValueError(
                f"handling: {self.handling} gives the solution's attention to shared prompt positions, "
                "but support: response leaves none; use support: context or problem, or handling: project"
            )
        return self


class ObjectiveConfig(Section):
    """λ_tok · token loss + λ_attn · attention loss, averaged over a rollout's tokens, then over rollouts."""

    token_weight: float = Field(default=1.0, ge=0, allow_inf_nan=False)
    """Weight of the token loss; 0 trains on attention alone."""
    attention_weight: float = Field(default=0.5, ge=0, allow_inf_nan=False)
    """Weight of the attention loss; 0 is OPSD."""
    token: TokenLossConfig = TokenLossConfig()
    """Token loss."""
    attention: AttentionLossConfig = AttentionLossConfig()
    """Attention loss."""
    terms: dict[Annotated[str, OneOf(LOSS_TERMS, "opasd.register_loss_term")], float] = Field(default={})
    """Weights of loss terms that plugins have registered."""

    @model_validator(mode="after")
    def _something_to_learn(self) -> Self:
        if self.token_weight == 0 and self.attention_weight == 0 and not any(self.terms.values()):
            raise ValueError("token_weight and attention_weight are both 0: nothing to learn; set one of them above 0")
        return self
