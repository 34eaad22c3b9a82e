"""The configuration of a run that was made in Python, so that its folder is one that every command reads."""

from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel
from torch import nn
from transformers import TrainingArguments

from opasd.config import DataConfig, ModelConfig, OPASDConfig, RunConfig, TrainConfig
from opasd.data.made import TASKS
from opasd.lab import LAB, model_path
from opasd.model.unwrap import unwrap
from opasd.trainer.setup import RunData

MEMORY = "memory"
"""Source of problems that were given as Python objects."""


def described_run(
    student: nn.Module, arguments: TrainingArguments, config: OPASDConfig, data: RunData, folder: Path
) -> RunConfig:
    """Return the configuration that says the same as these objects."""
    validation = {
        name.removeprefix("validation_data."): DataConfig(source=_source(account.data.source))
        for name, account in data.accounts.items()
        if name != "data"
    }
    return RunConfig(
        **{name: getattr(config, name) for name in OPASDConfig.model_fields},
        model=_model(student),
        data=DataConfig(source=_source(data.accounts["data"].data.source)),
        validation_data=validation,
        train=_train(arguments),
        output_dir=str(folder.parent),
        name=folder.name,
    )


def _source(source: str) -> str:
    """Return where problems came from; a path is absolute, so that a run can be resumed from another folder."""
    path = Path(source).expanduser()
    return source if source in (MEMORY, *TASKS) or not path.exists() else str(path.absolute())


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
    known = TrainConfig.model_fields
    return TrainConfig.model_construct(**{name: values.get(name, field.default) for name, field in known.items()})
