"""A step whose rollouts do not fit into memory: smaller micro-batches, then without the rollout that is too long."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opasd.device import short_of_memory
from opasd.model.scoring import microbatches
from opasd.model.sharding import shards
from opasd.progress import say
from opasd.prompts.rollout import Rollout
from opasd.run.records import Records

if TYPE_CHECKING:
    from opasd.trainer.trainer import OPASDTrainer

SET_ASIDE = "rollout/set_aside"
"""The metric that counts a step's rollouts for which there was no memory."""


class Attempts:
    """A step's micro-batches, until all of them have fitted into memory.

    When the device runs out of memory, the step is done again from its beginning: with micro-batches of half the
    tokens, or without the rollout that does not fit alone. That rollout is kept in set_aside.jsonl and counted; the
    mean is over the others. With several processes the error is raised: the others wait for this one's gradients.
    """

    finished = False

    def __init__(self, trainer: "OPASDTrainer", rollouts: list[Rollout], num_rollouts: float, *, packed: bool) -> None:
        self.trainer = trainer
        self.num_rollouts = num_rollouts
        """What the sum of the rollouts' losses is divided by."""
        self._rollouts, self._packed = rollouts, packed
        self._budget = trainer.config.tokens_per_microbatch
        self._sums = trainer.step_metrics.sums.copy()
        self._set_aside: list[Rollout] = []
        self._group: list[Rollout] = []

    def groups(self) -> Iterator[tuple[list[Rollout], bool]]:
        """Yield the micro-batches, and whether one is the last."""
        groups = microbatches(self._rollouts, self._budget, packed=self._packed)
        if shards(self.trainer.student) or self.trainer.is_deepspeed_enabled:
            # Every forward exchanges weights, or every backward gradients, so all processes need as many.
            empty = [Rollout(self._rollouts[0].pair, (), "none")]
            groups += [empty] * (self.trainer.largest(len(groups)) - len(groups))
        for number, self._group in enumerate(groups, 1):
            yield self._group, number == len(groups)

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Within the block, add all gradients; if there is no memory for them, prepare the next attempt."""
        try:
            yield
        except RuntimeError as error:
            alone = self.trainer.accelerator.num_processes == 1
            if not (alone and short_of_memory(error) and len(self._rollouts) > 1):
                raise
            self._shrink()
        else:
            self.finished = True
            if self._set_aside:
                _keep(self.trainer, self._set_aside)

    def _shrink(self) -> None:
        """Forget what the step has added so far, and ask for less memory."""
        self.trainer.zero_gradients()
        self.trainer.step_metrics.sums = self._sums.copy()
        if len(self._group) > 1:
            self._budget = max(1, sum(rollout.teacher_tokens for rollout in self._group) // 2)
            return
        (too_long,) = self._group
        self._rollouts = [rollout for rollout in self._rollouts if rollout is not too_long]
        self.num_rollouts = max(self.num_rollouts - (too_long.num_tokens > 0), 1e-9)
        self._set_aside.append(too_long)


def _keep(trainer: "OPASDTrainer", rollouts: list[Rollout]) -> None:
    step = trainer.state.global_step + 1
    trainer.step_metrics.add({SET_ASIDE: len(rollouts)})
    file = Records(trainer.folder / "set_aside.jsonl")
    file.append(*({"step": step, "id": r.id, "tokens": r.teacher_tokens, "completion_ids": r.completion_ids}
                  for r in rollouts))  # fmt: skip
    longest = max(rollout.teacher_tokens for rollout in rollouts)
    say(
        f"step {step}: no memory for {len(rollouts)} of its rollouts (up to {longest:,} tokens); they are left out and "
        f"kept in {file.path}. Lower rollout.max_new_tokens"
    )
