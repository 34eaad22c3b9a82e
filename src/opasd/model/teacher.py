"""The teacher: a context in which the student's model computes with the teacher's weights, without a second model.

    frozen      θ₀: the base with its adapters off if they begin at zero; else a copy of the trained weights
    ema         θ ← decay·θ + (1 − decay)·student after every step
    snapshot    θ ← student every so many steps
    live        the student itself

The teacher keeps copies of trained weights only, and swaps them into the model by reference while it judges. Weights
that train beside adapters, such as biases, are not switched off with them and have copies too.
"""

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn

from opasd.config import TeacherConfig
from opasd.errors import ConfigError
from opasd.model.lora import AdapterSwitch


class Teacher:
    """The teacher's weights of one model under training; `model` is not wrapped for data parallelism."""

    def __init__(self, model: nn.Module, config: TeacherConfig) -> None:
        self.model = model
        self.config = config
        self._modules = list(model.modules())
        self._switch = AdapterSwitch(model)
        self._adapters_off = config.update == "frozen" and isinstance(model, PeftModel) and add_nothing(model)
        """Whether the teacher is the model without its adapters."""
        self._copied: dict[str, nn.Parameter] = {}
        """The student's parameters that the teacher has its own values for."""
        if config.update != "live":
            with self._frozen_adapters():
                self._copied = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._copies = {
            name: parameter.detach().to(dtype=self._dtype(parameter), copy=True)
            for name, parameter in self._copied.items()
        }

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Within the block, the model computes as the teacher: without gradients and without dropout."""
        training = [module.training for module in self._modules]
        student = {name: parameter.data for name, parameter in self._copied.items()}
        adapters = self._switch.off() if self._adapters_off else nullcontext()
        with torch.inference_mode(), adapters:
            try:
                # Past `nn.Module.__setattr__`, which takes longer than everything else here.
                for module in self._modules:
                    module.__dict__["training"] = False
                for name, parameter in self._copied.items():
                    parameter.data = self._copies[name].to(parameter.dtype)
                yield
            finally:
                for name, parameter in self._copied.items():
                    parameter.data = student[name]
                for module, was_training in zip(self._modules, training, strict=True):
                    module.__dict__["training"] = was_training

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Follow the student after optimizer step `step`, if this teacher moves."""
        if self.config.update == "ema":
            for name, parameter in self._copied.items():
                self._copies[name].lerp_(parameter.to(self._copies[name].dtype), 1 - self.config.ema_decay)
        elif self.config.update == "snapshot" and step % self.config.snapshot_every == 0:
            for name, parameter in self._copied.items():
                self._copies[name].copy_(parameter)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copies, which a checkpoint must hold; empty if there are none."""
        return {name: copy.cpu() for name, copy in self._copies.items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with a checkpoint's copies."""
        if different := sorted(state.keys() ^ self._copies.keys()):
            raise ConfigError(
                f"the checkpoint's teacher and this run's train different weights, such as {different[0]}; resume with "
                "the teacher.update and the model.adaptation that the run began with"
            )
        for name, copy in self._copies.items():
            copy.copy_(state[name])

    def _dtype(self, parameter: nn.Parameter) -> torch.dtype:
        # An average in bfloat16 would lose its small changes.
        wide = torch.promote_types(parameter.dtype, torch.float32)
        return wide if self.config.update == "ema" else parameter.dtype

    @contextmanager
    def _frozen_adapters(self) -> Iterator[None]:
        """Within the block, only weights that stay on without the adapters are marked as trained."""
        trained = {name: p.requires_grad for name, p in self.model.named_parameters()}
        with ExitStack() as stack:
            if self._adapters_off:
                assert isinstance(self.model, PeftModel)
                stack.enter_context(warnings.catch_warnings())
                # The copies hold what stays on.
                warnings.filterwarnings("ignore", "Careful, disabling adapter layers with bias")
                stack.enter_context(self.model.disable_adapter())
            yield
        for name, parameter in self.model.named_parameters():  # on leaving, PEFT marks all adapter weights as trained
            parameter.requires_grad_(trained[name])


def add_nothing(model: nn.Module) -> bool:
    """Return whether the model computes the same with its adapters as without them, judged by their kind.

    Adapters that were trained before do not, nor those that begin with a part of the base's weights (PiSSA, OLoRA).
    """
    for module in model.modules():
        if isinstance(module, ModulesToSaveWrapper):
            original = module.original_module.state_dict()
            for name in module.active_adapters:
                copy = module.modules_to_save[name].state_dict() if name in module.modules_to_save else original
                if any(not torch.equal(copy[key], original[key]) for key in original):
                    return False
        elif isinstance(module, LoraLayer):
            ups = [*(up.weight for up in module.lora_B.values()), *module.lora_embedding_B.values()]
            if any(bool(up.any()) for up in ups):
                return False
        elif isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper):
            return False
    return True
