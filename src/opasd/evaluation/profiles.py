"""How benchmarks are sampled: by name as published, or with settings of one's own."""

from typing import Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from opasd.config import SamplingConfig, Section
from opasd.errors import ConfigError
from opasd.recipes.checking import explain

PAPER = ("aime24", "aime25", "aime26", "hmmt25")
"""The benchmarks that are asked where none are named."""
ASKED = ("samples", "seed", "temperature", "top_p", "top_k", "min_p", "max_new_tokens", "budgets", "thinking")
"""What a command may change about a profile."""


class Profile(Section):
    """What is drawn for every problem."""

    sampling: SamplingConfig
    """How tokens are drawn; `max_new_tokens` is the largest budget."""
    samples: int = Field(default=12, gt=0)
    """Answers for each problem."""
    seed: int = 0
    """Seed from which every sample's own is derived."""
    thinking: bool = True
    """Thinking mode, where the chat template has a switch for it."""
    budgets: tuple[int, ...] = ()
    """Lengths at which the same samples are cut and graded, each reported by itself. Unset: `max_new_tokens`."""

    @field_validator("budgets")
    @classmethod
    def _from_the_shortest(cls, budgets: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(sorted(budgets))

    @model_validator(mode="after")
    def _budgets_fit(self) -> Self:
        if any(budget < 1 for budget in self.budgets) or len(set(self.budgets)) < len(self.budgets):
            raise ValueError(f"budgets must be different numbers above 0; got {', '.join(map(str, self.budgets))}")
        if self.budgets and max(self.budgets) != self.sampling.max_new_tokens:
            raise ValueError(
                f"the largest budget must be sampling.max_new_tokens {self.sampling.max_new_tokens}; got "
                f"{max(self.budgets)}"
            )
        return self

    @property
    def cuts(self) -> tuple[int, ...]:
        """The budgets, from the shortest."""
        return self.budgets or (self.sampling.max_new_tokens,)


PROFILES = {
    "paper": Profile(sampling=SamplingConfig(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, max_new_tokens=16_384)),
    "opsd": Profile(sampling=SamplingConfig(temperature=1.0, top_p=0.95, top_k=0, min_p=0.0, max_new_tokens=38_912)),
    "lab": Profile(
        sampling=SamplingConfig(temperature=0.6, top_p=0.95, top_k=20, min_p=0.0, max_new_tokens=160),
        samples=1,
        thinking=False,
    ),
}
"""`paper`: the paper's evaluation. `opsd`: that of OPSD's own code. `lab`: the embedded model's validation."""


def profile(name: str, changes: dict[str, Any]) -> Profile:
    """A profile by name, with the fields of `changes` (of it and of its sampling) that are not None."""
    base = PROFILES[name]
    given = {key: value for key, value in changes.items() if value is not None}
    budgets = given.get("budgets") or ()
    if budgets and "max_new_tokens" not in given:
        given["max_new_tokens"] = max(budgets)
    sampling = base.sampling.model_dump() | {k: v for k, v in given.items() if k in SamplingConfig.model_fields}
    own = {key: value for key, value in given.items() if key in Profile.model_fields}
    try:
        return Profile.model_validate(base.model_dump() | own | {"sampling": sampling})
    except ValidationError as error:
        raise ConfigError(f"profile {name}: {'; '.join(explain(error, Profile))}") from None
