"""Whose weights judge: a context in which the student's model is the teacher, at the price of no second model.

    frozen      θ₀: with adapters, the base with them off; else a copy of the initial trained weights
    ema         θ ← decay·θ + (1 − decay)·student after every step
    snapshot    θ ← student every so many steps
    live        the student itself

Copies are kept of trained weights only, and are swapped into the model by reference while the teacher judges.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from peft import PeftModel
from torch import Tensor, nn

from opasd.config import TeacherConfig


class Teacher:
    """The teacher's weights of one model under training; `model` is not wrapped for data parallelism."""

    def __init__(self, model: nn.Module, config: TeacherConfig) -> None:
        self.model = model
        self.config = config
        self._switches_adapters = config.update == "frozen" and isinstance(model, PeftModel)
        self._copies: dict[str, Tensor] = {}
        if config.update != "live" and not self._switches_adapters:
            # An average in bfloat16 would lose the small changes it is made of.
            wide = torch.float32 if config.update == "ema" else None
            self._copies = {
                name: parameter.detach().to(dtype=wide or parameter.dtype, copy=True)
                for name, parameter in self._trained()
            }

    @contextmanager
    def judging(self) -> Iterator[None]:
        """While entered, the model computes as the teacher, without gradients."""
        with torch.no_grad():
            if self._switches_adapters:
                assert isinstance(self.model, PeftModel)
                with self.model.disable_adapter():
                    yield
                return
            student = {name: parameter.data for name, parameter in self._trained()} if self._copies else {}
            try:
                for name, parameter in self._trained() if self._copies else ():
                    parameter.data = self._copies[name].to(parameter.dtype)
                yield
            finally:
                for name, parameter in self._trained() if student else ():
                    parameter.data = student[name]

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Take over what the student has become after optimizer step `step`, if the teacher does so."""
        if self.config.update == "ema":
            for name, parameter in self._trained():
                self._copies[name].lerp_(parameter.to(self._copies[name].dtype), 1 - self.config.ema_decay)
        elif self.config.update == "snapshot" and step % self.config.snapshot_every == 0:
            for name, parameter in self._trained():
                self._copies[name].copy_(parameter)

    def state_dict(self) -> dict[str, Tensor]:
        """The copies, which a checkpoint must hold; empty where there are none."""
        return {name: copy.cpu() for name, copy in self._copies.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        for name, copy in self._copies.items():
            copy.copy_(state[name])

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad)
