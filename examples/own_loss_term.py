"""Add a term of your own to the loss: here, keep the student unsure, so that it goes on exploring.

python examples/own_loss_term.py
"""

import torch
from torch import Tensor

from opasd import LossTerm, MicroBatch, OPASDArguments, OPASDConfig, OPASDTrainer
from opasd.config import DataConfig
from opasd.data.sets import load_set


def confidence(batch: MicroBatch) -> tuple[Tensor, dict[str, float]]:
    """Return minus the mean entropy of the student's next-token distributions, for each rollout."""
    entropies = []
    for scores in batch.student:
        log_TV = batch.student.head.logits(scores.hidden_TE).float().log_softmax(-1)
        entropies.append(-(log_TV.exp() * log_TV).sum(-1).mean() if len(log_TV) else log_TV.new_zeros(()))
    entropy_R = torch.stack(entropies)
    return -entropy_R, {"entropy": float(entropy_R.detach().mean())}


def main(output: str = "runs/own_loss_term", steps: int = 5) -> OPASDTrainer:
    """Train the embedded model with it; the metrics have `term/confidence` and `term/confidence/entropy`."""
    trainer = OPASDTrainer(
        model="lab",
        args=OPASDArguments(output, max_steps=steps, gradient_accumulation_steps=8, learning_rate=1e-4),
        config=OPASDConfig.model_validate({"rollout": {"max_new_tokens": 80}}),
        train_dataset=load_set(DataConfig(source="lab", sample=64), "train"),
        loss_terms=[LossTerm("confidence", confidence, weight=0.01)],
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
