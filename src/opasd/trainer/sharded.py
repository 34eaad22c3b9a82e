"""Checkpoints of weights that are spread over processes (FSDP2) have the form of those of one process.

    adapter_model.safetensors or model.safetensors*    whole weights
    optimizer.pt                                       the optimizer's state, its weights by number

So a run may be resumed with any number of processes, sharded or not. `fsdp_state_dict_type: SHARDED_STATE_DICT` leaves
the checkpoints to accelerate: every process writes its part, and only sharded processes can resume from them.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import StateDictType
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME

from opasd.trainer.finite import FiniteTrainer
from opasd.trainer.setup import fsdp_plugin


class ShardedTrainer(FiniteTrainer):
    """A Trainer whose checkpoints do not depend on how many processes share the weights."""

    @property
    def _gathers(self) -> bool:
        """Whether the weights are sharded and a checkpoint holds them whole."""
        plugin = fsdp_plugin(self)
        return plugin is not None and plugin.state_dict_type == StateDictType.FULL_STATE_DICT

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        """Save the whole weights, also when checkpoints are saved in parts."""
        plugin = fsdp_plugin(self)
        with ExitStack() as stack:
            if plugin is not None and not self._gathers:
                before = plugin.state_dict_type
                plugin.set_state_dict_type(StateDictType.FULL_STATE_DICT)
                stack.callback(plugin.set_state_dict_type, before)
            super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if not self._gathers:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
        state = get_optimizer_state_dict(self._sharded, self._plain_optimizer, options=whole)
        if self.args.should_save:
            torch.save(by_number(state), Path(output_dir, OPTIMIZER_NAME))
            torch.save(self._schedule.state_dict(), Path(output_dir, SCHEDULER_NAME))

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or not self._gathers or not (file := Path(checkpoint, OPTIMIZER_NAME)).exists():
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        names = {id(parameter): name for name, parameter in self._sharded.named_parameters()}
        order = [names[id(p)] for group in self._plain_optimizer.param_groups for p in group["params"]]
        state = by_name(torch.load(file, map_location="cpu", weights_only=True), order)
        options = StateDictOptions(full_state_dict=bool(state["state"]))  # SGD may have none, and nothing to divide
        set_optimizer_state_dict(self._sharded, self._plain_optimizer, state, options=options)
        self._schedule.load_state_dict(torch.load(Path(checkpoint, SCHEDULER_NAME), weights_only=True))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        if not self._gathers:
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
            return
        model = self._sharded
        state = get_peft_model_state_dict(model) if isinstance(model, PeftModel) else model.state_dict()
        load_shards(state, sorted(Path(resume_from_checkpoint).glob("*model*.safetensors")))

    @property
    def _sharded(self) -> nn.Module:
        assert isinstance(self.model, nn.Module)
        return self.model

    @property
    def _schedule(self) -> Any:
        return self.lr_scheduler

    @property
    def _plain_optimizer(self) -> torch.optim.Optimizer:
        optimizer = self.optimizer
        return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer  # pyright: ignore[reportReturnType]


@torch.no_grad()
def load_shards(state: dict[str, Any], files: Iterable[Path]) -> None:
    """Copy the files' weights into the tensors of `state`, one weight at a time and each process its part."""
    for path in files:
        with safe_open(path, "pt") as file:
            for name in file.keys() & state.keys():
                target, value = state[name], file.get_tensor(name)
                if isinstance(target, DTensor):
                    value = value.to(target.device, target.dtype)
                    part = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
                    target.to_local().copy_(part.to_local())
                else:
                    target.copy_(value)


def by_number(state: dict[str, Any]) -> dict[str, Any]:
    """Return an optimizer's state with its weights counted, as one process saves it, from one with their names."""
    numbers = {name: n for n, name in enumerate(name for group in state["param_groups"] for name in group["params"])}
    return {
        "state": {numbers[name]: _plain(values) for name, values in state["state"].items()},
        "param_groups": [group | {"params": [numbers[name] for name in group["params"]]}
                         for group in state["param_groups"]],
    }  # fmt: skip


def by_name(state: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return an optimizer's state with the names of its weights, in its own order, from one that counts them."""
    return {
        "state": {names[number]: values for number, values in state["state"].items()},
        "param_groups": [group | {"params": [names[number] for number in group["params"]]}
                         for group in state["param_groups"]],
    }  # fmt: skip


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.full_tensor()
        if isinstance(value, DTensor)
        else value.clone()
        if isinstance(value, Tensor)
        else value
        for name, value in values.items()
    }
