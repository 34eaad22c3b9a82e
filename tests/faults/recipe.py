"""A small model, problems and a recipe, for commands in a folder."""

import json
from pathlib import Path

from tests.training import PROBLEMS, TOKENIZER, make_model


def write_recipe(place: Path) -> None:
    """Write a small model, problems and a recipe of 30 steps, `tiny.yaml`."""
    make_model().save_pretrained(place / "model")
    TOKENIZER.save_pretrained(place / "model")
    problems = [{"problem": p.question, "solution": p.solution, "answer": p.answer} for p in PROBLEMS]
    (place / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in problems))
    recipe = {
        "model": {"name_or_path": "model", "lora_r": 4, "lora_alpha": 8},
        "data": {"source": "sums.jsonl"},
        "rollout": {"max_new_tokens": 5},
        "train": {
            "max_steps": 30, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 0.01,
            "gradient_checkpointing": False, "save_steps": 4, "extra": {"use_cpu": True},
        },
    }  # fmt: skip
    (place / "tiny.yaml").write_text(json.dumps(recipe))
