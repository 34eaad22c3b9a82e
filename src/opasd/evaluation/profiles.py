"""How benchmarks are sampled: the published settings by name, and changes to them."""

from typing import Annotated, Self

from pydantic import AfterValidator, Field, model_validator

from opasd.choices import Engine
from opasd.config import SamplingConfig, Section
from opasd.recipes.checking import checked
from opasd.recipes.evaluate import EvaluateConfig

ENGINE: Engine = "transformers"
"""Default engine."""
GROUP = 128
"""Default number of samples drawn side by side."""


class Profile(Section):
    """The samples that are drawn for every problem."""

    sampling: SamplingConfig
    """How tokens are drawn; `max_new_tokens` is the largest budget."""
    samples: int = Field(default=12, gt=0)
    """Answers for each problem."""
    seed: int = 0
    """Seed from which the seed of every sample is derived."""
    thinking: bool = True
    """Thinking mode, if the chat template has a switch for it."""
    budgets: Annotated[tuple[int, ...], AfterValidator(lambda budgets: tuple(sorted(budgets)))] = ()
    """Lengths at which the same samples are cut and graded; each has its own results. Unset: `max_new_tokens`."""

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
        """The budgets in increasing order, `max_new_tokens` if there are none."""
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

PROFILE_OPTIONS = tuple(
    name
    for name in EvaluateConfig.model_fields
    if name == "profile" or name in Profile.model_fields or name in SamplingConfig.model_fields
)
"""Options of `opasd evaluate` that choose a profile or change it."""


def requested_profile(options: EvaluateConfig, *, lab: bool) -> Profile:
    """Return the profile that the options name, or the default one, with the changes that they ask for.

    `lab`: only the embedded model is evaluated.
    """
    name = options.profile or ("lab" if lab else "paper")
    changes = options.model_dump(exclude={"profile"}, exclude_none=True)
    if options.budgets:
        changes.setdefault("max_new_tokens", max(options.budgets))
    values = PROFILES[name].model_dump()
    values |= {field: value for field, value in changes.items() if field in Profile.model_fields}
    values["sampling"] |= {field: value for field, value in changes.items() if field in SamplingConfig.model_fields}
    return checked(Profile, values, f"profile {name}")
