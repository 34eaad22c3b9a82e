"""What differs from transformers' Trainer whatever the method: errors about settings, sums over processes."""

from typing import Any

import torch
from torch import Tensor

from opasd.trainer.hub import HubTrainer
from opasd.trainer.setup import setting_errors


class BaseTrainer(HubTrainer):
    """A Trainer whose errors about its own settings are one message each."""

    def total(self, value: float) -> float:
        """Return the sum of a number over all processes; one process alone does not ask its device."""
        if self.accelerator.num_processes == 1:
            return float(value)
        reduced = self.accelerator.reduce(torch.tensor(float(value), device=self.args.device), "sum")
        assert isinstance(reduced, Tensor)
        return float(reduced)

    def largest(self, value: int) -> int:
        """Return the largest of the processes' numbers."""
        values = self.accelerator.gather(torch.tensor([value], device=self.args.device))
        assert isinstance(values, Tensor)
        return int(values.max())

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        name = getattr(self.args.optim, "value", self.args.optim)
        advice = "change it or, in train.extra, optim_args, adam_beta1, adam_beta2, adam_epsilon"
        with setting_errors(f"train.extra.optim: {name} cannot be made", advice):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        name = getattr(self.args.lr_scheduler_type, "value", self.args.lr_scheduler_type)
        advice = "change it or, in train.extra, lr_scheduler_kwargs"
        with setting_errors(f"train.lr_scheduler_type: {name} cannot be made", advice):
            return super().create_scheduler(*args, **kwargs)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # the metrics estimate them from the rollouts' lengths
