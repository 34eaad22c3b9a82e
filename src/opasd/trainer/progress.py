"""A line for every step, and one for what takes long before the first: redrawn on a terminal, plain in a log."""

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

_PATIENCE_S = 5.0
"""What takes no longer is not told of."""
_IN_A_LOG_S = 15.0
_ON_A_TERMINAL_S = 0.5

T = TypeVar("T")


def told(what: str, items: Sequence[T]) -> Iterator[T]:
    """The items; once taking them has lasted a while, how many of them have been."""
    terminal = sys.stderr.isatty()
    due = time.monotonic() + _PATIENCE_S
    drawn = False
    for done, item in enumerate(items):
        if time.monotonic() >= due:
            due = time.monotonic() + (_ON_A_TERMINAL_S if terminal else _IN_A_LOG_S)
            drawn = terminal
            line = f"{what}: {done:,} of {len(items):,}"
            sys.stderr.write(f"\r{line}" if terminal else f"{line}\n")
            sys.stderr.flush()
        yield item
    if drawn:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class Progress(TrainerCallback):
    """Step, losses, response length, accuracy and time left."""

    def __init__(self) -> None:
        self._began = 0.0
        self._first = 0

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
            self._show(self._step_line(state, logs))
        elif any(name.startswith("validation/") for name in logs):
            values = (f"{name.removeprefix('validation/')} {v:.3g}" for name, v in logs.items() if "/" in name)
            self._show(f"validation  {'  '.join(values)}", final=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if sys.stderr.isatty() and state.is_world_process_zero:
            sys.stderr.write("\n")

    def _step_line(self, state: TrainerState, logs: dict[str, Any]) -> str:
        parts = [f"step {state.global_step}/{state.max_steps}", f"loss {logs['loss']:.4f}"]
        names = (("token", "token/loss"), ("attention", "attention/divergence"), ("ρ", "attention/solution_mass"))
        parts += [f"{label} {logs[name]:.4f}" for label, name in names if name in logs]
        parts.append(f"length {logs['rollout/length_mean']:.0f}")
        if "rollout/accuracy" in logs:
            parts.append(f"accuracy {logs['rollout/accuracy']:.2f}")
        done = state.global_step - self._first
        left = (time.monotonic() - self._began) / max(done, 1) * (state.max_steps - state.global_step)
        parts.append(f"left {int(left) // 60}:{int(left) % 60:02d}")
        return "  ".join(parts)

    def _show(self, line: str, *, final: bool = False) -> None:
        if not sys.stderr.isatty():
            sys.stderr.write(f"{line}\n")
        else:
            # A line that wrapped could not be redrawn.
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(f"\r\x1b[K{line}\n" if final else f"\r\x1b[K{line[:width]}")
        sys.stderr.flush()
