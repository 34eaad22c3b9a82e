"""A step that meets NaN or infinity: its rollouts are kept, and the run stops or leaves the step out."""

import math
from pathlib import Path

import torch
from torch import Tensor, nn

from opasd.config import OPASDConfig
from opasd.errors import NonFiniteError
from opasd.losses.inputs import ScoreBatch
from opasd.model.sharding import local, shards
from opasd.prompts.rollout import Rollout
from opasd.run.records import Records
from opasd.trainer.base import BaseTrainer


class FiniteTrainer(BaseTrainer):
    """A Trainer in which no weight becomes NaN; `on_non_finite` says whether such a step ends the run."""

    config: OPASDConfig
    student: nn.Module
    folder: Path
    step_spoiled = False
    """Whether NaN appeared in the current step, so that its update is dropped."""

    def _non_finite(self, rollouts: list[Rollout], message: str, student: ScoreBatch) -> Tensor:
        """Keep the offending rollouts; then stop, or drop the step: a loss of 0 that reaches every trained weight."""
        rows = [
            {
                "step": self.state.global_step + 1,
                "id": rollout.id,
                "problem": rollout.pair.problem.question,
                "completion_ids": rollout.completion_ids,
            }
            for rollout in rollouts
        ]
        Records(self.folder / "non_finite.jsonl").append(*rows)
        if self.config.on_non_finite == "stop":
            raise NonFiniteError(f"{message}; its rollouts are in {self.folder}/non_finite.jsonl")
        self.step_spoiled = True
        if shards(self.student):  # backward, all processes gather the weights, where the forward's results ask for it
            return ((student.hidden_BNE[:, :1].sum(dtype=torch.float32) + student.head.zero()) * 0).nan_to_num(0)
        return torch.stack([p.sum() * 0 for p in self.student.parameters() if p.requires_grad]).sum().nan_to_num(0)

    def drop_spoiled_gradients(self) -> None:
        """Before the optimizer: a step with NaN in it changes no weight and is only counted."""
        finite = True  # float16's loss scaler looks for overflow itself, and skips such a step
        if self.is_deepspeed_enabled:  # its engine has made the step and dropped the gradients
            finite = math.isfinite(self.model_wrapped.get_global_grad_norm() or 0.0)  # pyright: ignore
        elif self.accelerator.scaler is None:
            gradients = [p.grad for p in self.student.parameters() if p.grad is not None]
            finite = all(torch.stack([local(gradient).isfinite().all() for gradient in gradients]).tolist())
        if self.total(self.step_spoiled or not finite) == 0:
            return
        if self.config.on_non_finite == "stop":
            raise NonFiniteError(
                f"NaN or infinity in the gradient of step {self.state.global_step + 1}; lower the learning rate, or "
                "set on_non_finite: skip to leave such steps out"
            )
        self.step_spoiled = True
        for parameter in self.student.parameters():
            parameter.grad = None
