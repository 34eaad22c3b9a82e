"""What happens between the optimizer steps of a run, and the line that shows each step."""

import json
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opasd.progress import StatusLine, clock, output_is_lost
from opasd.run.folder import RunFolder
from opasd.trainer.accounts import write_accounts, write_model
from opasd.trainer.described import ONLY_PYTHON
from opasd.trainer.result import finish

if TYPE_CHECKING:
    from opasd.trainer.trainer import OPASDTrainer


class StepCallback(TrainerCallback):
    """Drop spoiled gradients, move the teacher, and stop the run when a process asks for it."""

    def __init__(self, trainer: "OPASDTrainer") -> None:
        self.trainer = trainer
        self._stop_clock: Callable[[], None] = lambda: None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # the intervals of this run, not those of its checkpoint
        self.trainer.keep_random_state()
        self.trainer.check()
        path = self.trainer.folder / "data.json"
        if state.is_world_process_zero:
            sys.stderr.write(f"{self.trainer.step_size}\n")
            self._write_configuration(state)
        if state.is_world_process_zero and (state.global_step == 0 or not path.exists()):
            write_accounts(self.trainer.data.accounts, path)
            write_model(self.trainer.run_config.model, self.trainer.folder / "model.json")

    def _write_configuration(self, state: TrainerState) -> None:
        """Make the output folder that of a run."""
        trainer = self.trainer
        if trainer.only_python is not None:  # epochs count as the steps that they have
            train = trainer.run_config.train.model_copy(update={"max_steps": state.max_steps})
            trainer.run_config = trainer.run_config.model_copy(update={"train": train})
        RunFolder.adopt(trainer.run_config, trainer.folder, command=sys.argv)
        if trainer.only_python:
            (trainer.folder / ONLY_PYTHON).write_text(json.dumps(trainer.only_python, indent=2) + "\n")

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.drop_spoiled_gradients()
        self._stop_clock = self.trainer.step_metrics.clock("update")

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop_clock()
        for layer in self.trainer.lora_layers:
            layer.forget_rounded()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        self.trainer.teacher.after_step(state.global_step)
        self.trainer.keep_random_state()
        self.on_evaluate(args, state, control)
        if control.should_training_stop and state.global_step < state.max_steps:
            control.should_evaluate = False  # the sender of the signal may not wait; the resumed run validates
        return control

    def on_train_end(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> None:
        finish(self.trainer)

    def on_evaluate(self, args: Any, state: Any, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        """Save and stop if any process was asked to, or if no one reads its output any more."""
        if self.trainer.total(self.trainer.stop_requested or output_is_lost()) > 0:
            control.should_save = control.should_training_stop = self.trainer.stopped = True
        return control


class Progress(TrainerCallback):
    """Show a line for every step, with losses, response length, accuracy and time left.

    The line is redrawn on a terminal; in a log every step has its own.
    """

    def __init__(self) -> None:
        self._began = 0.0
        self._first = 0
        self._line = StatusLine()

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._began, self._first = time.monotonic(), state.global_step

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "grad_norm" in logs:
            self._line.show_parts(self._step_parts(state, logs))
        elif any(name.startswith("validation/") for name in logs):
            values = (f"{name.removeprefix('validation/')} {v:.3g}" for name, v in logs.items() if "/" in name)
            self._line.say(f"validation  {'  '.join(values)}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._line.end()

    def _step_parts(self, state: TrainerState, logs: dict[str, Any]) -> list[tuple[str, int]]:
        """Return the line's parts, and the order in which a narrow terminal leaves them out."""
        parts = [(f"step {state.global_step}/{state.max_steps}", 0), (f"loss {logs['loss']:.4f}", 0)]
        names = (
            ("token", "token/loss", 2),
            ("attention", "attention/divergence", 3),
            ("ρ", "attention/solution_mass", 4),
        )
        parts += [(f"{label} {logs[name]:.4f}", rank) for label, name, rank in names if name in logs]
        parts.append((f"length {logs['rollout/length_mean']:.0f}", 1))
        if "rollout/accuracy" in logs:
            parts.append((f"accuracy {logs['rollout/accuracy']:.2f}", 0))
        done = state.global_step - self._first
        left = (time.monotonic() - self._began) / max(done, 1) * (state.max_steps - state.global_step)
        return [*parts, (f"left {clock(left)}", 0)]
