"""The gradients of both losses, measured every so many steps: the attention loss's share, and λ where it is balanced.

A measured step goes over its micro-batches twice: with the attention loss alone, and then as every step does. With g_a
the attention loss's gradient, g the step's, λ the weight so far, over all trained weights and the whole minibatch:

    g_t    = g − λ g_a                                     the token loss's, with its weight and plugins' terms
    share  = |λ g_a| / (|g_t| + |λ g_a|),                  cosine = ⟨g_t, g_a⟩ / (|g_t| |g_a|)

`attention_weight: balanced` sets λ ← attention_ratio · |g_t| / |g_a| in that step and keeps it until the next
measurement; the step's gradient becomes g_t + λ g_a. Where a norm is 0, λ stays. With a constant λ, measuring changes
nothing: the second pass is the step's own, with the random numbers that it would have had.
"""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from peft import PeftModel
from torch import Tensor

from opasd.config import ObjectiveConfig
from opasd.errors import ConfigError
from opasd.model.sharding import local, shards

if TYPE_CHECKING:
    from opasd.trainer.trainer import OPASDTrainer

START = 0.5
"""λ of a balanced run before its first measurement."""
EVERY = 10
"""Steps between measurements, if the configuration leaves it open."""


class Balance:
    """The weight of the attention loss in one run, and when it is measured."""

    def __init__(self, trainer: "OPASDTrainer") -> None:
        self.trainer = trainer
        self.weight: float | None = None
        """λ of a balanced run since its last measurement."""

    @property
    def objective(self) -> ObjectiveConfig:
        """The objective of the current step, with λ as a number."""
        objective = self.trainer.config.objective
        if objective.attention_weight != "balanced":
            return objective
        return objective.model_copy(update={"attention_weight": START if self.weight is None else self.weight})

    @property
    def attention_alone(self) -> ObjectiveConfig:
        """The attention loss by itself."""
        return self.trainer.config.objective.model_copy(update={"token_weight": 0.0, "attention_weight": 1.0})

    @property
    def due(self) -> bool:
        """Whether the current step is measured."""
        objective = self.trainer.config.objective
        balanced = objective.attention_weight == "balanced"
        if not (objective.attends and objective.token_weight > 0) or self.trainer.is_deepspeed_enabled:
            return False
        every = objective.gradients_every
        if every is None:  # a copy of all weights' gradients is too much to ask for
            every = EVERY if balanced or isinstance(self.trainer.student, PeftModel) else 0
        step = self.trainer.state.global_step
        return (balanced and self.weight is None) or (every > 0 and step % every == 0)

    def check(self) -> None:
        """Refuse a balance that cannot be measured."""
        if self.trainer.config.objective.attention_weight == "balanced" and self.trainer.is_deepspeed_enabled:
            raise ConfigError(
                "objective.attention_weight: balanced measures gradients, which DeepSpeed keeps to itself; give a "
                "number, or use FSDP2"
            )

    def passes(self, loss: Tensor) -> Generator[bool, None, None]:
        """Yield, for each pass over a step's micro-batches, whether it is of the attention loss alone.

        Each pass adds its gradients and leaves its loss in `loss`. After the last one, both are the step's."""
        metrics = self.trainer.step_metrics
        if not self.due:
            yield False
        else:
            with self._apart():
                yield True
                attention_loss, alone = loss.clone(), self._taken()
            used = self.objective.attention_weight
            assert not isinstance(used, str)
            yield False
            found = self._measured(alone, used)
            metrics.passes = 2
            if found is not None:
                metrics.add(found)
            if self.weight is not None and self.weight != used:
                for parameter, gradient in alone.items():
                    if parameter.grad is not None:
                        parameter.grad.add_(gradient, alpha=self.weight - used)
                loss += (self.weight - used) * attention_loss
        if self.weight is not None:
            metrics.add({"objective/attention_weight": self.weight})

    @contextmanager
    def _apart(self) -> Iterator[None]:
        """Within the block, what is computed leaves no metrics and draws no random numbers of the run."""
        metrics = self.trainer.step_metrics
        sums = metrics.sums.copy()
        devices = [torch.cuda.current_device()] if self.trainer.args.device.type == "cuda" else []
        with torch.random.fork_rng(devices):
            yield
        metrics.sums = sums

    def _taken(self) -> dict[torch.nn.Parameter, Tensor]:
        """Return the gradients, and leave none behind."""
        # With several processes they may lie in memory that the next exchange uses again.
        copied = self.trainer.accelerator.num_processes > 1
        taken: dict[torch.nn.Parameter, Tensor] = {}
        for parameter in self.trainer.student.parameters():
            if parameter.grad is not None:
                taken[parameter] = parameter.grad.clone() if copied else parameter.grad
                parameter.grad = None
        return taken

    @torch.no_grad()
    def _measured(self, alone: dict[torch.nn.Parameter, Tensor], used: float) -> dict[str, float] | None:
        """Set λ if it is balanced, and return the metrics; None if a gradient is not finite or 0."""
        rows = []
        for parameter, gradient in alone.items():
            if parameter.grad is not None:
                attention = local(gradient).to(torch.float32)
                token = local(parameter.grad).to(torch.float32) - used * attention
                rows.append(torch.stack([token.square().sum(), attention.square().sum(), (token * attention).sum()]))
        sums = torch.stack(rows).to(torch.float64).sum(0).tolist() if rows else [0.0] * 3
        if shards(self.trainer.student):
            sums = [self.trainer.total(value) for value in sums]
        if self.trainer.total(self.trainer.step_spoiled) or not all(map(math.isfinite, sums)) or min(sums[:2]) <= 0:
            return None
        token, attention = math.sqrt(sums[0]), math.sqrt(sums[1])
        weight = used
        if self.trainer.config.objective.attention_weight == "balanced":
            weight = self.weight = self.trainer.config.objective.attention_ratio * token / attention
        return {
            "attention/gradient_share": weight * attention / (token + weight * attention),
            "attention/gradient_cosine": sums[2] / (token * attention),
        }
