"""How the teacher's target treats its attention on the solution, which the student cannot see.

    project         Ã(i) = A(i) / Σ_{j∈V} A(j): dropped and renormalised; by Theorem 1 the closest distribution on V
    redistribute    the solution's mass ρ goes to the shared prompt positions in proportion to the teacher's attention
    shuffle         the same shares of ρ, to randomly permuted shared prompt positions

Heads are averaged before any of this and rows are renormalised after it, once.

Shapes: T queries, J shared positions.
"""

import torch
from torch import Tensor

from opasd.choices import Handling

LEAST_MASS = 1e-12
"""A row with less head-averaged attention on the support than this says nothing and is left out."""


def normalise(mass_TJ: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows that sum to one, and the mass each had; rows with less than LEAST_MASS become zero, NaN stays."""
    mass_T = mass_TJ.sum(-1)
    usable_T = ~(mass_T < LEAST_MASS)
    rows_TJ = mass_TJ / torch.where(usable_T, mass_T, 1)[:, None]
    return torch.where(usable_T[:, None], rows_TJ, 0), mass_T


def target(
    shared_TJ: Tensor, solution_T: Tensor, in_prompt_J: Tensor, handling: Handling, permutation_J: Tensor | None = None
) -> Tensor:
    """Return the teacher's target on the support, from its attention there (unnormalised) and on the solution.

    The support may be the first J positions of those that `permutation_J` permutes.
    """
    if handling == "project":
        return normalise(shared_TJ)[0]
    shares_TJ, _ = normalise(shared_TJ * in_prompt_J)
    if handling == "shuffle":
        assert permutation_J is not None, "shuffle needs a permutation"
        # A position out of reach of this step (sliding window) can receive nothing.
        shuffled_TJ, mass_T = normalise(shares_TJ[:, permutation_J[: shared_TJ.shape[1]]] * (shared_TJ > 0))
        shares_TJ = torch.where((mass_T >= LEAST_MASS)[:, None], shuffled_TJ, shares_TJ)
    return normalise(shared_TJ + solution_T[:, None] * shares_TJ)[0]


def shuffle_permutation(in_prompt_J: Tensor, seed: int) -> Tensor:
    """Return a seeded permutation of the shared prompt positions that leaves the others where they are."""
    permutation_J = torch.arange(in_prompt_J.numel())
    prompt = in_prompt_J.cpu().nonzero().flatten()
    order = torch.randperm(prompt.numel(), generator=torch.Generator().manual_seed(seed))
    permutation_J[prompt] = prompt[order]
    return permutation_J.to(in_prompt_J.device)
