"""Train on problems of your own: a table whose columns have names of your own.

python examples/own_data.py
"""

import csv
from pathlib import Path

from peft import LoraConfig

from opasd import OPASDArguments, OPASDConfig, OPASDTrainer


def main(output: str = "runs/own_data", steps: int = 5) -> OPASDTrainer:
    """Write a table, train the embedded model on it and validate on its last rows."""
    table = Path(output).with_suffix(".csv")
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["frage", "weg", "wert"])
        writer.writerows((f"What is {a} + {b}?", f"{a} + {b} = {a + b}", a + b) for a in range(8) for b in range(8))
    held_out = [{"frage": f"What is {a} + 8?", "wert": a + 8} for a in range(4)]
    trainer = OPASDTrainer(
        model="lab",
        args=OPASDArguments(output, max_steps=steps, gradient_accumulation_steps=8, learning_rate=1e-3),
        config=OPASDConfig.model_validate(
            {
                "rollout": {"max_new_tokens": 16},
                "validation": {"every": steps, "sampling": {"max_new_tokens": 16}},
            }
        ),
        train_dataset=table,
        eval_dataset=held_out,
        columns={"question": "frage", "solution": "weg", "answer": "wert"},
        peft_config=LoraConfig(r=8, target_modules="all-linear"),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    main()
