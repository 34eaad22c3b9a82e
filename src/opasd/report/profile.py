"""How the models were asked and trained: the tables of an evaluation's profile and of the training settings."""

from collections.abc import Sequence
from typing import Any

from opasd.report.methods import Method
from opasd.report.run import Run
from opasd.report.summary import shown
from opasd.report.tables import Cell, Table

_TRAINING: dict[str, tuple[str, ...]] = {
    "model": ("model", "name_or_path"),
    "adaptation": ("model", "adaptation"),
    "LoRA rank": ("model", "lora_r"),
    "LoRA α": ("model", "lora_alpha"),
    "data": ("data", "source"),
    "optimizer steps": ("train", "max_steps"),
    "problems a device and step": ("train", "per_device_train_batch_size"),
    "gradient accumulation": ("train", "gradient_accumulation_steps"),
    "rollouts a problem": ("rollout", "rollouts_per_problem"),
    "learning rate": ("train", "learning_rate"),
    "schedule": ("train", "lr_scheduler_type"),
    "warm-up steps": ("train", "warmup_steps"),
    "gradient clipping": ("train", "max_grad_norm"),
    "rollout temperature": ("rollout", "temperature"),
    "rollout top-p": ("rollout", "top_p"),
    "rollout top-k": ("rollout", "top_k"),
    "rollout tokens at most": ("rollout", "max_new_tokens"),
    "student thinks": ("prompts", "student_thinking"),
    "teacher thinks": ("prompts", "teacher_thinking"),
    "teacher's update": ("teacher", "update"),
    "λ_token": ("objective", "token_weight"),
    "token divergence": ("objective", "token", "divergence"),
    "token clipping": ("objective", "token", "clip"),
    "clipping threshold": ("objective", "token", "clip_threshold"),
    "λ_attn": ("objective", "attention_weight"),
    "attention divergence": ("objective", "attention", "divergence"),
    "attention layers": ("objective", "attention", "layers"),
    "attention on the solution": ("objective", "attention", "handling"),
}
"""What a paper's table of training settings has, and where it is in a configuration."""


def training_settings(methods: Sequence[Method]) -> Table | None:
    """Return the settings that a paper lists; where methods differ, each value with those that have it."""
    trained = [method for method in methods if method.config]
    rows = []
    for name, path in _TRAINING.items():
        values = {method.name: method.runs[0].setting(*path) for method in trained}
        values = {method: value for method, value in values.items() if value is not None}
        if values:
            rows.append([Cell(name), Cell(_values(values, len(trained)), wraps=True)])
    return Table("training", "Training settings", ["setting", "value"], rows) if rows else None


def evaluation_profile(runs: Sequence[Run]) -> Table | None:
    """Return how benchmarks were asked, as far as it is on record."""
    asked = [run for run in runs if run.conditions.shared or run.conditions.benchmarks]
    if not asked:
        return None
    columns: dict[str, dict[str, Any]] = {}
    for run in asked:
        shared = run.conditions.shared
        sampling = shared.get("sampling")
        facts = (
            {name.replace("_", "-"): value for name, value in sampling.items()} if isinstance(sampling, dict) else {}
        )
        facts |= {name: shared[name] for name in ("thinking", "engine", "dtype") if name in shared}
        for benchmark, about in run.conditions.benchmarks.items():
            facts[f"{benchmark}: samples a problem"] = about.get("samples")
            facts[f"{benchmark}: tokens at most"] = run.conditions.budgets.get(benchmark)
            facts[f"{benchmark}: problems"] = len(run.shares(benchmark)) or None
            facts[f"{benchmark}: prompt"] = about.get("prompt")
            facts[f"{benchmark}: instruction"] = about.get("instruction")
        facts["seed of sampling"] = shared.get("seed")
        for name, value in facts.items():
            if value is not None:
                columns.setdefault(name, {})[run.name] = value
    rows = [[Cell(name), Cell(_values(own, len(asked)), wraps=True)] for name, own in columns.items()]
    note = "As the evaluations recorded it."
    return Table("profile", "Evaluation profile", ["evaluation", "value"], rows, note) if rows else None


def _values(values: dict[str, Any], count: int) -> str:
    """Return the value, or each value with the names that have it."""
    owners: dict[str, list[str]] = {}
    for name, value in values.items():
        owners.setdefault(shown(value), []).append(name)
    if len(owners) == 1 and len(values) == count:
        return next(iter(owners))
    listed = []
    for value, names in owners.items():
        some = ", ".join(names) if len(names) < 4 else f"{', '.join(names[:2])} and {len(names) - 2} more"
        listed.append(f"{value} ({some})")
    return "; ".join(listed)
