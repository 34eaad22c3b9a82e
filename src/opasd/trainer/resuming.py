"""A Trainer that writes whole checkpoints, rewinds the records to them, and never overwrites a run."""

import json
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_callback import ExportableState

from opasd.errors import ConfigError, OpasdError, Stopped
from opasd.files import full_disk_errors, read_object, replace_folder, sync
from opasd.model.teacher import Teacher
from opasd.progress import say
from opasd.run.checkpoints import Way, check_adapter, check_checkpoint, check_way, newest_checkpoint, set_aside
from opasd.run.manifest import checkpoints, run_id, step_of, write_manifest
from opasd.run.records import Records
from opasd.trainer.accounts import check_same_problems
from opasd.trainer.restoring import RestoringTrainer
from opasd.trainer.setup import RunData

if TYPE_CHECKING:
    from opasd.trainer.balance import Balance

LEFT_BEHIND = (".checkpoint", ".final")
"""Folders in which a checkpoint and the result are written before they get their names."""
_TEACHER = "teacher.safetensors"
_BALANCE = "balance.json"


class ResumableTrainer(RestoringTrainer):
    """Save a checkpoint by one rename, resume from a whole checkpoint, and rewind the records to it."""

    data: RunData
    teacher: Teacher
    balance: "Balance"
    metrics_file: Records
    samples_file: Records
    stopped: bool
    _random_state: tuple[Any, ...]
    _staging: Path | None = None
    """Where a checkpoint is being written."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` continues from the newest checkpoint of the output folder.

        A run without a checkpoint starts again, and its earlier records are kept under other names. A folder with a run
        in it is never overwritten.
        """
        begun = self.has_begun()
        if begun and not resume_from_checkpoint:
            raise ConfigError(f"{self.folder} already has a run in it; resume it, or choose another output_dir")
        if not begun and resume_from_checkpoint is True:
            raise ConfigError(f"no run in {self.folder} to resume")
        checkpoint, step = None, None
        if resume_from_checkpoint:
            checkpoint, step = self._checked(None if resume_from_checkpoint is True else Path(resume_from_checkpoint))
        if step is not None and checkpoint is not None:
            # A run that starts again also validates again at its start.
            self.args.eval_on_start = self._lacks_validation(step, checkpoint)
        self.accelerator.wait_for_everyone()  # every process has looked at the folder before it changes
        if self.is_world_process_zero():
            for path in (*map(self.folder.joinpath, LEFT_BEHIND), *self.folder.glob(".old-*")):
                shutil.rmtree(path, ignore_errors=True)  # a process that was killed has left them
            if begun:
                self._rewind_records(checkpoint, step)
            elif self.args.eval_on_start:
                self._forget_first_validation()
        if checkpoint is not None:
            self._take_own_parts(checkpoint)
        try:
            return super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)
        except Stopped:
            self._save_as_after_the_last_step()

    def _take_own_parts(self, checkpoint: Path) -> None:
        """Take what Trainer does not know of: rollouts that wait, a teacher's weights, the weight of attention."""
        try:
            self.take_rollouts(checkpoint)
            if (copies := checkpoint / _TEACHER).exists():
                self.teacher.load_state_dict(load_file(copies))
            if (balance := checkpoint / _BALANCE).exists():
                weight = read_object(balance)["attention_weight"]
                self.balance.weight = None if weight is None else float(weight)
        except OpasdError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"{checkpoint} has parts that are not of such a run ({error!r:.100})") from error

    def keep_rollouts(self, folder: Path) -> None:
        """Write what was sampled for the next step into a checkpoint; all processes call this."""

    def take_rollouts(self, folder: Path) -> None:
        """Take what a checkpoint has for the next step."""

    def zero_gradients(self) -> None:
        """Forget what the step has added so far, and the memory that PyTorch only caches."""
        for parameter in self.student.parameters():
            parameter.grad = None
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def keep_random_state(self) -> None:
        """Remember the random numbers' state, for a checkpoint that is saved in the middle of the next step."""
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        numpy_state = np.random.get_state()  # noqa: NPY002 (what a checkpoint holds)
        self._random_state = (random.getstate(), numpy_state, torch.get_rng_state(), devices)

    def _save_as_after_the_last_step(self) -> None:
        """Save a run that was stopped while it sampled: no weight has changed since the end of the last step."""
        python, numpy, cpu, devices = self._random_state
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        self.stopped = self.control.should_training_stop = True
        step = self.state.global_step
        if step and not (self.folder / f"checkpoint-{step}").exists():
            self._save_checkpoint(self.model, None)  # pyright: ignore[reportArgumentType]
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)

    def _checked(self, checkpoint: Path | None) -> tuple[Path | None, int | None]:
        """Return the given checkpoint, or else the newest whole one, and its step.

        The first process reads the files; all of them raise what it found.
        """
        found: list[Any] = [None, None, None]
        if self.is_world_process_zero():
            try:
                folders = {self.folder, checkpoint.parent if checkpoint else self.folder}
                for folder in folders:  # the checkpoint may belong to another run
                    check_same_problems(self.data.accounts, folder / "data.json")
                needed = self._files_to_resume()
                for path in [checkpoint] if checkpoint else checkpoints(self.folder)[-1:]:
                    check_way(path, self._way, self.accelerator.num_processes)
                if checkpoint is not None:
                    found[:2] = checkpoint, check_checkpoint(checkpoint, needed)
                else:
                    found[:2] = newest_checkpoint(self.folder, needed) or (None, None)
                if found[0] is not None and self._way == "whole" and isinstance(self.student, PeftModel):
                    check_adapter(found[0], get_peft_model_state_dict(self.student))
            except OpasdError as error:
                found[2] = error
        path, step, error = broadcast_object_list(found)
        if error is not None:
            raise error
        return path, step

    def has_begun(self) -> bool:
        """Return whether the output folder has a run in it: a step, its samples, or a checkpoint."""
        stepped = any("grad_norm" in row for row in self.metrics_file)
        return stepped or self.samples_file.path.exists() or bool(checkpoints(self.folder))

    def _rewind_records(self, checkpoint: Path | None, step: int | None) -> None:
        for records in (self.metrics_file, self.samples_file):
            if step is None:
                records.set_aside()
            else:
                records.rewind(step)
        if checkpoint is not None and checkpoint.parent == self.folder:
            self._restore_metrics(checkpoint)
        for newer in (path for path in checkpoints(self.folder) if step is not None and step_of(path) > step):
            set_aside(newer)  # its records are gone, so nothing may resume from it

    def _restore_metrics(self, checkpoint: Path) -> None:
        """Take the rows that metrics.jsonl lacks from the checkpoint, which has them too; say what is lost."""
        rows, history = list(self.metrics_file), _history(checkpoint)
        there = {(row["step"], _kind(row)) for row in rows}
        if lacking := [row for row in history if (row["step"], _kind(row)) not in there]:
            rows = sorted([*rows, *lacking], key=lambda row: (row["step"], _kind(row) or ""))
            self.metrics_file.replace(rows)
            say(f"{self.metrics_file.path} lacked {len(lacking)} rows; they were taken from {checkpoint.name}")
        if history and self.config.save_samples_every and not self.samples_file.path.exists():
            say(f"{self.samples_file.path} is missing: the samples of earlier steps are lost")

    def _forget_first_validation(self) -> None:
        """Remove the rows of a validation at the start that is made again: the run was killed before its first step."""
        names = tuple(f"validation/{name}/" for name in self.data.validation_sets)
        rows = list(self.metrics_file)
        kept = [row for row in rows if row["step"] > 0 or not any(name.startswith(names) for name in row)]
        if len(kept) < len(rows):
            self.metrics_file.replace(kept)

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        """Validate; what a stopped run had left out moves the schedule and the best checkpoint too."""
        step = self.state.global_step
        late = skip_scheduler and step > 0
        metrics = super()._evaluate(trial, ignore_keys_for_eval, skip_scheduler=skip_scheduler and not late)
        if late and self._determine_best_metric(metrics, trial):
            self.state.best_model_checkpoint = str(self.folder / f"checkpoint-{step}")
        return metrics

    def _load_callback_state(self) -> None:
        """Give callbacks back what the checkpoint has of them, such as for how long nothing got better."""
        saved: Any = self.state.stateful_callbacks or {}
        numbers: Counter[str] = Counter()
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                kind = type(callback).__name__
                states = saved.get(kind, [])
                states, number = states if isinstance(states, list) else [states], numbers[kind]
                values = states[number]["attributes"] if number < len(states) else {}
                own = callback.state()["attributes"]
                for name in own.keys() & values.keys():
                    if not isinstance(values[name], type(own[name])):
                        raise TypeError(f"{kind}.{name} is {values[name]!r:.50}")
                    setattr(callback, name, values[name])
                numbers[kind] += 1

    def _lacks_validation(self, step: int, checkpoint: Path) -> bool:
        """Return whether the run was stopped after this step before it was validated."""
        every = self.config.validation.every
        rows = [*self.metrics_file, *(_history(checkpoint) if checkpoint.parent == self.folder else ())]
        validated = any(row["step"] == step and _kind(row) == "validation" for row in rows)
        return bool(self.data.validation_sets and every) and step % every == 0 and not validated

    @property
    def _way(self) -> Way:
        """How checkpoints hold the weights and the optimizer."""
        if self.is_deepspeed_enabled:
            return "deepspeed"
        return "parts" if self.is_fsdp_enabled and not self._gathers else "whole"

    def _files_to_resume(self) -> list[str]:
        """Return patterns of the files a checkpoint must have; sharded weights and optimizers have other names."""
        needed = [_TEACHER] if self.teacher.has_copies else []
        needed += [_BALANCE] if self.config.objective.attention_weight == "balanced" else []
        if self._way != "whole":
            return needed
        needed.append("adapter_model.safetensors" if isinstance(self.student, PeftModel) else "model.safetensors*")
        return needed + ([] if self.args.save_only_model else ["optimizer.pt", "scheduler.pt", "rng_state*.pth"])

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging or super()._get_output_dir(trial=trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint into a hidden folder and rename it, so that a visible checkpoint is always whole."""
        final = self.folder / f"checkpoint-{self.state.global_step}"
        self._staging = self.folder / LEFT_BEHIND[0]
        written = self._staging / final.name
        if self.args.should_save:
            shutil.rmtree(self._staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            with full_disk_errors(final):
                super()._save_checkpoint(model, trial)
                copies = self.teacher.state_dict()
                self.keep_rollouts(written)
                if self.args.should_save:
                    (written / "README.md").unlink(missing_ok=True)  # PEFT's card, with the base's path and no facts
                if self.args.should_save and copies:
                    save_file(copies, written / _TEACHER)
                if self.args.should_save and self.config.objective.attention_weight == "balanced":
                    (written / _BALANCE).write_text(json.dumps({"attention_weight": self.balance.weight}))
            self.accelerator.wait_for_everyone()
            self._rename_best(written)
            if self.args.should_save:
                with full_disk_errors(final):
                    for records in (self.metrics_file, self.samples_file):
                        if records.path.exists():
                            sync(records.path)
                    write_manifest(written, run_id(self.folder))
                    replace_folder(written, final)
                for old in checkpoints(self.folder)[: -(self.args.save_total_limit or 10**9)]:
                    old.rename(self._staging / old.name)  # a kill leaves no half of it under its name
                    shutil.rmtree(self._staging / old.name, ignore_errors=True)
            self.accelerator.wait_for_everyone()
        finally:
            if self.args.should_save:
                shutil.rmtree(self._staging, ignore_errors=True)
            self._staging = None

    def _rename_best(self, written: Path) -> None:
        """Name the best checkpoint by its final path, also in the state that was written."""
        if Path(self.state.best_model_checkpoint or "").parent == self._staging:
            self.state.best_model_checkpoint = str(self.folder / written.name)
            if self.args.should_save:
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))


def _kind(row: dict[str, Any]) -> str | None:
    """Return what a row of metrics.jsonl is about; of one step, the training comes before the validation."""
    if "grad_norm" in row:
        return "training"
    return "validation" if any(name.startswith("validation/") for name in row) else None


def _history(checkpoint: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl that a checkpoint has too."""
    logged = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME)).log_history
    rows = [{"step": row["step"]} | row for row in logged if _kind(row)]
    for row in rows:
        if _kind(row) == "validation":
            row.pop("epoch", None)  # Trainer's own
    return rows
