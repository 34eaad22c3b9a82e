"""A Trainer that writes whole checkpoints, rewinds the records to them, and never overwrites a run."""

import os
import shutil
from pathlib import Path
from typing import Any

from peft import PeftModel
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Trainer
from transformers.trainer import TRAINER_STATE_NAME

from opasd.config import OPASDConfig
from opasd.errors import ConfigError
from opasd.files import full_disk_errors
from opasd.model.teacher import Teacher
from opasd.run.checkpoints import check_checkpoint, checkpoints, set_aside, step_of
from opasd.run.records import Records
from opasd.trainer.accounts import check_same_problems
from opasd.trainer.setup import RunData

_TEACHER = "teacher.safetensors"


class ResumableTrainer(Trainer):
    """Save a checkpoint by one rename, resume from a whole checkpoint, and rewind the records to it."""

    config: OPASDConfig
    data: RunData
    student: nn.Module
    teacher: Teacher
    folder: Path
    metrics_file: Records
    samples_file: Records
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
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(newest[0]) if (newest := checkpoints(self.folder)[-1:]) else None
        step = None
        if resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
            for folder in {self.folder, checkpoint.parent}:  # the checkpoint may belong to another run
                check_same_problems(self.data.accounts, folder / "data.json")
            step = check_checkpoint(checkpoint, self._files_to_resume())
            # A run that starts again also validates again at its start.
            self.args.eval_on_start = self._lacks_validation(step)
        self.accelerator.wait_for_everyone()  # every process has looked at the folder before it changes
        if begun and self.is_world_process_zero():
            self._rewind_records(step)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def has_begun(self) -> bool:
        """Return whether the output folder has a run in it: a step, its samples, or a checkpoint."""
        stepped = any("grad_norm" in row for row in self.metrics_file)
        return stepped or self.samples_file.path.exists() or bool(checkpoints(self.folder))

    def _rewind_records(self, step: int | None) -> None:
        for records in (self.metrics_file, self.samples_file):
            if step is None:
                records.set_aside()
            else:
                records.rewind(step)
        for newer in (path for path in checkpoints(self.folder) if step is not None and step_of(path) > step):
            set_aside(newer)  # its records are gone, so nothing may resume from it

    def _lacks_validation(self, step: int) -> bool:
        """Return whether the run was stopped after this step before it was validated."""
        every = self.config.validation.every
        validated = any(
            row["step"] == step and any(name.startswith("validation/") for name in row) for row in self.metrics_file
        )
        return bool(self.data.validation_sets and every) and step % every == 0 and not validated

    def _files_to_resume(self) -> list[str]:
        """Return patterns of the files a checkpoint must have; sharded weights and optimizers have other names."""
        needed = [_TEACHER] if self.teacher.state_dict() else []
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return needed
        needed.append("adapter_model.safetensors" if isinstance(self.student, PeftModel) else "model.safetensors*")
        return needed + ([] if self.args.save_only_model else ["optimizer.pt", "scheduler.pt", "rng_state*.pth"])

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging or super()._get_output_dir(trial=trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Write the checkpoint into a hidden folder and rename it, so that a visible checkpoint is always whole."""
        final = self.folder / f"checkpoint-{self.state.global_step}"
        self._staging = self.folder / ".checkpoint"
        written = self._staging / final.name
        if self.args.should_save:
            shutil.rmtree(self._staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            with full_disk_errors(final):
                super()._save_checkpoint(model, trial)
                if self.args.should_save and (copies := self.teacher.state_dict()):
                    save_file(copies, written / _TEACHER)
            self.accelerator.wait_for_everyone()
            self._rename_best(written)
            if self.args.should_save:
                shutil.rmtree(final, ignore_errors=True)
                os.replace(written, final)
                for old in checkpoints(self.folder)[: -(self.args.save_total_limit or 10**9)]:
                    shutil.rmtree(old, ignore_errors=True)
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

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        if (copies := Path(resume_from_checkpoint) / _TEACHER).exists():
            self.teacher.load_state_dict(load_file(copies))
