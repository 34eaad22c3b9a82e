"""Compare teacher and student with a divergence of your own.

python examples/own_divergence.py
"""

from torch import Tensor

from opasd import OPASDArguments, OPASDConfig, OPASDTrainer, register_divergence
from opasd.config import DataConfig
from opasd.data.sets import load_set


def pearson(teacher_V: Tensor, student_V: Tensor, beta: float) -> Tensor:
    """What each entry contributes to Σ (t − s)² / (t + s): bounded by 2, finite where both are 0."""
    return (teacher_V - student_V).square() / (teacher_V + student_V).clamp_min(1e-30)


def main(output: str = "runs/own_divergence", steps: int = 5) -> OPASDTrainer:
    """Train the embedded model with it, on tokens and on attention."""
    register_divergence("pearson", pearson)
    trainer = OPASDTrainer(
        model="lab",
        args=OPASDArguments(output, max_steps=steps, gradient_accumulation_steps=8, learning_rate=1e-4),
        config=OPASDConfig.model_validate(
            {
                "rollout": {"max_new_tokens": 80},
                "objective": {"token": {"divergence": "pearson"}, "attention": {"divergence": "pearson"}},
            }
        ),
        train_dataset=load_set(DataConfig(source="lab", sample=64), "train"),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
