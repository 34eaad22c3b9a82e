"""The configuration of a run that was made in Python, so that its folder is one that every command reads."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel
from torch import nn
from transformers import TrainingArguments

from opasd.config import DataConfig, ModelConfig, OPASDConfig, RunConfig, TrainConfig
from opasd.data.made import TASKS
from opasd.data.sources import MEMORY
from opasd.errors import ConfigError
from opasd.lab import LAB, model_path
from opasd.losses.terms import LossTerm
from opasd.model.unwrap import unwrap
from opasd.trainer.setup import RunData

ONLY_PYTHON = "python.json"
"""The file of a run's folder with what its configuration cannot say."""
_PLAIN_LORA = {
    name: getattr(LoraConfig(), name)
    for name in ("bias", "modules_to_save", "use_dora", "use_rslora", "init_lora_weights", "layers_to_transform",
                 "rank_pattern", "alpha_pattern", "exclude_modules", "trainable_token_indices", "target_parameters")
    if hasattr(LoraConfig(), name)
}  # fmt: skip
"""The settings of LoRA that a configuration does not have, and their defaults."""
_SETTLED = {
    "output_dir", "eval_strategy", "eval_steps", "logging_strategy", "logging_steps", "logging_first_step",
    "disable_tqdm", "remove_unused_columns", "run_name", "logging_dir", "num_train_epochs", "do_train", "do_eval",
    "save_strategy", "push_to_hub", "hub_token", "local_rank",
}  # fmt: skip
"""Arguments that the trainer decides itself, or that max_steps replaces."""


def described_run(
    student: nn.Module, arguments: TrainingArguments, config: OPASDConfig, data: RunData, folder: Path
) -> RunConfig:
    """Return the configuration that says the same as these objects; `only_python` names what it cannot say."""
    return RunConfig(
        **{name: getattr(config, name) for name in OPASDConfig.model_fields},
        model=_model(student),
        data=_located(data.config),
        validation_data={name: _located(problems.config) for name, problems in data.validation_sets.items()},
        train=_train(arguments),
        output_dir=str(folder.parent),
        name=folder.name,
    )


def only_python(
    student: nn.Module, data: RunData, *, loss_terms: Sequence[LossTerm], engine: object, callbacks: Sequence[object],
    arguments: Iterable[str],
) -> list[str]:  # fmt: skip
    """Return what a run has that no configuration can say; a command cannot continue such a run."""
    sets = {"train_dataset": data.config} | {name: problems.config for name, problems in data.validation_sets.items()}
    needed = [f"the problems of {name}" for name, config in sets.items() if config.source == MEMORY]
    needed += [f"the loss term {term.name}" for term in loss_terms]
    needed += [] if engine is None else [f"the engine {type(engine).__name__}"]
    needed += [f"the callback {type(callback).__name__}" for callback in callbacks]
    needed += [f"the argument {name}" for name in arguments]
    if not unwrap(student).config._name_or_path:
        needed.append("the model")
    if isinstance(student, PeftModel):
        adapter = student.active_peft_config
        kind = type(adapter).__name__
        if not isinstance(adapter, LoraConfig):
            needed.append(f"the adapter ({kind})")
        elif other := sorted(name for name, value in _PLAIN_LORA.items() if getattr(adapter, name) != value):
            needed.append(f"the adapter's {', '.join(other)}")
    return needed


def refuse_only_python(folder: Path) -> None:
    """Refuse to continue a run by a command if it was made in Python with what no configuration says."""
    try:
        needed = json.loads((folder / ONLY_PYTHON).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return
    if isinstance(needed, list) and needed:
        raise ConfigError(
            f"the run in {folder} was made in Python with {', '.join(map(str, needed))}, which a command cannot make; "
            "continue it there: trainer.train(resume_from_checkpoint=True)"
        )


def _located(config: DataConfig) -> DataConfig:
    """Return how problems are loaded; a path is absolute, so that a run can be resumed from another folder."""
    path = Path(config.source).expanduser()
    here = config.source not in (MEMORY, *TASKS) and path.exists()
    return config.model_copy(update={"source": str(path.absolute())}) if here else config


def _model(student: nn.Module) -> ModelConfig:
    base = unwrap(student)
    name = str(base.config._name_or_path or base.config.model_type)
    if Path(name) == Path(model_path()):
        name = LAB
    dtype = str(base.dtype).removeprefix("torch.")
    settings: dict[str, Any] = {"name_or_path": name, "adaptation": "full"}
    settings["dtype"] = dtype if dtype in ("float32", "bfloat16", "float16") else "auto"
    if isinstance(student, PeftModel):
        settings["adaptation"] = "qlora" if getattr(base, "is_quantized", False) else "lora"
        adapter = student.active_peft_config
        if isinstance(adapter, LoraConfig):
            settings |= {
                "lora_r": adapter.r,
                "lora_alpha": int(adapter.lora_alpha),
                "lora_dropout": adapter.lora_dropout,
            }
            modules = adapter.target_modules
            names = {modules} if isinstance(modules, str) else {str(module) for module in modules or ()}
            settings["lora_target_modules"] = tuple(sorted(names)) or ("all-linear",)
    return ModelConfig.model_validate(settings)


def _train(arguments: TrainingArguments) -> TrainConfig:
    values = {name: getattr(arguments, name) for name in TrainConfig.model_fields if name != "extra"}
    values["report_to"] = tuple(name for name in arguments.report_to or () if name != "none")
    values["lr_scheduler_type"] = getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type)
    values["max_grad_norm"] = values["max_grad_norm"] or 0.0
    values["save_steps"] = max(1, int(values["save_steps"]))
    values["warmup_steps"] = int(values["warmup_steps"] or 0)
    values["max_steps"] = max(1, values["max_steps"])
    values["extra"] = _extra(arguments)
    known = TrainConfig.model_fields
    return TrainConfig.model_construct(**{name: values.get(name, field.default) for name, field in known.items()})


def _extra(arguments: TrainingArguments) -> dict[str, Any]:
    """Return the other arguments that are not transformers' defaults, as far as a configuration can hold them."""
    extra = {}
    for field in fields(TrainingArguments):
        if not field.init or field.name in TrainConfig.model_fields or field.name in _SETTLED:
            continue
        value, default = (getattr(each, "value", each) for each in (getattr(arguments, field.name), field.default))
        if value != default and isinstance(value, str | int | float | bool):
            extra[field.name] = value
    return extra
