"""Follow a run with a callback of your own: here, stop when the rollouts have become long.

python examples/own_callback.py
"""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from opasd import OPASDArguments, OPASDConfig, OPASDTrainer
from opasd.config import DataConfig
from opasd.data.sets import load_set


class StopWhenLong(TrainerCallback):
    """Ends the run, and saves its result, once the mean length of a step's rollouts exceeds `tokens`."""

    def __init__(self, tokens: float) -> None:
        self.tokens, self.lengths = tokens, []

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if logs and "rollout/length_mean" in logs:
            self.lengths.append(logs["rollout/length_mean"])
            control.should_training_stop = self.lengths[-1] > self.tokens


def main(output: str = "runs/own_callback", steps: int = 5, tokens: float = 70) -> OPASDTrainer:
    """Train the embedded model until its rollouts are long."""
    trainer = OPASDTrainer(
        model="lab",
        args=OPASDArguments(output, max_steps=steps, gradient_accumulation_steps=8, learning_rate=1e-4),
        config=OPASDConfig.model_validate({"rollout": {"max_new_tokens": 80}}),
        train_dataset=load_set(DataConfig(source="lab", sample=64), "train"),
        callbacks=[StopWhenLong(tokens)],
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
