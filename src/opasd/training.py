"""A whole run from its configuration: load model and problems, train, write the result and its card."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from safetensors import SafetensorError
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.utils import logging
from transformers.utils.import_utils import is_liger_kernel_available

from opasd.card import model_card
from opasd.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from opasd.data import DataReport, load_problems
from opasd.errors import ConfigError
from opasd.lab.tasks import TASKS, Split, make_problems, own_split
from opasd.problem_sets import RunSet
from opasd.records import Records
from opasd.run import check_disk
from opasd.saving import told_if_full
from opasd.trainer import OPASDTrainer

Outcome = Literal["finished", "stopped"]
LAB = "lab"


def train(config: RunConfig, folder: Path, *, resume: bool = False) -> Outcome:
    """Run `config` in `folder`, from the beginning or from its newest checkpoint; user mistakes are OpasdErrors."""
    arguments = training_arguments(config.train, folder)
    set_seed(config.train.seed)
    tokenizer = load_tokenizer(config.model)
    model = adapt(load_model(config.model), config.model, checkpointing=config.train.gradient_checkpointing)
    trainer = OPASDTrainer(
        model=model,
        args=arguments,
        config=config.method(),
        train_dataset=problems(config.data, "train"),
        eval_dataset={name: problems(data, "validation") for name, data in config.validation_data.items()},
        processing_class=tokenizer,
        on_bad_row=config.data.on_bad_row,
    )
    if trainer.is_world_process_zero():
        check_disk(folder, checkpoint_bytes(model))
    try:
        with told_if_full(folder), _stopping_on_signals(trainer):
            trainer.train((resume and trainer.has_begun()) or None)
    finally:
        trainer.close()
    if trainer.state.global_step < config.train.max_steps:
        return "stopped"
    with told_if_full(folder / "final"):
        save(trainer, config, folder / "final")
    trainer.accelerator.end_training()
    return "finished"


def save(trainer: OPASDTrainer, config: RunConfig, output: Path) -> None:
    """The adapter or model, its tokenizer, and a card with the configuration and what was measured."""
    trainer.save_model(str(output))
    if trainer.is_world_process_zero():
        described = output / "adapter_config.json"
        if config.model.name_or_path == LAB and described.exists():
            # The embedded model's folder is another one on another machine.
            values = json.loads(described.read_text(encoding="utf-8")) | {"base_model_name_or_path": LAB}
            described.write_text(json.dumps(values, indent=2), encoding="utf-8")
        rows = list(Records(trainer.metrics_file.path))
        (output / "README.md").write_text(model_card(config, rows), encoding="utf-8")


def checkpoint_bytes(model: torch.nn.Module) -> int:
    """What a checkpoint needs: the trained weights, two moments of the optimizer, a teacher's copy at most."""
    return sum(p.numel() * (2 * p.element_size() + 8) for p in model.parameters() if p.requires_grad) + 2**24


def merge(adapter: Path, output: Path) -> None:
    """Write the model that `adapter` makes of its base, whole."""
    if not (adapter / "adapter_config.json").exists():
        raise ConfigError(f"{adapter} is no adapter: it has no adapter_config.json; give a run's `final` folder")
    base = PeftConfig.from_pretrained(str(adapter)).base_model_name_or_path
    if not base:
        raise ConfigError(f"{adapter}/adapter_config.json does not name the base model; add base_model_name_or_path")
    config = ModelConfig(name_or_path=base)
    with _told_clearly("adapter", ModelConfig(name_or_path=str(adapter))):
        has_tokenizer = (adapter / "tokenizer_config.json").exists()
        tokenizer = AutoTokenizer.from_pretrained(str(adapter)) if has_tokenizer else load_tokenizer(config)
        merged = PeftModel.from_pretrained(load_model(config), str(adapter)).merge_and_unload(safe_merge=True)
    try:
        merged.save_pretrained(str(output))
        tokenizer.save_pretrained(str(output))
    except OSError as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


def model_source(config: ModelConfig) -> str:
    """Where the model is loaded from: the embedded one by its folder, others as they are named."""
    if config.name_or_path != LAB:
        return config.name_or_path
    from opasd.lab.model import model_path

    return str(model_path())


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    with _told_clearly("tokenizer", config):
        return AutoTokenizer.from_pretrained(
            model_source(config), revision=config.revision, trust_remote_code=config.trust_remote_code
        )


def load_model(config: ModelConfig) -> PreTrainedModel:
    """The model in the asked-for precision, on the CPU; Trainer moves it."""
    options: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    if config.attn_implementation is not None:
        options["attn_implementation"] = config.attn_implementation
    if config.dtype != "auto":
        options["dtype"] = getattr(torch, config.dtype)
    elif not torch.cuda.is_available():
        options["dtype"] = torch.float32
    if config.adaptation == "qlora":
        options["quantization_config"] = _four_bit()
    with _told_clearly("model", config):
        return AutoModelForCausalLM.from_pretrained(model_source(config), **options)


def adapt(model: PreTrainedModel, config: ModelConfig, *, checkpointing: bool) -> PreTrainedModel | PeftModel:
    """The model with what is to be trained of it set up."""
    if config.adaptation == "full":
        return model
    if config.adaptation == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=list(config.lora_target_modules),
        task_type="CAUSAL_LM",
    )
    linear = {name.rsplit(".", 1)[-1] for name, m in model.named_modules() if isinstance(m, torch.nn.Linear)}
    if missing := set(config.lora_target_modules) - linear:
        raise ConfigError(
            f"model.lora_target_modules names {', '.join(sorted(missing))}, which the {model.config.model_type} model "
            f"does not have; its linear layers are {', '.join(sorted(linear))}"
        )
    return get_peft_model(model, lora)


def problems(config: DataConfig, needed: Split) -> RunSet:
    """The problems of a data section; of an embedded task the split of its own for what they are needed for."""
    if config.source not in TASKS:
        found = load_problems(config=config)
        return RunSet(found.problems, found.report, config.on_bad_row)
    made = make_problems(config.source, own_split(config, needed), config.sample, config.seed)
    return RunSet(tuple(made), DataReport(config.source, None, len(made), len(made)), config.on_bad_row)


def training_arguments(config: TrainConfig, folder: Path) -> TrainingArguments:
    """transformers' own arguments for the run."""
    known = {field.name for field in fields(TrainingArguments)}
    if unknown := sorted(set(config.extra) - known):
        raise ConfigError(f"train.extra: {', '.join(unknown)} is no field of TrainingArguments; see its documentation")
    settings: dict[str, Any] = config.model_dump(exclude={"extra"}) | {"report_to": list(config.report_to)}
    settings |= config.extra
    asked = settings.pop("use_liger_kernel")
    try:
        arguments = TrainingArguments(output_dir=str(folder), **settings)
    except (ValueError, TypeError, ImportError) as error:
        raise ConfigError(f"train: {error}") from error
    possible = arguments.device.type == "cuda" and is_liger_kernel_available()
    arguments.use_liger_kernel = possible if asked is None else asked
    return arguments


def _four_bit() -> Any:
    if find_spec("bitsandbytes") is None:
        raise ConfigError("model.adaptation: qlora needs bitsandbytes; pip install bitsandbytes")
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


@contextmanager
def _told_clearly(what: str, config: ModelConfig) -> Iterator[None]:
    """Loading problems as one message; a small model's loading needs no progress bar of its own."""
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, ImportError, SafetensorError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"cannot load the {what} {config.name_or_path!r}: {reason}; give a folder with the model's files, or a hub "
            "name while the hub can be reached"
        ) from error
    finally:
        logging.enable_progress_bar()


@contextmanager
def _stopping_on_signals(trainer: OPASDTrainer) -> Iterator[None]:
    """SIGTERM and the first Ctrl-C let the step finish and save; the second Ctrl-C interrupts."""

    def request(number: int, _frame: FrameType | None) -> None:
        if trainer.stop_requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        trainer.stop_requested = True

    previous = {number: signal.signal(number, request) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
