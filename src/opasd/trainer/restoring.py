"""A checkpoint that cannot be continued from ends the run with one message, and before its first step.

A manifest tells damage, but older versions wrote none, and someone else's folder may come with a manifest that fits.
"""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from peft import PeftModel
from torch.optim import Adam, Optimizer
from transformers.utils import SAFE_WEIGHTS_NAME, WEIGHTS_NAME

from opasd.device import short_of_memory
from opasd.errors import ConfigError, OpasdError
from opasd.trainer.sharded import ShardedTrainer

_MOMENTS = ("exp_avg", "exp_avg_sq", "exp_inf", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")
"""What PyTorch's optimizers keep for each number of a weight; their kernels trust its shape."""


class RestoringTrainer(ShardedTrainer):
    """A Trainer that checks the parts of a checkpoint as it takes them."""

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        with _continuing("the trainer_state.json of its checkpoint"):
            return super()._init_training_state(*args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        for name in (SAFE_WEIGHTS_NAME, WEIGHTS_NAME):  # Trainer would take them and leave the adapter
            if isinstance(self.student, PeftModel) and Path(resume_from_checkpoint, name).exists():
                raise ConfigError(f"{resume_from_checkpoint} has {name} beside its adapter; remove it")
        with _continuing(f"the weights of {resume_from_checkpoint}"):
            super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _continuing(f"the optimizer or the schedule of {checkpoint}"):
            super()._load_optimizer_and_scheduler(checkpoint)
            if checkpoint is not None and not self.is_deepspeed_enabled:
                _check_moments(self._plain_optimizer)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _continuing(f"the random state of {checkpoint}"):
            super()._load_rng_state(checkpoint)


@contextmanager
def _continuing(what: str) -> Iterator[None]:
    """Turn what a library says of a file that does not fit into one message."""
    try:
        yield
    except (OpasdError, OSError, MemoryError, ImportError, torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and dist.is_initialized():  # another process may have gone
            raise
        if short_of_memory(error) or "allocate memory" in str(error):  # the checkpoint may be whole
            raise
        if isinstance(error, pickle.UnpicklingError):
            reason = "it holds more than tensors and numbers"
        else:
            reason = (repr(error) or type(error).__name__).splitlines()[0][:150]
        raise ConfigError(
            f"the run cannot be continued from {what} ({reason}); delete the checkpoint, and --resume continues from "
            "the one before, or starts again"
        ) from error


def _check_moments(optimizer: Optimizer) -> None:
    if not type(optimizer).__module__.startswith("torch.optim."):  # others keep moments of other shapes
        return
    needed = ("step", "exp_avg", "exp_avg_sq") if isinstance(optimizer, Adam) else ()
    for parameter, state in optimizer.state.items():
        lacking = state and any(name not in state for name in needed)
        moments = (state[name] for name in _MOMENTS if state.get(name) is not None)
        steps = torch.as_tensor(state.get("step", 0))
        if lacking or steps.numel() != 1 or any(moment.shape != parameter.shape for moment in moments):
            raise ValueError("it is the state of other weights")
