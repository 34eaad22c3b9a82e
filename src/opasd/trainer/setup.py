"""What OPASDTrainer does before transformers' Trainer takes over: the model, the problems, the arguments."""

import copy
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from peft import PeftConfig, PeftModel, PeftType, get_peft_model
from torch import nn
from transformers import PreTrainedTokenizerBase, ProcessorMixin, Trainer, TrainingArguments
from transformers.integrations.liger import apply_liger_kernel
from transformers.trainer_utils import IntervalStrategy
from transformers.utils.import_utils import is_liger_kernel_available

from opasd.choices import StopOrSkip
from opasd.config import DataConfig, ModelConfig, ObjectiveConfig, OPASDConfig
from opasd.data.sets import Columns, Problems, RunSet, as_set, digest
from opasd.errors import ConfigError, OpasdError
from opasd.losses import fused
from opasd.model.checks import context, same_positions_up_to
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.sharding import in_zero3
from opasd.model.unwrap import unwrap
from opasd.progress import with_progress
from opasd.prompts.contexts import PromptPairs, PromptReport
from opasd.prompts.pairs import PromptBuilder
from opasd.together import from_all, from_first, processes, rank
from opasd.trainer import zero
from opasd.trainer.accounts import Account, askable

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunData:
    """The problems of a run as prompts, the problems it is validated on, and an account of both."""

    pairs: PromptPairs
    prompt_report: PromptReport
    validation_sets: dict[str, RunSet]
    accounts: dict[str, Account]
    config: DataConfig
    """How the training problems were loaded."""


def prepare_model(
    model: nn.Module | str | os.PathLike[str],
    processing_class: PreTrainedTokenizerBase | ProcessorMixin | None,
    peft_config: PeftConfig | None,
) -> tuple[nn.Module, PreTrainedTokenizerBase]:
    """Load the model if it is named, add the adapter, and refuse what cannot be trained."""
    tokenizer = None if processing_class is None else tokenizer_of(processing_class)
    if isinstance(model, str | os.PathLike):
        source = ModelConfig(name_or_path=os.fspath(model), adaptation="full")
        tokenizer = tokenizer or load_tokenizer(source)
        model = load_model(source)
    if tokenizer is None:
        raise ConfigError(
            "OPASDTrainer needs the model's tokenizer as processing_class; give it, or give the model by its name"
        )
    check_family(model)
    if any(map(in_zero3, model.parameters())):
        raise ConfigError(
            "ZeRO-3 has divided the model while it was loaded, and the teacher's copies and prompts are made before "
            "that; load the model before TrainingArguments, or give its name"
        )
    if peft_config is not None and isinstance(model, PeftModel):
        raise ConfigError("the model has an adapter already; leave peft_config out, or merge it (merge_and_unload)")
    if peft_config is not None:
        model = get_peft_model(unwrap(model), peft_config)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            "no weight of the model requires a gradient, so nothing can be trained; give a peft_config, or load the "
            "adapter with is_trainable=True"
        )
    turn_off_dropout(model)
    if isinstance(model, PeftModel):
        check_adapter(model.active_peft_config)
    return model, tokenizer


def tokenizer_of(processing_class: object) -> PreTrainedTokenizerBase:
    """Return a tokenizer, or that of a processor, with the processor's chat template if it has none of its own."""
    if isinstance(processing_class, PreTrainedTokenizerBase):
        return processing_class
    tokenizer = getattr(processing_class, "tokenizer", None)
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ConfigError(
            f"processing_class: got {type(processing_class).__name__}; give a tokenizer, or a processor that has one"
        )
    template = getattr(processing_class, "chat_template", None)
    if tokenizer.chat_template is None and template is not None:
        tokenizer = copy.deepcopy(tokenizer)  # the caller's stays as it is
        tokenizer.chat_template = template
    return tokenizer


def check_family(model: nn.Module) -> None:
    """Refuse a model that does not write text from left to right."""
    base = unwrap(model)
    name = f"{type(base).__name__} ({base.config.model_type})"
    if base.config.is_encoder_decoder:
        raise ConfigError(
            f"{name} has an encoder, which reads the whole text, and rollouts need a model that reads from left to "
            "right; use a decoder-only model (AutoModelForCausalLM)"
        )
    if not base.can_generate():
        raise ConfigError(f"{name} writes no text; load the model with AutoModelForCausalLM")


def check_adapter(config: PeftConfig) -> None:
    """Refuse an adapter that the method cannot train."""
    name = type(config).__name__
    if config.is_prompt_learning:
        raise ConfigError(f"the adapter is a prompt ({name}), and a teacher needs the model without it; use LoRA")
    if config.peft_type == PeftType.ADALORA:
        raise ConfigError(
            f"the adapter changes its ranks by a loss and a schedule of its own ({name}), which this trainer does not "
            "run; use LoRA"
        )


def turn_off_dropout(model: nn.Module) -> None:
    """Turn the base model's own dropout off, and say so; that of adapters, which the user sets, stays.

    The teacher computes without dropout. A student with it would differ from its teacher before anything is learned.
    """
    of_adapters = [getattr(module, "lora_dropout", None) for module in model.modules()]
    kept = {inner for dropout in of_adapters if isinstance(dropout, nn.Module) for inner in dropout.modules()}
    strongest = 0.0
    for module in (module for module in model.modules() if module not in kept):
        for name in ("p", "attention_dropout", "dropout", "activation_dropout"):
            rate = getattr(module, name, None)
            if isinstance(rate, float) and rate > 0 and (name != "p" or isinstance(module, nn.Dropout)):
                setattr(module, name, 0.0)
                strongest = max(strongest, rate)
    if strongest:
        _log.warning("the model's own dropout (%g) is off: the teacher computes without it", strongest)


def prepare_data(
    train_dataset: Problems,
    eval_dataset: Problems | Mapping[str, Problems] | None,
    builder: PromptBuilder,
    config: OPASDConfig,
    on_bad_row: StopOrSkip,
    columns: Columns | None = None,
) -> RunData:
    """Make a prompt pair of every problem, and check that every validation question fits a prompt."""
    solutions = "solution" in config.prompts.reference_fields()
    train = read_once(train_dataset, on_bad_row, solutions=solutions, columns=columns)
    pairs, prompt_report = shared_pairs(builder, train, on_bad_row)
    if not pairs:
        raise ConfigError(f"no problem of the train_dataset can be used: {prompt_report.to_dict()}")
    accounts = {"data": Account(train.report, prompt_report, digest(pairs.problems))}
    validation_sets: dict[str, RunSet] = {}
    for name, problems in named_sets(eval_dataset, columns).items():
        validation_sets[name], accounts[f"validation_data.{name}"] = from_first(
            partial(askable, name, problems, builder, thinking=config.validation.thinking)
        )
    return RunData(pairs, prompt_report, validation_sets, accounts, train.config)


def read_once(dataset: Problems, on_bad_row: StopOrSkip = "stop", **settings: Any) -> RunSet:
    """Return a data set as `as_set` does; of processes that train together, one reads a source for all."""
    read = partial(as_set, dataset, on_bad_row, **settings)
    return from_first(read) if isinstance(dataset, str | os.PathLike) else read()


def shared_pairs(builder: PromptBuilder, problems: RunSet, on_bad_row: StopOrSkip) -> tuple[PromptPairs, PromptReport]:
    """Return all pairs and the counts of their rows; each process makes the contexts of its part of the rows."""
    count, first = len(problems), rank()
    part = problems[count * first // processes() : count * (first + 1) // processes()]
    rows = with_progress("contexts made of problems", part) if first == 0 else part
    pairs, report = PromptPairs(), PromptReport()
    for made, counted in from_all(lambda: builder.pairs(rows, on_bad_row=on_bad_row)):
        pairs.extend(made)
        report.add(counted)
    return pairs, report


def named_sets(
    eval_dataset: Problems | Mapping[str, Problems] | None, columns: Columns | None = None
) -> dict[str, RunSet]:
    """Return the validation sets by name; one set alone is called `validation`."""
    if eval_dataset is None:
        return {}
    given = eval_dataset if isinstance(eval_dataset, Mapping) else {"validation": eval_dataset}
    sets = {
        str(name): read_once(problems, solutions=False, columns=columns, purpose="validation")
        for name, problems in given.items()
    }
    for name, problems in sets.items():
        if repeated := problems.report.left_out.get("deduplicate"):
            _log.warning("eval_dataset %s: %d rows repeat a question and are left out", name, repeated)
    return sets


def check_contexts(
    model: nn.Module, tokenizer: PreTrainedTokenizerBase, pairs: PromptPairs, max_new_tokens: int
) -> None:
    """Refuse tokens that the model has no embedding for, and sequences beyond its context; warn of moving positions."""
    base = unwrap(model)
    rows = getattr(base.get_input_embeddings(), "num_embeddings", None)
    if rows is not None and len(tokenizer) > rows:
        both = ((pair, pair.attention or pair) for pair in pairs)
        largest = max(max(*pair.student_ids, *pair.teacher_ids) for contexts in both for pair in contexts)
        if largest >= rows:
            raise ConfigError(
                f"the tokenizer gives the token {largest}, but the model has embeddings for {rows}; give the model's "
                "own tokenizer, or resize the embeddings"
            )
    longest = pairs.longest["teacher"] + max_new_tokens
    if longest > (limit := context(base.config)):
        raise ConfigError(
            f"the teacher's longest context and a rollout have {longest} tokens, but the model's context is {limit}; "
            "lower rollout.max_new_tokens, or prompts.max_teacher_tokens, which cuts solutions"
        )
    if longest > (limit := same_positions_up_to(base.config)):
        _log.warning(
            "sequences of up to %d tokens, but beyond %d this model's positions depend on the longest sequence of a "
            "forward: losses and rollouts then depend on which problems share one; keep sequences below that",
            longest,
            limit,
        )


def settle_arguments(
    args: TrainingArguments, config: OPASDConfig, model: nn.Module, *, validates: bool, trains_head: bool
) -> None:
    """Set, in place, the arguments of Trainer that the method decides."""
    every = config.validation.every
    if args.eval_strategy != IntervalStrategy.NO and (
        args.eval_strategy != IntervalStrategy.STEPS or args.eval_steps not in (None, args.logging_steps, every)
    ):
        raise ConfigError("eval_strategy and eval_steps: validation.every decides when to validate; leave them out")
    if args.load_best_model_at_end:
        raise ConfigError("load_best_model_at_end is not supported; choose among the checkpoints by metrics.jsonl")
    check_arguments(args)
    # One batch of Trainer is one optimizer step: `training_step` divides it into micro-batches itself.
    args.per_device_train_batch_size *= args.gradient_accumulation_steps
    args.gradient_accumulation_steps = 1
    zero.settle(args)
    args.remove_unused_columns = False
    args.logging_strategy, args.logging_steps, args.logging_first_step = IntervalStrategy.STEPS, 1, False
    args.disable_tqdm = True
    args.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type == "cuda"
    if args.gradient_checkpointing and args.gradient_checkpointing_kwargs is None:
        args.gradient_checkpointing_kwargs = {"use_reentrant": False}
    if validates and every:
        args.eval_strategy, args.eval_steps = IntervalStrategy.STEPS, every
    args.eval_on_start = validates and config.validation.at_start
    if args.ddp_find_unused_parameters is None:  # text never reaches the weights for images or sounds
        model_config = unwrap(model).config
        args.ddp_find_unused_parameters = model_config.get_text_config() is not model_config
    if not trains_head and args.world_size > 1:
        freeze_untied_head(model)  # processes would wait for the gradient of an output head that no loss reads


def check_arguments(args: TrainingArguments) -> None:
    """Refuse, before a model is loaded, arguments that spread the weights in a way that cannot be."""
    if args.fsdp and args.world_size == 1:
        raise ConfigError("fsdp: there is one process; start several with --num-processes, or leave fsdp out")
    if args.fsdp and args.distributed_state is not None and args.distributed_state.distributed_type == "MULTI_CPU":
        raise ConfigError(f"fsdp: weights are spread over GPUs, and this run is on {args.device.type}; leave fsdp out")
    _check_whole_sequences(args.parallelism_config)


def _check_whole_sequences(parallelism: object) -> None:
    for name, what in {"cp": "context", "sp": "sequence", "tp": "tensor"}.items():
        if getattr(parallelism, f"{name}_size", 1) > 1:
            raise ConfigError(
                f"parallelism_config: {what} parallelism divides a sequence or its heads over processes, and the "
                f"attention loss compares whole ones; set {name}_size to 1"
            )


def check_sharding(trainer: Trainer, on_non_finite: StopOrSkip = "stop", *, offload: bool = False) -> None:
    """Refuse ways to spread the weights over processes that training would ignore, or wait for ever in."""
    plugin = fsdp_plugin(trainer)
    if plugin is not None and plugin.fsdp_version != 2:
        raise ConfigError("fsdp: version 1 gathers weights where processes sample on their own; use fsdp_version 2")
    _check_whole_sequences(getattr(trainer.accelerator, "parallelism_config", None))  # a launcher may have set it
    base = getattr(trainer, "student", None)
    base = unwrap(base) if isinstance(base, nn.Module) else base
    quantized = bool(getattr(base, "is_quantized", False))
    if plugin is not None and quantized:
        raise ConfigError(
            "fsdp: the base is quantized, and its packed weights are not divided here; leave fsdp out, and each GPU "
            "holds them whole"
        )
    if plugin is not None and offload:
        raise ConfigError(
            "teacher.offload: FSDP2 divides the teacher's weights over the processes as it does the student's; leave "
            "it out"
        )
    zero.check(trainer, on_non_finite, quantized=quantized, offload=offload)


def fsdp_plugin(trainer: Trainer) -> Any:
    """Return the settings of FSDP; None for a run that does not spread its weights in this way."""
    return getattr(trainer.accelerator.state, "fsdp_plugin", None)


def freeze_untied_head(model: nn.Module) -> None:
    """Freeze the output head if it is not tied to the embeddings."""
    head, table = unwrap(model).get_output_embeddings(), unwrap(model).get_input_embeddings()
    if head is not None and head.weight is not table.weight:
        head.requires_grad_(False)


def use_liger(model: nn.Module, args: TrainingArguments) -> None:
    """Replace norms, rotary embeddings and activations by Liger's kernels if the arguments ask for it."""
    if not args.use_liger_kernel:
        return
    if args.device.type != "cuda" or not is_liger_kernel_available():
        raise ConfigError("use_liger_kernel needs a GPU and liger-kernel; pip install liger-kernel, or set it to false")
    # The losses are ours. For the other parts Liger has a list for each family and refuses what is not on it.
    losses = {"cross_entropy": False, "fused_linear_cross_entropy": False}
    apply_liger_kernel(model, losses | (args.liger_kernel_config or {}))
    args.use_liger_kernel = False  # done; Trainer's own default would replace the model's forward as well


def check_kernels(config: ObjectiveConfig, device: torch.device) -> None:
    """Refuse a loss with `impl: fused` that cannot run on `device`."""
    weighted = (("token", config.token_weight > 0, config.token), ("attention", config.attends, config.attention))
    for name, computed, loss in weighted:
        if computed and loss.impl == "fused" and (reason := fused.unavailable(device)):
            raise ConfigError(f"objective.{name}.impl: fused {reason}; use auto, which takes the fastest that can run")


@contextmanager
def setting_errors(settings: str, advice: str) -> Iterator[None]:
    """Turn an error of transformers about its own settings into one message that names them."""
    try:
        yield
    except OpasdError:
        raise
    except (ValueError, TypeError, AttributeError, ImportError, OSError) as error:
        reason = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        raise ConfigError(f"{settings}: {reason}; {advice}") from error
