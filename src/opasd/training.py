"""A whole run from its configuration: load model and problems, train, write the result and its card."""

import json
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, NoneType
from typing import Any, Literal, get_args

import torch
from peft import LoraConfig, PeftModel, get_peft_model, prepare_model_for_kbit_training
from safetensors import SafetensorError
from torch.distributed.tensor import DTensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.pytorch_utils import Conv1D
from transformers.utils import logging
from transformers.utils.import_utils import is_liger_kernel_available

from opasd.card import model_card
from opasd.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from opasd.data import DataReport, load_problems
from opasd.errors import ConfigError, DataError, NonFiniteError, OpasdError
from opasd.evaluation.targets import base_of
from opasd.lab.tasks import TASKS, Split, make_problems, own_split
from opasd.models import unwrap
from opasd.problem_sets import RunSet
from opasd.records import Records
from opasd.run import check_disk
from opasd.saving import told_if_full, written_whole
from opasd.trainer import OPASDTrainer

Outcome = Literal["finished", "stopped"]
LAB = "lab"


def train(config: RunConfig, folder: Path, *, resume: bool = False) -> Outcome:
    """Run `config` in `folder`, from the beginning or from its newest checkpoint; user mistakes are OpasdErrors."""
    arguments = training_arguments(config.train, folder)
    set_seed(config.train.seed)
    tokenizer = load_tokenizer(config.model)
    model = load_model(config.model)
    if config.train.gradient_checkpointing and not model.supports_gradient_checkpointing:
        raise ConfigError(
            f"the {model.config.model_type} model cannot recompute activations; set train.gradient_checkpointing to "
            "false"
        )
    if config.model.adaptation == "full" and model.dtype.itemsize == 2:
        warnings.warn(
            f"all weights are trained in {model.dtype}: a change of less than about 1/256 of a weight is lost; "
            "model.dtype float32 with train.extra.bf16 true keeps it",
            stacklevel=2,
        )
    model = adapt(model, config.model, checkpointing=config.train.gradient_checkpointing)
    train_dataset = problems(config.data, "train")
    eval_dataset = {name: _validation_set(name, data) for name, data in config.validation_data.items()}
    with _told_as_extra(config.train):
        trainer = OPASDTrainer(
            model=model,
            args=arguments,
            config=config.method(),
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=tokenizer,
            on_bad_row=config.data.on_bad_row,
        )
        with torch.random.fork_rng(devices=[]):  # the run's own order is drawn later
            next(iter(getattr(trainer.get_train_dataloader(), "batch_sampler", None) or ()), None)
    if trainer.is_world_process_zero():
        check_disk(folder, checkpoint_bytes(model))
    try:
        with told_if_full(folder), _stopping_on_signals(trainer):
            trainer.train((resume and trainer.has_begun()) or None)
    finally:
        trainer.close()
    if trainer.stopped and trainer.state.global_step < config.train.max_steps:
        return "stopped"
    if trainer.state.global_step < config.train.max_steps:
        raise ConfigError(
            f"training ended after {trainer.state.global_step} of {config.train.max_steps} steps, for the data gave no "
            f"more: {trainer.num_problems} problems; give more, or leave out train.extra.dataloader_drop_last"
        )
    if trainer.total(not _is_finite(model)) > 0:
        raise NonFiniteError(
            f"NaN or infinity in the weights after step {trainer.state.global_step}, which are not saved; lower "
            "train.learning_rate"
        )
    with told_if_full(folder / "final"):
        save(trainer, config, folder / "final")
    trainer.accelerator.end_training()
    return "finished"


def _is_finite(model: torch.nn.Module) -> bool:
    """Whether what this process has of the trained weights is numbers."""
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    mine = (weight.to_local() if isinstance(weight, DTensor) else weight for weight in trained)
    return all(bool(weight.isfinite().all()) for weight in mine)


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
    config = base_of(adapter)
    if config is None:
        raise ConfigError(f"{adapter}/adapter_config.json does not name the base model; add base_model_name_or_path")
    trust = {"trust_remote_code": config.trust_remote_code}
    with _told_clearly("adapter", ModelConfig(name_or_path=str(adapter))):
        has_tokenizer = (adapter / "tokenizer_config.json").exists()
        tokenizer = AutoTokenizer.from_pretrained(str(adapter), **trust) if has_tokenizer else load_tokenizer(config)
        merged = _merged(PeftModel.from_pretrained(load_model(config), str(adapter)), adapter)
    try:
        with told_if_full(output, "merge again"), written_whole(output) as staged:
            merged.save_pretrained(str(staged))
            tokenizer.save_pretrained(str(staged))
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"cannot write {output}: {error}") from error


@torch.no_grad()
def _merged(model: PeftModel, adapter: Path) -> PreTrainedModel:
    """The whole model, which must compute what the adapter made of its base; PEFT may merge into a tied weight."""
    ids = torch.arange(1, min(9, unwrap(model).config.get_text_config().vocab_size), device=model.device)[None]
    model.eval()
    with model.disable_adapter():
        base = model(input_ids=ids).logits.double()
    adapted = model(input_ids=ids).logits.double()
    merged = model.merge_and_unload(safe_merge=True)
    assert isinstance(merged, PreTrainedModel)
    error = (merged(input_ids=ids).logits.double() - adapted).norm()
    rounding = (1e-3 if merged.dtype.itemsize > 2 else 5e-2) * adapted.norm()
    if error > max(rounding, (adapted - base).norm() / 2):
        raise ConfigError(
            f"the adapter in {adapter} cannot be merged: the whole model would compute something else (as with an "
            "adapter on an embedding that is tied to the output head); use it as an adapter"
        )
    return merged


def model_source(config: ModelConfig) -> str:
    """Where the model is loaded from: the embedded one by its folder, others as they are named."""
    if config.name_or_path != LAB:
        return config.name_or_path
    from opasd.lab.model import model_path

    return str(model_path())


def load_tokenizer(config: ModelConfig) -> PreTrainedTokenizerBase:
    with _told_clearly("tokenizer", config):
        tokenizer = AutoTokenizer.from_pretrained(
            model_source(config), revision=config.revision, trust_remote_code=config.trust_remote_code
        )
    if not tokenizer("What is 1 + 1?", add_special_tokens=False)["input_ids"]:  # made of nothing but the model's type
        raise ConfigError(
            f"{config.name_or_path} has no tokenizer: it makes no token of a text; put the tokenizer's files "
            "(tokenizer.json, tokenizer_config.json) beside the model's"
        )
    return tokenizer


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
        options["output_loading_info"] = True
        found: Any = AutoModelForCausalLM.from_pretrained(model_source(config), **options)
    model, loaded = found
    if config.adaptation != "qlora" and (missing := sorted(loaded["missing_keys"])):
        raise ConfigError(
            f"{config.name_or_path} has no {', '.join(missing[:3])}{' and more' * (len(missing) > 3)}: they would be "
            "random; give a folder with all of the model's weights"
        )
    return model


def adapt(model: PreTrainedModel, config: ModelConfig, *, checkpointing: bool) -> PreTrainedModel | PeftModel:
    """The model with what is to be trained of it set up."""
    if config.adaptation == "full":
        return model
    if config.adaptation == "qlora":
        model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=checkpointing)
    turned = _named(model, Conv1D)  # GPT-2's, with rows and columns exchanged
    linear = turned | _named(model, torch.nn.Linear)
    if missing := set(config.lora_target_modules) - linear:
        raise ConfigError(
            f"model.lora_target_modules names {', '.join(sorted(missing))}, which the {model.config.model_type} model "
            f"does not have; its linear layers are {', '.join(sorted(linear))}"
        )
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=list(config.lora_target_modules),
        task_type="CAUSAL_LM",
        fan_in_fan_out=turned.issuperset(config.lora_target_modules),
    )
    try:
        return get_peft_model(model, lora, revision=config.revision)
    except (ValueError, NotImplementedError) as error:
        raise ConfigError(
            f"model.lora_target_modules: the {model.config.model_type} model cannot be adapted so: "
            f"{' '.join(str(error).split())[:300]}; name other modules"
        ) from error


def _named(model: PreTrainedModel, kind: type[torch.nn.Module]) -> set[str]:
    """The last parts of the names of the model's modules of this kind."""
    return {name.rsplit(".", 1)[-1] for name, module in model.named_modules() if isinstance(module, kind)}


def problems(config: DataConfig, needed: Split) -> RunSet:
    """The problems of a data section; of an embedded task the split of its own for what they are needed for."""
    if config.source not in TASKS:
        found = load_problems(config=config)
        return RunSet(found.problems, found.report, config.on_bad_row)
    made = make_problems(config.source, own_split(config, needed), config.sample, config.seed)
    return RunSet(tuple(made), DataReport(config.source, None, len(made), len(made)), config.on_bad_row)


def _validation_set(name: str, config: DataConfig) -> RunSet:
    try:
        return problems(config, "validation")
    except DataError as error:
        told = re.sub(r"\bdata\.(?=source|on_bad_row|columns|split|subset)", f"validation_data.{name}.", str(error))
        raise DataError(
            f"validation_data.{name}: {told}. A run without this set: --validation-data.{name} null"
        ) from error


def training_arguments(config: TrainConfig, folder: Path) -> TrainingArguments:
    """transformers' own arguments for the run."""
    known = {field.name: set(get_args(field.type)) or {field.type} for field in fields(TrainingArguments)}
    if unknown := sorted(set(config.extra) - set(known)):
        raise ConfigError(f"train.extra: {', '.join(unknown)} is no field of TrainingArguments; see its documentation")
    for name, value in config.extra.items():  # TrainingArguments takes anything, and it fails in the midst of a step
        wanted = known[name] - {NoneType} | ({int} if float in known[name] else set())
        if wanted <= {bool, int, float} and type(value) not in wanted:
            kinds = " or ".join(sorted(kind.__name__ for kind in wanted))
            raise ConfigError(f"train.extra.{name}: got {value!r}; give {kinds}")
    settings: dict[str, Any] = config.model_dump(exclude={"extra"}) | {"report_to": list(config.report_to)}
    settings |= config.extra
    asked = settings.pop("use_liger_kernel")
    try:
        arguments = TrainingArguments(output_dir=str(folder), **settings)
    except (ValueError, TypeError, ImportError, OSError) as error:
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
    except OpasdError:
        raise
    except Exception as error:  # whatever transformers, tokenizers, torch or a model's own code make of broken files
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
        raise ConfigError(
            f"cannot load the {what} {config.name_or_path!r}: {reason}; give a folder with the model's files, or a hub "
            "name while the hub can be reached"
        ) from error
    finally:
        logging.enable_progress_bar()


@contextmanager
def _told_as_extra(config: TrainConfig) -> Iterator[None]:
    """What transformers cannot make of the fields that only it knows, as one message."""
    try:
        yield
    except (ValueError, TypeError, AttributeError, ImportError, OSError) as error:
        if not config.extra or isinstance(error, OpasdError):
            raise
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        names = ", ".join(sorted(config.extra))
        raise ConfigError(
            f"train.extra ({names}): it cannot be trained so: {reason}; change or leave it out"
        ) from error


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
