"""A step whose rollouts do not fit into memory: smaller micro-batches, then without the rollout that is too long."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from opasd.device import short_of_memory
from opasd.model.scoring import microbatches
from opasd.progress import say
from opasd.prompts.rollout import Rollout
from opasd.run.records import Records

if TYPE_CHECKING:
    from opasd.trainer.trainer import OPASDTrainer

SET_ASIDE = "rollout/set_aside"
"""The metric that counts a step's rollouts for which there was no memory."""


def within_memory(
    trainer: "OPASDTrainer", rollouts: list[Rollout], num_rollouts: float, model: nn.Module, *, packed: bool
) -> Tensor:
    """Add the gradients of the step's rollouts, and return their loss.

    When the device runs out of memory, the step is done again from its beginning: with micro-batches of half the
    tokens, or without the rollout that does not fit alone. That rollout is kept in set_aside.jsonl and counted; the
    mean is over the others. With several processes the error is raised: the others wait for this one's gradients.
    """
    budget, sums = trainer.config.tokens_per_microbatch, trainer.step_metrics.sums.copy()
    set_aside: list[Rollout] = []
    while True:
        groups, done = microbatches(rollouts, budget, packed=packed), 0
        loss = torch.zeros((), device=trainer.args.device)
        try:
            for part in trainer.add_gradients(model, groups, num_rollouts):
                loss += part
                done += 1
            break
        except RuntimeError as error:
            if not short_of_memory(error) or trainer.accelerator.num_processes > 1 or len(rollouts) == 1:
                raise
        trainer.zero_gradients()
        trainer.step_metrics.sums = sums.copy()
        if len(groups[done]) > 1:
            budget = max(1, sum(len(rollout.teacher_ids) for rollout in groups[done]) // 2)
            continue
        (too_long,) = groups[done]
        rollouts = [rollout for rollout in rollouts if rollout is not too_long]
        num_rollouts = max(num_rollouts - (too_long.num_tokens > 0), 1e-9)
        set_aside.append(too_long)
    if set_aside:
        _keep(trainer, set_aside)
    return loss


def _keep(trainer: "OPASDTrainer", rollouts: list[Rollout]) -> None:
    step = trainer.state.global_step + 1
    trainer.step_metrics.add({SET_ASIDE: len(rollouts)})
    file = Records(trainer.folder / "set_aside.jsonl")
    file.append(*({"step": step, "id": r.id, "tokens": len(r.teacher_ids), "completion_ids": r.completion_ids}
                  for r in rollouts))  # fmt: skip
    longest = max(len(rollout.teacher_ids) for rollout in rollouts)
    say(
        f"step {step}: no memory for {len(rollouts)} of its rollouts (up to {longest:,} tokens); they are left out and "
        f"kept in {file.path}. Lower rollout.max_new_tokens"
    )
