"""The plugin of permuted.yaml: the attention loss with the teacher's target where it is, and with it elsewhere.

`look` is the package's attention loss over the captured layers. `look_permuted` gives each position of the prompt the
target's share of another one: the same shares, at random places. Each rollout has a permutation of its own, which its
tokens decide, so no student can learn it. `look_mirrored` turns the prompt round: the first position gets the share of
the last one. This can be learned, and says as little of the problem. (`handling: shuffle` is another thing: it moves
the solution's share alone, 1.6 % with pointers.)
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

import opasd
from opasd.losses.attention import attention_loss
from opasd.prompts.alignment import Alignment
from opasd.prompts.rollout import Rollout


def permuted(alignment: Alignment, rollout: Rollout) -> Alignment:
    """Return the alignment with the teacher's prompt positions in a random order."""
    prompt = alignment.in_prompt.nonzero().flatten()
    generator = torch.Generator().manual_seed(hash(tuple(rollout.completion_ids)) % 2**32)
    return _in_order(alignment, prompt[torch.randperm(len(prompt), generator=generator).to(prompt.device)])


def mirrored(alignment: Alignment, _: Rollout) -> Alignment:
    """Return the alignment with the teacher's prompt positions from the last to the first."""
    return _in_order(alignment, alignment.in_prompt.nonzero().flatten().flip(0))


def _in_order(alignment: Alignment, order: Tensor) -> Alignment:
    shared = alignment.teacher_shared.clone()
    shared[alignment.in_prompt] = alignment.teacher_shared[order]
    return replace(alignment, teacher_shared=shared)


def divergence(place: Callable[[Alignment, Rollout], Alignment]) -> Callable[[opasd.MicroBatch], Tensor]:
    """Return the term that gives each rollout's mean divergence over the captured layers."""

    def term(batch: opasd.MicroBatch) -> Tensor:
        values = []
        for rollout, alignment, own, other in zip(
            batch.rollouts, batch.alignments, batch.student, batch.teacher, strict=True
        ):
            where = place(alignment, rollout)
            pairs = zip(own.layers, other.layers, strict=True)
            losses = [attention_loss(student, teacher, where, impl="reference").loss for student, teacher in pairs]
            values.append(torch.stack(losses).mean())
        return torch.stack(values)

    return term


opasd.register_loss_term("look", divergence(lambda alignment, _: alignment))
opasd.register_loss_term("look_permuted", divergence(permuted))
opasd.register_loss_term("look_mirrored", divergence(mirrored))
