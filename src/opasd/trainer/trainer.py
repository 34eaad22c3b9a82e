"""OPASDTrainer: Algorithm 1 on transformers' Trainer.

    sample a minibatch ─► roll out with the student ─► both roles read the same token ids ─► both losses ─► update

One optimizer step is one window of gradient accumulation. Its rollouts are generated together, then sorted by length
and packed into micro-batches of so many tokens. Everything else (optimizer, schedule, data order, distribution,
trackers) is Trainer's. Metrics go to `metrics.jsonl` in the output folder at every step, and to any `report_to`.
"""

import copy
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProgressCallback,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.integrations.liger import apply_liger_kernel
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import IntervalStrategy
from transformers.utils.import_utils import is_liger_kernel_available

from opasd.analysis.leaks import leak_pattern
from opasd.choices import StopOrSkip
from opasd.config import OPASDConfig
from opasd.data.sets import Problems, RunSet, as_set, digest
from opasd.errors import ConfigError, NonFiniteError
from opasd.evaluation.answers import answer
from opasd.files import full_disk_errors
from opasd.losses.objective import check_kernels, opasd_loss
from opasd.model import lora
from opasd.model.batches import microbatches
from opasd.model.checks import check_vocabulary, leave_head, takes_more_than_text, warn_of_positions
from opasd.model.scoring import Layout, Scorer, choose_layout
from opasd.model.teacher import Teacher
from opasd.model.unwrap import unwrap
from opasd.progress import with_progress
from opasd.prompts.pairs import PromptBuilder, PromptPair, PromptPairs
from opasd.prompts.rollout import Rollout
from opasd.rollout.drift import DriftCheck
from opasd.rollout.engine import Completion, Sampler, as_engine, derive_seed
from opasd.rollout.factory import computes_in_half, make_engine
from opasd.run.checkpoints import check_checkpoint, checkpoints, set_aside, step_of
from opasd.run.records import Records
from opasd.trainer.accounts import Account, askable, check_same, keep
from opasd.trainer.batches import Share
from opasd.trainer.metrics import Window, validation_metrics
from opasd.trainer.progress import Progress

_TEACHER = "teacher.safetensors"


class OPASDTrainer(Trainer):
    """Trains `model` on problems with verified solutions; see `OPASDConfig` for the method's settings."""

    # The loss is already the minibatch's: Trainer must not divide it by the accumulation steps again.
    loss_is_scaled_for_ga = True

    def __init__(
        self,
        model: nn.Module | str | os.PathLike[str],
        args: TrainingArguments,
        config: OPASDConfig | None = None,
        train_dataset: Problems | None = None,
        eval_dataset: Problems | Mapping[str, Problems] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        peft_config: PeftConfig | None = None,
        callbacks: list[TrainerCallback] | None = None,
        engine: Sampler | None = None,
        on_bad_row: StopOrSkip = "stop",
        **kwargs: Any,
    ) -> None:
        if train_dataset is None:
            raise ConfigError("OPASDTrainer needs a train_dataset: problems with solutions")
        if isinstance(model, str | os.PathLike):
            processing_class = processing_class or AutoTokenizer.from_pretrained(str(model))
            model = AutoModelForCausalLM.from_pretrained(str(model))
        if processing_class is None:
            raise ConfigError("OPASDTrainer needs the model's tokenizer as processing_class")
        if peft_config is not None and isinstance(model, PeftModel):
            raise ConfigError("the model has an adapter already; leave peft_config out, or merge it (merge_and_unload)")
        if peft_config is not None:
            model = get_peft_model(unwrap(model), peft_config)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ConfigError(
                "nothing is to be trained: no weight of the model requires a gradient; give a peft_config, or load the "
                "adapter with is_trainable=True"
            )
        if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
            name = type(model.active_peft_config).__name__
            raise ConfigError(f"the adapter is a prompt ({name}), which a teacher cannot do without; use LoRA")
        lora.speed_up(model)
        _use_liger(model, args)
        self.config = config or OPASDConfig()
        args = copy.copy(args)  # which the caller may use again
        self.builder = PromptBuilder(processing_class, self.config.prompts)
        train = as_set(train_dataset, on_bad_row, solutions="solution" in self.config.prompts.reference_fields())
        given = with_progress("contexts made of problems", train.problems) if args.process_index == 0 else train
        pairs, self.prompt_report = self.builder.pairs(given, on_bad_row=on_bad_row)
        if not pairs:
            raise ConfigError(f"no problem of the train_dataset can be used: {self.prompt_report.to_dict()}")
        contexts = (ids for pair in pairs for ids in (pair.student_ids, pair.teacher_ids))
        check_vocabulary(model, len(processing_class), contexts)
        longest = max(len(pair.teacher_ids) for pair in pairs) + self.config.rollout.max_new_tokens
        warn_of_positions(model, longest)
        self.num_problems = len(pairs)
        self.accounts = {"data": Account(train.report, self.prompt_report, digest(pairs.problems))}
        self.validation_sets: dict[str, RunSet] = {}
        for name, given in _named_sets(eval_dataset).items():
            self.validation_sets[name], self.accounts[f"validation_data.{name}"] = askable(
                name, given, self.builder, thinking=self.config.validation.thinking
            )
        _settle(args, self.config, has_validation=bool(self.validation_sets))
        if args.ddp_find_unused_parameters is None:  # text leaves the weights for images and sounds alone
            args.ddp_find_unused_parameters = takes_more_than_text(model)
        if self.config.objective.token_weight == 0 and args.world_size > 1:
            leave_head(model)  # processes would wait for its gradient
        super().__init__(
            model=model,
            args=args,
            data_collator=_collate,
            train_dataset=_Pairs(pairs),
            eval_dataset=_Pairs(pairs[:1]) if self.validation_sets else None,
            processing_class=processing_class,
            callbacks=[*(callbacks or []), _StepCallback(self)],
            # Before transformers 5.19 only this tells Trainer that the loss is scaled already.
            compute_loss_func=_never_called,
            **kwargs,
        )
        self.model_accepts_loss_kwargs = False
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(Progress())
        self.student = model
        self.teacher = Teacher(model, self.config.teacher)
        self.engine = (
            as_engine(engine)
            if engine is not None
            else make_engine(
                self.config.rollout,
                model,
                processing_class,
                longest=self._longest_sample(),
                process=self.accelerator.process_index,
                processes=self.accelerator.num_processes,
            )
        )
        self.half = args.bf16 or args.fp16 or unwrap(model).dtype.itemsize == 2
        half = self.half or computes_in_half(self.config.rollout, model)
        self.drift = DriftCheck(model, self.config.rollout.drift, half=half)
        self.folder = Path(str(args.output_dir))
        self.metrics_file = Records(self.folder / "metrics.jsonl")
        self.samples_file = Records(self.folder / "samples.jsonl")
        self.stop_requested = False
        """Set from a signal handler: the run saves a checkpoint after the current step and ends."""
        self.stopped = False
        """Whether it ended because some process was asked to."""
        self._scoring: tuple[Scorer, Layout] | None = None
        self.window = Window(
            model, checkpointing=args.gradient_checkpointing, leak=leak_pattern(self.config.prompts)
        )  # fmt: skip
        self._staging: Path | None = None

    # ---- one optimizer step -----------------------------------------------------------------------------------------

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """The window's problems, rolled out together."""
        if self.state.global_step >= self.state.max_steps:  # resumed from the last checkpoint
            self.control.should_training_stop = True
        if self.control.should_training_stop:  # also by a signal while the first validation was made
            return [], None
        batches: list[list[PromptPair]] = [batch["pairs"] for batch in islice(epoch_iterator, num_batches)]
        if not batches:
            return [], None
        with self.window.timed("rollout"):
            rollouts, completions = self._roll_out(self._without_repeated(batches))
        self.window.start(rollouts, completions, self.processing_class)
        self._save_samples(rollouts, completions)
        count = self.total(sum(rollout.num_tokens > 0 for rollout in rollouts))
        # Gradients are averaged over processes, not summed.
        share = count / self.accelerator.num_processes
        # Trainer counts its batches; all the work is done at the last, where gradients are exchanged.
        empty = [{"rollouts": [], "num_rollouts": 1.0} for _ in batches[1:]]
        judged = rollouts or [Rollout(batches[0][0], (), "none")]  # which only takes part in the exchange
        return [*empty, {"rollouts": judged, "num_rollouts": max(share, 1e-9)}], None

    def _without_repeated(self, batches: list[list[PromptPair]]) -> list[PromptPair]:
        """The window's problems of this process, each once in an epoch where accelerate deals batches as it does unless
        told otherwise."""
        args, accelerator = self.args, self.accelerator
        otherwise = (accelerator.split_batches, accelerator.dispatch_batches, args.ignore_data_skip)
        if any(otherwise) or args.dataloader_drop_last:
            return [pair for batch in batches for pair in batch]
        share = Share(accelerator.process_index, accelerator.num_processes, args.train_batch_size, self.num_problems)
        return share.without_repeated(batches, self.state.global_step, args.gradient_accumulation_steps)

    def _roll_out(self, pairs: list[PromptPair]) -> tuple[list[Rollout], list[Completion]]:
        step, settings = self.state.global_step, self.config.rollout
        wanted = [(pair, number) for pair in pairs for number in range(settings.rollouts_per_problem)]
        seeds = [derive_seed(self.args.seed, step, pair.problem.id, number) for pair, number in wanted]
        prompts = [pair.student_ids for pair, _ in wanted]
        completions = self.engine.generate(prompts, settings, seeds, measured=self.drift.measured(step))
        if (drift := self.drift(prompts, completions)) is not None:
            self.window.note(drift.metrics())
        rollouts = [
            Rollout(pair, completion.ids, f"step {step + 1}, {pair.problem.id}, sample {number}")
            for (pair, number), completion in zip(wanted, completions, strict=True)
        ]
        return rollouts, completions

    def _longest_sample(self) -> int:
        limits = [self.config.rollout.max_new_tokens]
        if self.validation_sets:
            limits.append(self.config.validation.sampling.max_new_tokens)
        return self.config.prompts.max_student_tokens + max(limits)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor | tuple[Tensor, None]:
        """The micro-batch's part of the minibatch's loss."""
        rollouts, objective = inputs["rollouts"], self.config.objective
        scorer, layout = self._scorer_of(model)
        settings: dict[str, Any] = {"query": objective.attention.query, "layout": layout, "deferred": True}
        with self.window.timed("teacher"), self.teacher.judging():
            teacher, teacher_head = scorer(rollouts, "teacher", **settings), scorer.head
        with self.window.timed("student"):
            student = scorer(rollouts, "student", **settings)
            # The losses choose their own precision.
            with torch.autocast(self.args.device.type, enabled=False):
                try:
                    output = opasd_loss(
                        rollouts, student, teacher, scorer.head, teacher_head, objective,
                        num_rollouts=inputs["num_rollouts"],
                    )  # fmt: skip
                except NonFiniteError as error:
                    scorer.settle()
                    loss = self._non_finite(rollouts, str(error))
                    return (loss, None) if return_outputs else loss
        scorer.settle()  # the loss has waited for the device already
        self.window.add(rollouts, output)
        return (output.loss, None) if return_outputs else output.loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Forward and backward of the window's micro-batches; processes exchange gradients at the last one."""
        loss = torch.zeros((), device=self.args.device)
        if not inputs["rollouts"]:
            return loss
        state, exchange = self.accelerator.gradient_state, self.accelerator.gradient_state.sync_gradients
        with self.window.timed("update"):  # what of it is not the teacher's and the student's: the backward
            _, layout = self._scorer_of(model)
            parts = microbatches(inputs["rollouts"], self.config.tokens_per_microbatch, packed=layout == "packed")
            for part in parts[:-1]:
                state._set_sync_gradients(False)
                with self.accelerator.no_sync(model):
                    loss += super().training_step(model, inputs | {"rollouts": part}, *args, **kwargs)
            state._set_sync_gradients(exchange)
            loss += super().training_step(model, inputs | {"rollouts": parts[-1]}, *args, **kwargs)
        return loss

    def _scorer_of(self, model: nn.Module) -> tuple[Scorer, Layout]:
        """What reads the model in both roles, and how rollouts share a forward; made before the first step."""
        if self._scoring is None:
            objective = self.config.objective
            devices = [torch.cuda.current_device()] if self.args.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # dropout in its probe must not move a resumed run's random numbers
                scorer = Scorer(model, objective.attention.layers if objective.attention_weight > 0 else 0)
                self._scoring = scorer, self._layout(scorer)
        return self._scoring

    def check(self) -> None:
        """Refuse an objective that cannot be computed here, before anything is sampled or written for it."""
        check_kernels(self.config.objective, self.args.device)
        assert isinstance(self.model_wrapped, nn.Module)
        self._scorer_of(self.model_wrapped)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        with _told_as("train.extra.optim", self.args.optim, "optim_args, adam_beta1, adam_beta2 and adam_epsilon"):
            return super().create_optimizer(*args, **kwargs)

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        with _told_as("train.lr_scheduler_type", self.args.lr_scheduler_type, "lr_scheduler_kwargs"):
            return super().create_scheduler(*args, **kwargs)

    def _layout(self, scorer: Scorer) -> Layout:
        return choose_layout(scorer, self.config.layout, device=self.args.device, half=self.half)

    def _non_finite(self, rollouts: list[Rollout], message: str) -> Tensor:
        """Keep the offending rollouts; then stop, or drop the step: a loss of 0 that reaches every trained weight."""
        rows = [{"step": self.state.global_step + 1, "id": rollout.id, "problem": rollout.pair.problem.question,
                 "completion_ids": rollout.completion_ids} for rollout in rollouts]  # fmt: skip
        Records(self.folder / "non_finite.jsonl").append(*rows)
        if self.config.on_non_finite == "stop":
            raise NonFiniteError(f"{message}; its rollouts are in {self.folder}/non_finite.jsonl")
        self.window.spoiled = True
        return torch.stack([p.sum() * 0 for p in self.student.parameters() if p.requires_grad]).sum().nan_to_num(0)

    def drop_spoiled_gradients(self) -> None:
        """Before the optimizer: a window with NaN in it leaves no trace but a count."""
        finite = True  # as float16's loss scaler sees to: it looks for overflow itself, and skips such a step
        if self.accelerator.scaler is None:
            gradients = [p.grad for p in self.student.parameters() if p.grad is not None]
            finite = all(torch.stack([gradient.isfinite().all() for gradient in gradients]).tolist())
        if self.total(self.window.spoiled or not finite) == 0:
            return
        if self.config.on_non_finite == "stop":
            raise NonFiniteError(
                f"NaN or infinity in the gradient of step {self.state.global_step + 1}; lower train.learning_rate, or "
                "set on_non_finite: skip to leave such steps out"
            )
        self.window.spoiled = True
        for parameter in self.student.parameters():
            parameter.grad = None

    def total(self, value: float) -> float:
        """The sum of a number over all processes."""
        reduced = self.accelerator.reduce(torch.tensor(float(value), device=self.args.device), "sum")
        assert isinstance(reduced, Tensor)
        return float(reduced)

    # ---- records ----------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the step's own metrics to what Trainer logs for it, and keep them in metrics.jsonl."""
        if "grad_norm" in logs:
            rows = {f"prompts/{name}": count for name, count in self.prompt_report.to_dict().items()}
            logs = {**self.window.finish(self.accelerator, logs), **rows, "epoch": self.state.epoch or 0.0}
            if self.is_world_process_zero():
                self.metrics_file.append({"step": self.state.global_step, **logs})
        super().log(logs, *args, **kwargs)

    def _save_samples(self, rollouts: list[Rollout], completions: list[Completion]) -> None:
        every, step = self.config.save_samples_every, self.state.global_step + 1
        if not every or (step - 1) % every or not self.is_world_process_zero():
            return
        chosen = list(zip(rollouts, completions, strict=True))[: self.config.saved_samples]
        self.samples_file.append(
            *(
                {
                    "step": step,
                    "id": rollout.id,
                    "question": rollout.pair.problem.question,
                    "answer": rollout.pair.problem.answer,
                    "completion": self._decode(rollout.completion_ids),
                    "completion_ids": list(rollout.completion_ids),
                    "finish_reason": completion.finish_reason,
                    "correct": self.window.verdict(rollout),
                }
                for rollout, completion in chosen
            )
        )

    def _decode(self, ids: tuple[int, ...]) -> str:
        assert isinstance(self.processing_class, PreTrainedTokenizerBase)
        return str(self.processing_class.decode(list(ids), skip_special_tokens=True))

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Answer the validation sets, or the given ones, with the current weights; Avg@k and lengths of each."""
        settings, metrics = self.config.validation, {}
        sets = self.validation_sets if eval_dataset is None else _named_sets(eval_dataset)
        assert isinstance(self.processing_class, PreTrainedTokenizerBase)
        for name, problems in sets.items():
            mine = problems[self.accelerator.process_index :: self.accelerator.num_processes]
            found = answer(
                mine, self.engine, self.builder, self.processing_class, settings.sampling,
                samples=settings.samples, seed=settings.seed, thinking=settings.thinking,
            )  # fmt: skip
            metrics |= validation_metrics(name, found, settings.samples, self.accelerator, self.window.leak)
        if self.is_world_process_zero():
            self.metrics_file.append({"step": self.state.global_step, **metrics})
        super().log(dict(metrics))
        metrics |= {f"eval_{name}": value for name, value in metrics.items()}  # how Trainer looks for the best one
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        return 0  # estimated from the rollouts' lengths, in the metrics

    # ---- checkpoints ------------------------------------------------------------------------------------------------

    def _get_output_dir(self, trial: Any) -> str:
        return str(self._staging or super()._get_output_dir(trial=trial))

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """A checkpoint is written elsewhere and then renamed: where there is one, it is whole."""
        final = self.folder / f"checkpoint-{self.state.global_step}"
        self._staging = self.folder / ".checkpoint"
        written = self._staging / final.name
        if self.args.should_save:
            shutil.rmtree(self._staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        try:
            with full_disk_errors(final):
                super()._save_checkpoint(model, trial)
                if self.args.should_save and (copies := self.teacher.state_dict()):
                    save_file(copies, written / _TEACHER)
            self.accelerator.wait_for_everyone()
            self._name_the_best(written)
            if self.args.should_save:
                shutil.rmtree(final, ignore_errors=True)
                os.replace(written, final)
                self._forget_old_checkpoints()
            self.accelerator.wait_for_everyone()
        finally:
            if self.args.should_save:
                shutil.rmtree(self._staging, ignore_errors=True)
            self._staging = None

    def _name_the_best(self, written: Path) -> None:
        """The best checkpoint by where it will be, also in the state that was written."""
        if Path(self.state.best_model_checkpoint or "").parent == self._staging:
            self.state.best_model_checkpoint = str(self.folder / written.name)
            if self.args.should_save:
                self.state.save_to_json(str(written / TRAINER_STATE_NAME))

    def _forget_old_checkpoints(self) -> None:
        for old in checkpoints(self.folder)[: -(self.args.save_total_limit or 10**9)]:
            shutil.rmtree(old, ignore_errors=True)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *args, **kwargs)
        if (copies := Path(resume_from_checkpoint) / _TEACHER).exists():
            self.teacher.load_state_dict(load_file(copies))

    def _needed_to_resume(self) -> list[str]:
        """Files that a checkpoint must have; weights and optimizers in shards have names of their own."""
        needed = [_TEACHER] if self.teacher.state_dict() else []
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            return needed
        needed.append("adapter_model.safetensors" if isinstance(self.student, PeftModel) else "model.safetensors*")
        return needed + ([] if self.args.save_only_model else ["optimizer.pt", "scheduler.pt", "rng_state*.pth"])

    def close(self) -> None:
        """Let go of what the rollout engine holds beside the model; no more rollouts."""
        self.engine.close()

    def has_begun(self) -> bool:
        """Whether the output folder has a run in it: a step, samples of one, or a checkpoint."""
        stepped = any("grad_norm" in row for row in self.metrics_file)
        return stepped or self.samples_file.path.exists() or bool(checkpoints(self.folder))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train; `resume_from_checkpoint=True` goes on from the newest checkpoint of the output folder.

        A run that has no checkpoint begins anew; what it had recorded is kept beside, in files of other names. A folder
        with a run in it is not overwritten."""
        began = self.has_begun()
        if began and not resume_from_checkpoint:
            raise ConfigError(f"{self.folder} already has a run in it; resume it, or choose another output_dir")
        if not began and resume_from_checkpoint is True:
            raise ConfigError(f"no run in {self.folder} to resume")
        if resume_from_checkpoint is True:
            resume_from_checkpoint = str(newest[0]) if (newest := checkpoints(self.folder)[-1:]) else None
        step = None
        if resume_from_checkpoint:
            checkpoint = Path(resume_from_checkpoint)
            for known in {self.folder, checkpoint.parent}:  # its own run's, where it is another's
                check_same(self.accounts, known / "data.json")
            step = check_checkpoint(checkpoint, self._needed_to_resume())
            # Begun anew, a run also validates anew at its start.
            self.args.eval_on_start = self._lacks_validation(step)
        self.accelerator.wait_for_everyone()  # all have seen what there is
        if began and self.is_world_process_zero():
            for records in (self.metrics_file, self.samples_file):
                if step is not None:
                    records.rewind(step)
                else:
                    records.set_aside()
            for newer in (path for path in checkpoints(self.folder) if step is not None and step_of(path) > step):
                set_aside(newer)  # or the next to go on would take it, whose records are gone
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _lacks_validation(self, step: int) -> bool:
        """Whether the run was stopped after this step before it was validated."""
        every = self.config.validation.every
        made = any(row["step"] == step and any(name.startswith("validation/") for name in row)
                   for row in self.metrics_file)  # fmt: skip
        return bool(self.validation_sets and every) and step % every == 0 and not made


class _StepCallback(TrainerCallback):
    """What happens between Trainer's own steps."""

    def __init__(self, trainer: OPASDTrainer) -> None:
        self.trainer = trainer
        self._stop_clock: Callable[[], None] = lambda: None

    def on_pre_optimizer_step(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.drop_spoiled_gradients()
        self._stop_clock = self.trainer.window.clock("update")

    def on_optimizer_step(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        self._stop_clock()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        self.trainer.teacher.after_step(state.global_step)
        self._stop_if_asked(control)
        if control.should_training_stop and state.global_step < state.max_steps:
            control.should_evaluate = False  # who sent the signal may not wait; it is made when the run goes on
        return control

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        return self._stop_if_asked(control)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        state.compute_steps(args, state.max_steps)  # a resumed run's own intervals, not its checkpoint's
        self.trainer.check()
        account = self.trainer.folder / "data.json"
        if state.is_world_process_zero and (state.global_step == 0 or not account.exists()):
            keep(self.trainer.accounts, account)

    def _stop_if_asked(self, control: TrainerControl) -> TrainerControl:
        if self.trainer.total(self.trainer.stop_requested) > 0:
            control.should_save = control.should_training_stop = self.trainer.stopped = True
        return control


@dataclass
class _Pairs(Dataset[PromptPair]):
    pairs: PromptPairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> PromptPair:
        return self.pairs[index]


def _collate(pairs: list[PromptPair]) -> dict[str, list[PromptPair]]:
    return {"pairs": pairs}


def _never_called(*_: Any, **__: Any) -> Tensor:
    raise AssertionError("compute_loss is overridden")


def _named_sets(eval_dataset: Problems | Mapping[str, Problems] | None) -> dict[str, RunSet]:
    if eval_dataset is None:
        return {}
    named = eval_dataset if isinstance(eval_dataset, Mapping) else {"validation": eval_dataset}
    return {str(name): as_set(problems, solutions=False) for name, problems in named.items()}


@contextmanager
def _told_as(setting: str, value: Any, others: str) -> Iterator[None]:
    """What Trainer cannot make of a setting and the others that go with it, as one message."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        name = getattr(value, "value", value)
        raise ConfigError(
            f"{setting}: {name} cannot be made: {reason}; change it or, in train.extra, {others}"
        ) from error


def _use_liger(model: nn.Module, args: TrainingArguments) -> None:
    """Fused norms, rotary embeddings and activations, where they are asked for. The losses are ours."""
    if not args.use_liger_kernel:
        return
    if args.device.type != "cuda" or not is_liger_kernel_available():
        raise ConfigError("use_liger_kernel needs a GPU and liger-kernel; pip install liger-kernel, or set it to false")
    # Of the rest it has its own list for each family, and refuses what is not on it.
    losses = {"cross_entropy": False, "fused_linear_cross_entropy": False}
    apply_liger_kernel(model, losses | (args.liger_kernel_config or {}))
    args.use_liger_kernel = False  # done; Trainer's own default would replace the model's forward as well


def _settle(args: TrainingArguments, config: OPASDConfig, *, has_validation: bool) -> None:
    """Settings of Trainer that the method decides."""
    every = config.validation.every
    if args.eval_strategy != IntervalStrategy.NO and (
        args.eval_strategy != IntervalStrategy.STEPS or args.eval_steps not in (None, args.logging_steps, every)
    ):
        raise ConfigError("eval_strategy and eval_steps: a run is validated as validation.every says; leave them out")
    args.remove_unused_columns = False
    args.logging_strategy, args.logging_steps, args.logging_first_step = IntervalStrategy.STEPS, 1, False
    args.disable_tqdm = True
    args.dataloader_pin_memory = args.dataloader_pin_memory and args.device.type == "cuda"
    if args.gradient_checkpointing and args.gradient_checkpointing_kwargs is None:
        args.gradient_checkpointing_kwargs = {"use_reentrant": False}
    if has_validation and every:
        args.eval_strategy, args.eval_steps = IntervalStrategy.STEPS, every
    args.eval_on_start = has_validation and config.validation.at_start
    if args.load_best_model_at_end:
        raise ConfigError("load_best_model_at_end is not supported; choose among the checkpoints by metrics.jsonl")
