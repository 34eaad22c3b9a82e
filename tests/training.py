"""A tiny training set-up: a random Qwen3 with a small tokenizer, and arithmetic problems."""

import json
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM, TrainingArguments

from opasd.config import OPASDConfig
from opasd.data.problems import Problem
from opasd.run.records import Records
from opasd.trainer.trainer import OPASDTrainer
from tests.tokenizers import small

TOKENIZER = small("qwen3")
PROBLEMS = [
    Problem(f"What is {a} + {b}?", f"{a} + {b} = {a + b}", str(a + b), f"p{a}{b}") for a in range(4) for b in range(4)
]
METHOD: dict[str, Any] = {
    "rollout": {"max_new_tokens": 6, "temperature": 1.0, "top_k": 0, "top_p": 1.0},
    "objective": {"token": {"clip": "none"}, "gradients_every": 0},
    "validation": {"every": 0},
}


CLOCKS = ("seconds/", "ms_per_processed_token", "memory/")


def make_model(dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(TOKENIZER),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=4096,
        eos_token_id=TOKENIZER.eos_token_id,
        pad_token_id=0,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).to(dtype)


def make_trainer(
    folder: Path, *, lora: bool = True, method: dict[str, Any] | None = None, model: PreTrainedModel | None = None,
    train_dataset: Any = PROBLEMS, eval_dataset: Any = None, loss_terms: Any = (), **arguments: Any,
) -> OPASDTrainer:  # fmt: skip
    """A trainer with 8 problems a step unless told otherwise."""
    torch.manual_seed(1)
    settings: dict[str, Any] = {
        "max_steps": 3,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "lr_scheduler_type": "constant",
        "save_steps": 100,
        "use_cpu": True,
        "report_to": [],
        "seed": 7,
    }
    return OPASDTrainer(
        model=model or make_model(),
        args=TrainingArguments(output_dir=str(folder), **(settings | arguments)),
        config=OPASDConfig.model_validate({**METHOD, **(method or {})}),
        train_dataset=train_dataset,
        eval_dataset=eval_dataset,
        processing_class=TOKENIZER,
        loss_terms=loss_terms,
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear") if lora else None,
    )


def write_inputs(place: Path) -> None:
    """Write the model with its tokenizer and the problems: `model` and `sums.jsonl`."""
    make_model().save_pretrained(place / "model")
    TOKENIZER.save_pretrained(place / "model")
    write_problems(place)


def write_problems(place: Path) -> None:
    problems = [{"problem": p.question, "solution": p.solution, "answer": p.answer} for p in PROBLEMS]
    (place / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in problems))


def write_recipe(place: Path, model: str = "model", **train: Any) -> None:
    """Write a recipe of small steps on those problems, `tiny.yaml`."""
    recipe = {
        "model": {"name_or_path": model, "lora_r": 4, "lora_alpha": 8},
        "data": {"source": "sums.jsonl"},
        "rollout": {"max_new_tokens": 5},
        "train": {
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "learning_rate": 0.01,
            "gradient_checkpointing": False,
            "extra": {"use_cpu": True},
            **train,
        },
    }
    (place / "tiny.yaml").write_text(json.dumps(recipe))


def rows(folder, name="metrics.jsonl"):
    """A run's rows without the clocks."""
    return [
        {key: value for key, value in row.items() if not key.startswith(CLOCKS)} for row in Records(Path(folder) / name)
    ]
