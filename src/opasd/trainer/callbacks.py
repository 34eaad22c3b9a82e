"""What happens between the optimizer steps of a run, and the line that shows each step."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opasd.trainer.accounts import keep

if TYPE_CHECKING:
    from opasd.trainer.trainer import OPASDTrainer


class StepCallback(TrainerCallback):
    """Drop spoiled gradients, move the teacher, and stop the run when a process asks for it."""

    def __init__(self, trainer: "OPASDTrainer") -> None:
        self.trainer = trainer
        self._stop_clock: Callable[[], None] = lambda: None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # the intervals of this run, not those of its checkpoint
        self.trainer.check()
        account = self.trainer.folder / "data.json"
        if state.is_world_process_zero and (state.global_step == 0 or not account.exists()):
            keep(self.trainer.data.accounts, account)

    def on_pre_optimizer_step(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.drop_spoiled_gradients()
        self._stop_clock = self.trainer.step_metrics.clock("update")

    def on_optimizer_step(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop_clock()
        self.trainer.lora_layers.weights_changed()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self.trainer.teacher.after_step(state.global_step)
        self._stop_if_requested(control)
        if control.should_training_stop and state.global_step < state.max_steps:
            control.should_evaluate = False  # the sender of the signal may not wait; the resumed run validates
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        return self._stop_if_requested(control)

    def _stop_if_requested(self, control: TrainerControl) -> TrainerControl:
        if self.trainer.total(self.trainer.stop_requested) > 0:
            control.should_save = control.should_training_stop = self.trainer.stopped = True
        return control
