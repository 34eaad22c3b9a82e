"""transformers' TrainingArguments with the paper's values in place of transformers' defaults."""

from dataclasses import dataclass

from transformers import TrainingArguments

from opasd.config import TrainConfig

_PAPER = TrainConfig()


@dataclass
class OPASDArguments(TrainingArguments):
    """TrainingArguments whose defaults are the paper's: 200 steps of 64 problems at a constant rate of 5e-6.

    Every other field is that of transformers' TrainingArguments. `opasd.config.TrainConfig` documents these.
    """

    output_dir: str | None = "runs/opasd"
    max_steps: int = _PAPER.max_steps
    learning_rate: float = _PAPER.learning_rate
    per_device_train_batch_size: int = _PAPER.per_device_train_batch_size
    gradient_accumulation_steps: int = _PAPER.gradient_accumulation_steps
    lr_scheduler_type: str = _PAPER.lr_scheduler_type  # pyright: ignore[reportIncompatibleVariableOverride]
    weight_decay: float = _PAPER.weight_decay
    max_grad_norm: float = _PAPER.max_grad_norm
    gradient_checkpointing: bool = _PAPER.gradient_checkpointing
    save_steps: float = _PAPER.save_steps
    save_total_limit: int | None = _PAPER.save_total_limit
