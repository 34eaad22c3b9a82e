"""Show a line for every step: redrawn on a terminal, plain in a log."""

import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opasd.progress import StatusLine, clock


class Progress(TrainerCallback):
    """Step, losses, response length, accuracy and time left."""

    def __init__(self) -> None:
        self._began = 0.0
        self._first = 0
        self._line = StatusLine()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._began, self._first = time.monotonic(), state.global_step

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "grad_norm" in logs:
            self._line.show(self._step_line(state, logs))
        elif any(name.startswith("validation/") for name in logs):
            values = (f"{name.removeprefix('validation/')} {v:.3g}" for name, v in logs.items() if "/" in name)
            self._line.say(f"validation  {'  '.join(values)}")

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._line.end()

    def _step_line(self, state: TrainerState, logs: dict[str, Any]) -> str:
        parts = [f"step {state.global_step}/{state.max_steps}", f"loss {logs['loss']:.4f}"]
        names = (("token", "token/loss"), ("attention", "attention/divergence"), ("ρ", "attention/solution_mass"))
        parts += [f"{label} {logs[name]:.4f}" for label, name in names if name in logs]
        parts.append(f"length {logs['rollout/length_mean']:.0f}")
        if "rollout/accuracy" in logs:
            parts.append(f"accuracy {logs['rollout/accuracy']:.2f}")
        done = state.global_step - self._first
        left = (time.monotonic() - self._began) / max(done, 1) * (state.max_steps - state.global_step)
        parts.append(f"left {clock(left)}")
        return "  ".join(parts)
