"""A whole run from its configuration: load the model and the problems, train, write the result and its card."""

import math
import re
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import FrameType, NoneType
from typing import Any, Literal, get_args

import torch
from transformers import TrainingArguments, set_seed
from transformers.training_args import trainer_log_levels
from transformers.utils.import_utils import is_liger_kernel_available

from opasd.config import DataConfig, RunConfig, TrainConfig
from opasd.data.sets import RunSet, load_set
from opasd.errors import ConfigError, DataError, Stopped
from opasd.files import full_disk_errors
from opasd.model.loading import adapt, load_model, load_tokenizer
from opasd.rollout.engine import Completion
from opasd.run.folder import check_disk
from opasd.together import from_first
from opasd.trainer.described import refuse_only_python
from opasd.trainer.setup import check_arguments, setting_errors
from opasd.trainer.trainer import OPASDTrainer

Ending = Literal["finished", "stopped"]
SAME_SIGNAL_S = 1.0
"""A launcher may send on a SIGTERM that this process has got already; a later one is a second request."""


@contextmanager
def opened(config: RunConfig, folder: Path) -> Iterator[OPASDTrainer]:
    """Load the model and the problems, and give a trainer that ends its step, saves and stops on a signal."""
    refuse_only_python(folder)
    trainer = make_trainer(config, folder)
    if trainer.is_world_process_zero():
        # about a checkpoint: the trained weights, two moments of the optimizer, a teacher's copy
        trained = [p for p in trainer.student.parameters() if p.requires_grad]
        check_disk(folder, sum(p.numel() * (2 * p.element_size() + 8) for p in trained) + 2**24)
    try:
        with full_disk_errors(folder), _stopping_on_signals(trainer):
            yield trainer
    finally:
        trainer.close()


def train(config: RunConfig, folder: Path, *, resume: bool = False) -> Ending:
    """Run `config` in `folder`, from the beginning or from its newest checkpoint; user mistakes are OpasdErrors."""
    with opened(config, folder) as trainer:
        trainer.train((resume and trainer.has_begun()) or None)
    return ending(trainer)


def make_trainer(config: RunConfig, folder: Path) -> OPASDTrainer:
    """Make the trainer of a configuration: its arguments, its model with the weights to train, its problems."""
    arguments = training_arguments(config.train, folder)
    check_arguments(arguments)
    set_seed(config.train.seed)
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model)
    if config.train.gradient_checkpointing and not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"the {model.config.model_type} model cannot recompute activations; set train.gradient_checkpointing to "
            "false"
        )
    if config.model.adaptation == "full" and model.dtype.itemsize == 2:
        warnings.warn(
            f"all weights are trained in {model.dtype}: a change of less than about 1/256 of a weight is lost; "
            "model.dtype: float32 with train.bf16: true keeps it",
            stacklevel=2,
        )
    model = adapt(model, config.model, checkpointing=config.train.gradient_checkpointing)
    train_dataset = from_first(lambda: load_set(config.data, "train"))
    eval_dataset = from_first(
        lambda: {name: _validation_set(name, data) for name, data in config.validation_data.items()}
    )
    names = ", ".join(sorted(config.train.extra))
    with setting_errors(f"train.extra ({names})", "change or leave it out") if names else nullcontext():
        trainer = OPASDTrainer(
            model=model,
            args=arguments,
            config=config.method(),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            on_bad_row=config.data.on_bad_row,
            run_config=config,
        )
        with torch.random.fork_rng(devices=[]):  # the run's own order is drawn later
            next(iter(getattr(trainer.get_train_dataloader(), "batch_sampler", None) or ()), None)
    return trainer


def ending(trainer: OPASDTrainer) -> Ending:
    """Say how a run ended, and end its trackers if it is finished."""
    if trainer.state.global_step < trainer.state.max_steps:
        return "stopped"
    trainer.accelerator.end_training()
    return "finished"


def _validation_set(name: str, config: DataConfig) -> RunSet:
    try:
        return load_set(config, "validation")
    except DataError as error:
        message = re.sub(r"\bdata\.(?=source|on_bad_row|columns|split|subset)", f"validation_data.{name}.", str(error))
        raise DataError(
            f"validation_data.{name}: {message}. To run without this set: --validation-data.{name} null"
        ) from error


def training_arguments(config: TrainConfig, folder: Path) -> TrainingArguments:
    """Return transformers' own arguments for the run."""
    known = {field.name: set(get_args(field.type)) or {field.type} for field in fields(TrainingArguments)}
    if unknown := sorted(set(config.extra) - set(known)):
        raise ConfigError(f"train.extra: {', '.join(unknown)} is no field of TrainingArguments; see its documentation")
    for name, value in config.extra.items():  # TrainingArguments takes anything, and fails in the middle of a step
        wanted = known[name] - {NoneType} | ({int} if float in known[name] else set())
        if wanted <= {bool, int, float} and type(value) not in wanted:
            kinds = " or ".join(sorted(kind.__name__ for kind in wanted))
            raise ConfigError(f"train.extra.{name}: got {value!r}; give {kinds}")
        if name.startswith("log_level") and value not in trainer_log_levels:
            raise ConfigError(f"train.extra.{name}: got {value!r}; use one of {', '.join(trainer_log_levels)}")
    settings: dict[str, Any] = config.model_dump(exclude={"extra"}) | {"report_to": list(config.report_to)}
    settings |= config.extra
    use_liger = settings.pop("use_liger_kernel")
    try:
        arguments = TrainingArguments(output_dir=str(folder), **settings)
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise ConfigError(f"train: {error}") from error
    possible = arguments.device.type == "cuda" and is_liger_kernel_available()
    arguments.use_liger_kernel = possible if use_liger is None else use_liger
    return arguments


@contextmanager
def _stopping_on_signals(trainer: OPASDTrainer) -> Iterator[None]:
    """SIGTERM, SIGHUP and the first Ctrl-C let the step finish and save; rollouts are given up at once.

    A second Ctrl-C, or a second SIGTERM that is not the same one sent on by a launcher, interrupts.
    """
    sampling = _Sampling(trainer)
    first_at = math.inf

    def request(number: int, _frame: FrameType | None) -> None:
        nonlocal first_at
        waited = time.monotonic() - first_at
        if (number == signal.SIGINT and waited >= 0) or (number == signal.SIGTERM and waited > SAME_SIGNAL_S):
            raise KeyboardInterrupt
        first_at = min(first_at, time.monotonic())
        trainer.stop_requested = True
        if sampling.active:
            sampling.active = False
            raise Stopped

    under_nohup = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    wanted = (signal.SIGTERM, signal.SIGINT, *(() if under_nohup else (signal.SIGHUP,)))
    previous = {number: signal.signal(number, request) for number in wanted}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _Sampling:
    """Whether the trainer's engine samples; a request to stop then ends the sampling in all processes together."""

    def __init__(self, trainer: OPASDTrainer) -> None:
        self.active = False
        self._trainer = trainer
        trainer.engine.generate = partial(self._stoppable, trainer.engine.generate)
        trainer.engine.collect = partial(self._stoppable, trainer.engine.collect)

    def _stoppable(self, sample: Callable[..., list[Completion]], *args: Any, **kwargs: Any) -> list[Completion]:
        completions: list[Completion] | None = None
        trainer, alone = self._trainer, self._trainer.engine.stops_alone
        requested = trainer.stop_requested if alone else trainer.total(trainer.stop_requested) > 0
        try:
            self.active = alone and not requested
            completions = None if requested else sample(*args, **kwargs)
        except Stopped:
            pass
        finally:
            self.active = False
        # One process may be done when another is stopped.
        if trainer.total(completions is None) > 0 or completions is None:
            raise Stopped
        return completions
