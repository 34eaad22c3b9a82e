"""The teacher: a context in which the student's model computes with the teacher's weights, without a second model.

    frozen      θ₀: the base with its adapters off if they begin at zero; else a copy of the trained weights
    ema         θ ← decay·θ + (1 − decay)·student after every step
    snapshot    θ ← student every so many steps
    live        the student itself

The teacher keeps copies of trained weights only, and swaps them into the model by reference while it judges. Weights
that train beside adapters, such as biases, are not switched off with them and have copies too.
"""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper, ModulesToSaveWrapper
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor

from opasd.config import TeacherConfig
from opasd.errors import ConfigError
from opasd.model.rules import RULES
from opasd.model.sharding import divided, in_zero3, joined, local, part, shards, whole

_log = logging.getLogger(__name__)


class Teacher:
    """The teacher's weights of one model under training; `model` is not wrapped for data parallelism."""

    def __init__(self, model: nn.Module, config: TeacherConfig) -> None:
        self.model = model
        self.config = config
        self._modules = list(model.modules())
        without_adapters = config.update == "frozen" and isinstance(model, PeftModel) and add_nothing(model)
        self._adapters = [
            module
            for module in self._modules
            if without_adapters and isinstance(module, BaseTunerLayer | AuxiliaryTrainingWrapper)
        ]
        """The adapters that the teacher computes without."""
        copied = {} if config.update == "live" else _trained(model, without_adapters=without_adapters)
        kept = _on_host if config.offload else torch.clone
        self._copies: dict[str, Tensor] = {name: kept(parameter.detach()) for name, parameter in copied.items()}
        """The teacher's own values, by the names of the student's parameters; sharded as these are, or on the host."""
        self._parts: set[str] = set()
        """The copies that are this process's part of a weight, as ZeRO-3 has divided it."""
        if config.offload and not copied:
            _log.warning("teacher.offload: this teacher has no weights of its own, so nothing is offloaded")
        if config.update == "ema" or config.update in RULES:  # an average in bfloat16 would lose its small changes
            self._copies = {name: c.to(torch.promote_types(c.dtype, torch.float32)) for name, c in self._copies.items()}

    @property
    def has_copies(self) -> bool:
        """Whether the teacher keeps weights of its own, which a checkpoint must hold."""
        return bool(self._copies)

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Within the block, the model computes as the teacher: without gradients and without dropout."""
        switched_off = _attribute(self._adapters, "_disable_adapters", True)
        # Under inference mode FSDP and ZeRO-3 would make weights that cannot be trained afterwards.
        without_gradients = torch.no_grad() if divided(self.model) else torch.inference_mode()
        with without_gradients, switched_off, _attribute(self._modules, "training", False):
            student = self._exchange(self._copies)
            try:
                yield
            finally:
                self._exchange(student)

    def _exchange(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Give the parameters these values, and return those that they had."""
        before: dict[str, Tensor] = {}
        for name, parameter in self._parameters().items():
            if isinstance(parameter, DTensor) or in_zero3(parameter):  # the weights are gathered from this memory
                before[name] = local(parameter).clone()
                local(parameter).copy_(local(values[name]))
            elif self.config.offload:  # in the same memory: the other role's values wait on the host
                before[name] = _on_host(parameter.data)
                parameter.data.copy_(values[name])
            else:
                before[name], parameter.data = parameter.data, values[name].to(parameter.dtype)
        return before

    def _parameters(self) -> dict[str, nn.Parameter]:
        """Return the student's parameters that the teacher has copies of; shard the copies once the parameters are."""
        if not self._copies:
            return {}
        for module in shards(self.model):
            module.reshard()  # what a forward has gathered holds the other role's values
        parameters = {name: p for name, p in self.model.named_parameters() if name in self._copies}
        for name, parameter in parameters.items():
            copy = self._copies[name]
            if isinstance(parameter, DTensor) and not isinstance(copy, DTensor):
                self._copies[name] = distribute_tensor(copy.to(parameter.device), *_placement(parameter))
            elif in_zero3(parameter):
                if name not in self._parts:
                    self._copies[name] = part(copy, parameter)
                    self._parts.add(name)
                if parameter.numel():
                    parameter.partition()  # pyright: ignore (small weights stay whole after a forward)
        return parameters

    def _own(self) -> dict[str, Tensor]:
        """Return the student's values in the form of the copies."""
        return {name: local(p) if name in self._parts else p for name, p in self._parameters().items()}

    @torch.no_grad()
    def after_step(self, step: int) -> None:
        """Follow the student after optimizer step `step`, if this teacher moves."""
        if self.config.update == "ema":
            for name, parameter in self._own().items():
                copy = self._copies[name]
                moved = copy.to(parameter.device)  # the copy itself, unless that is on the host
                copy.copy_(moved.lerp_(parameter.to(copy.dtype), 1 - self.config.ema_decay))
        elif self.config.update == "snapshot" and step % self.config.snapshot_every == 0:
            for name, parameter in self._own().items():
                self._copies[name].copy_(parameter)
        elif rule := RULES.get(self.config.update):
            parameters = {name: parameter.detach() for name, parameter in self._own().items()}
            moved = {name: copy.to(parameters[name].device) for name, copy in self._copies.items()}
            rule(moved, parameters, step)
            for name, copy in self._copies.items():
                copy.copy_(moved[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the copies, which a checkpoint must hold, whole; all processes must call this."""
        weights = self._parameters()
        return {
            name: (joined(copy, weights[name]) if name in self._parts else whole(copy)).cpu()
            for name, copy in self._copies.items()
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with a checkpoint's copies."""
        shapes, own = ({name: value.shape for name, value in copies.items()} for copies in (state, self._copies))
        if different := sorted(name for name in shapes.keys() | own.keys() if shapes.get(name) != own.get(name)):
            raise ConfigError(
                f"the checkpoint's teacher and this run's train different weights, such as {different[0]}; resume with "
                "the teacher.update and the model.adaptation that the run began with"
            )
        for name, copy in self._copies.items():
            value = state[name].to(copy.device, copy.dtype)
            copy.copy_(distribute_tensor(value, *_placement(copy)) if isinstance(copy, DTensor) else value)


def _on_host(tensor: Tensor) -> Tensor:
    """Return a copy in the host's memory, from where a GPU reads fast."""
    return torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda).copy_(tensor)


def _placement(tensor: DTensor) -> tuple[DeviceMesh, Sequence[Placement]]:
    return tensor.device_mesh, tensor.placements


def _trained(model: nn.Module, *, without_adapters: bool) -> dict[str, nn.Parameter]:
    """Return the trained parameters, or only those that stay on without the adapters."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not (without_adapters and isinstance(model, PeftModel)):
        return trained
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Careful, disabling adapter layers with bias")  # the copies hold the biases
        with model.disable_adapter():
            staying = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in model.named_parameters():  # PEFT has marked all adapter weights as trained
        p.requires_grad_(name in trained)
    return staying


@contextmanager
def _attribute(modules: Sequence[nn.Module], name: str, value: bool) -> Iterator[None]:
    """Within the block, an attribute of all modules has this value."""
    before = [getattr(module, name) for module in modules]
    # Past `nn.Module.__setattr__`, which takes longer than the rest of a switch of roles.
    for module in modules:
        module.__dict__[name] = value
    try:
        yield
    finally:
        for module, earlier in zip(modules, before, strict=True):
            module.__dict__[name] = earlier


def add_nothing(model: nn.Module) -> bool:
    """Return whether the model computes the same with its adapters as without them, judged by their kind.

    Adapters that were trained before add something, and so do those that begin with a part of the base's weights
    (PiSSA, OLoRA).
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
