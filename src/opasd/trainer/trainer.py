"""OPASDTrainer: Algorithm 1 on transformers' Trainer.

    sample a minibatch ─► roll out with the student ─► both roles read the same token ids ─► both losses ─► update

A batch of Trainer is the whole minibatch of one optimizer step. `training_step` rolls it out, sorts the rollouts by
length and runs them in micro-batches of at most so many tokens. The optimizer, schedule, data order, distribution and
trackers are Trainer's. Every step's metrics go to `metrics.jsonl` in the output folder and to any `report_to`.
"""

import copy
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peft import PeftConfig
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerBase,
    PrinterCallback,
    ProcessorMixin,
    ProgressCallback,
    TrainerCallback,
    TrainingArguments,
)

from opasd.analysis.leaks import leak_pattern
from opasd.choices import StopOrSkip
from opasd.config import OPASDConfig, RunConfig
from opasd.data.sets import Columns, Problems
from opasd.errors import ConfigError, NonFiniteError
from opasd.evaluation.answers import answer
from opasd.grading.outside import GradeFunction, path_of, rollout_grader
from opasd.losses.objective import LossOutput, objective_loss
from opasd.losses.terms import LossTerm, MicroBatch, add_terms, terms_of
from opasd.model import lora
from opasd.model.looking import ROLLOUTS, decoder, look_sums
from opasd.model.objective import loss_arguments, teacher_contexts, teacher_scores
from opasd.model.scoring import Layout, Scorer, choose_layout
from opasd.model.teacher import Teacher
from opasd.model.unwrap import unwrap
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.rollout.drift import DriftCheck
from opasd.rollout.engine import Sampler, as_engine
from opasd.rollout.factory import make_engine
from opasd.run.records import Records
from opasd.trainer import setup
from opasd.trainer.arguments import OPASDArguments
from opasd.trainer.balance import Balance
from opasd.trainer.batches import collate, step_size
from opasd.trainer.callbacks import Progress, StepCallback
from opasd.trainer.described import described_run, only_python
from opasd.trainer.memory import Attempts
from opasd.trainer.metrics import StepMetrics, validation_metrics
from opasd.trainer.rollouts import RolloutTrainer

_log = logging.getLogger(__name__)


class OPASDTrainer(RolloutTrainer):
    """Train a model on problems with verified solutions, by on-policy attention self-distillation.

    `train()` writes the folder `args.output_dir`, as `opasd train` does: its configuration, environment, data account,
    metrics, samples, checkpoints, and in `final` the result with a card. `train(resume_from_checkpoint=True)` continues
    it. `evaluate()` answers the validation sets, `push_to_hub()` uploads `final`.

    Args:
        model: A causal language model of transformers or PEFT; or its name: a folder, a hub name, or `lab` for the
            small model of this package.
        args: transformers' TrainingArguments. None: `OPASDArguments()`, which has the paper's values. A step has
            per_device_train_batch_size x gradient_accumulation_steps x processes problems; the run says so first.
        config: The method's settings: prompts, rollouts, teacher, objective, validation.
        train_dataset: Problems with solutions: rows (mappings, `opasd.Problem`s, a `datasets.Dataset`), what
            `opasd.load_problems` returns, or a source by name: a file, a folder, a hub name, a task of this package.
            Rows of TRL's form (`prompt`, `privileged_context`) are taken too.
        eval_dataset: Held-out problems to validate on, of the same kinds, or several such sets by name.
        processing_class: The model's tokenizer, or a processor that has one. None: loaded with a model given by name.
        peft_config: The adapter to train, such as a LoraConfig. None: the model's own trainable weights.
        callbacks: transformers' callbacks.
        engine: An object that samples rollouts, in place of the engine that `config.rollout.engine` names.
        on_bad_row: What to do with a row that cannot be used: `stop` with a message, or `skip` and count it.
        loss_terms: Terms to add to the loss, beside those that `config.objective.terms` names.
        grader: A function (problem, completion) -> bool, or a number from 0 to 1 that counts as right from 0.5 on; it
            must stand at the top of a module. None: `config.grader`.
        run_config: The whole configuration if the run was made from one. None: described from the other arguments.
        columns: Which column of the rows holds what: `{"question": "text", "solution": "proof", "answer": "value"}`,
            or a ColumnConfig. Names that are left out keep their default: `problem`, `solution`, `answer`.
        **kwargs: Further arguments of transformers' Trainer, such as `optimizers`.
    """

    stop_requested = False
    """Set by a signal handler: the run saves a checkpoint after the current step and ends."""
    stopped = False
    """Whether the run ended because a process requested it."""

    def __init__(
        self,
        model: nn.Module | str | os.PathLike[str],
        args: TrainingArguments | None = None,
        config: OPASDConfig | None = None,
        train_dataset: Problems | None = None,
        eval_dataset: Problems | Mapping[str, Problems] | None = None,
        processing_class: PreTrainedTokenizerBase | ProcessorMixin | None = None,
        peft_config: PeftConfig | None = None,
        callbacks: list[TrainerCallback] | None = None,
        engine: Sampler | None = None,
        on_bad_row: StopOrSkip = "stop",
        loss_terms: Sequence[LossTerm] = (),
        grader: GradeFunction | None = None,
        run_config: RunConfig | None = None,
        columns: Columns | None = None,
        **kwargs: Any,
    ) -> None:
        if train_dataset is None:
            raise ConfigError("OPASDTrainer needs a train_dataset: problems with solutions")
        self.config = config or OPASDConfig()
        self.loss_terms = [*terms_of(self.config.objective.terms), *loss_terms]
        given = args or OPASDArguments()
        args = copy.copy(given)  # the caller may use theirs again
        self.student, tokenizer = setup.prepare_model(model, processing_class, peft_config)
        self.lora_layers = lora.speed_up(self.student)
        setup.use_liger(self.student, args)
        self.columns = columns
        self._set_up_data(train_dataset, eval_dataset, tokenizer, given, on_bad_row)
        has_validation = bool(self.data.validation_sets)
        setup.settle_arguments(args, self.config, self.student, validates=has_validation, trains_head=self.trains_head)
        super().__init__(
            model=self.student,
            args=args,
            data_collator=collate,
            train_dataset=self.data.pairs,  # pyright: ignore[reportArgumentType] (it has a length and items)
            eval_dataset=self.data.pairs[:1] if has_validation else None,  # pyright: ignore[reportArgumentType]
            processing_class=tokenizer,
            callbacks=[*(callbacks or []), StepCallback(self)],
            **kwargs,
        )
        setup.check_sharding(self, self.config.on_non_finite, offload=self.config.teacher.offload)
        self.current_gradient_accumulation_steps = 1  # Trainer's loop sets it; a step outside the loop needs it too
        self.remove_callback(ProgressCallback)
        self.remove_callback(PrinterCallback)
        self.add_callback(Progress())
        self._set_up_records(grader)
        self.only_python: list[str] | None = None
        """For a run made in Python: what it has that no configuration can say."""
        if run_config is None:  # else a command has said its warnings
            run_config = self._describe(given, grader)
            self.only_python = only_python(
                self.student, self.data, loss_terms=loss_terms, engine=engine, callbacks=callbacks or [],
                arguments=kwargs,
            )  # fmt: skip
        self.run_config = run_config
        """The run's whole configuration, which its folder and its card hold."""
        self._set_up_roles(engine, tokenizer)

    def _set_up_data(
        self,
        train_dataset: Problems,
        eval_dataset: Problems | Mapping[str, Problems] | None,
        tokenizer: PreTrainedTokenizerBase,
        args: TrainingArguments,
        on_bad_row: StopOrSkip,
    ) -> None:
        """Make every problem's contexts, and check that they fit the model with a rollout."""
        self.builder = PromptBuilder(tokenizer, self.config.prompts)
        self.data = setup.prepare_data(train_dataset, eval_dataset, self.builder, self.config, on_bad_row, self.columns)
        self.step_size = step_size(args, self.config, self.data.pairs)
        """What a step has, in words."""
        setup.check_contexts(self.student, tokenizer, self.data.pairs, self.config.rollout.max_new_tokens)

    def _set_up_records(self, grader: GradeFunction | None) -> None:
        """Name the run's files, and prepare what is measured for them."""
        self.folder = Path(str(self.args.output_dir))
        self.metrics_file = Records(self.folder / "metrics.jsonl")
        self.samples_file = Records(self.folder / "samples.jsonl")
        self.step_metrics = StepMetrics(
            self.student,
            checkpointing=self.args.gradient_checkpointing,
            grader=rollout_grader(grader or self.config.grader),
            leak=leak_pattern(self.config.prompts),
        )

    def _describe(self, args: TrainingArguments, grader: GradeFunction | None) -> RunConfig:
        """Warn about the settings, and return the configuration that says the same as the objects given."""
        for warning in self.config.objective.warnings():
            _log.warning("%s", warning)
        if grader is not None:
            self.config = self.config.model_copy(update={"grader": path_of(grader)})
        return described_run(self.student, args, self.config, self.data, self.folder)

    def _set_up_roles(self, engine: Sampler | None, tokenizer: PreTrainedTokenizerBase) -> None:
        """Make the teacher, the engine that samples from the student, and the check that both sample alike."""
        self.teacher = Teacher(self.student, self.config.teacher)
        self.balance = Balance(self)
        rollout = self.config.rollout
        limits = [rollout.max_new_tokens]
        if self.data.validation_sets:
            limits.append(self.config.validation.sampling.max_new_tokens)
        if engine is None:
            longest = self.config.prompts.max_student_tokens + max(limits)
            engine = make_engine(rollout, self.student, tokenizer, longest=longest)
        self.engine = as_engine(engine)
        if rollout.ahead and not self.engine.runs_ahead:
            raise ConfigError(
                "rollout.ahead: 1 needs an engine that samples elsewhere; use rollout.engine: vllm_server"
            )
        self.half = self.args.bf16 or self.args.fp16 or unwrap(self.student).dtype.itemsize == 2
        self.drift = DriftCheck(self.student, rollout.drift, half=self.half or self.engine.half_precision)
        self._scoring: tuple[Scorer, Layout] | None = None

    # ---- one optimizer step -----------------------------------------------------------------------------------------

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Do one step of Algorithm 1 up to the update: sample, judge in both roles, add the losses' gradients."""
        rollouts = self.exchanged(self.roll_out(self.own_pairs(inputs["pairs"], self.state.global_step)))
        count = self.total(sum(rollout.num_tokens > 0 for rollout in rollouts))
        # Processes average their gradients, so each divides by their mean number of rollouts.
        num_rollouts = max(count / self.accelerator.num_processes, 1e-9)
        # A process without a problem of its own takes part in the exchange of gradients with an empty rollout.
        rollouts = rollouts or [Rollout(inputs["pairs"][0], (), "none")]
        with self.step_metrics.timed("update"):
            _, layout = self._scorer(model)
            attempts = Attempts(self, rollouts, num_rollouts, packed=layout == "packed")
            loss = torch.zeros((), device=self.args.device)
            while not attempts.finished:
                with attempts.recovering(), closing(self.balance.passes(loss)) as passes:
                    for alone in passes:
                        loss.zero_()
                        for group, is_last in attempts.groups():
                            # Processes exchange gradients after the last micro-batch; before it, each adds them up.
                            self.accelerator.sync_gradients = is_last  # DeepSpeed's engine reads it in its backward
                            batch = {"rollouts": group, "num_rollouts": attempts.num_rollouts, "attention_alone": alone}
                            with nullcontext() if is_last else self.accelerator.no_sync(model):
                                loss += super().training_step(model, batch)
        return loss

    def teacher_lengths(self, rollout: Rollout) -> list[int]:
        """Return the tokens of each sequence in which the teacher reads a rollout."""
        read = teacher_contexts(rollout, self.config.objective, everything=bool(self.loss_terms))
        return [len(context.teacher_ids) for context in read]

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor | tuple[Tensor, LossOutput | None]:
        """Return a micro-batch's part of the minibatch's loss; with `return_outputs`, its metrics and readings too."""
        rollouts, alone = inputs["rollouts"], inputs.get("attention_alone", False)
        objective = self.balance.attention_alone if alone else self.balance.objective
        terms = [] if alone else self.loss_terms
        scorer, layout = self._scorer(model)
        settings: dict[str, Any] = {"query": objective.attention.query, "layout": layout, "deferred": True}
        with self.step_metrics.timed("teacher"), self.teacher.judging():
            teacher = teacher_scores(scorer, rollouts, objective, everything=bool(terms), **settings)
        with self.step_metrics.timed("student"):
            student = scorer(rollouts, "student", **settings)
            try:
                arguments = loss_arguments(rollouts, objective, align_always=bool(terms))
                output = objective_loss(student, teacher, **arguments, num_rollouts=inputs["num_rollouts"])
                if terms:
                    batch = MicroBatch(rollouts, arguments["alignments"], student, teacher, output.readings)
                    output = add_terms(output, terms, batch, inputs["num_rollouts"])
                if self.trains_head and not (objective.token_weight > 0 and any(student.lengths)):
                    # Here nothing may read the output head, and other processes wait for its gradient.
                    output = replace(output, loss=output.loss + student.head.zero())
            except NonFiniteError as error:
                scorer.settle()
                loss = self._non_finite(rollouts, str(error), student)
                return (loss, None) if return_outputs else loss
            if objective.attends and not alone:
                few = slice(max(0, ROLLOUTS - int(self.step_metrics.sums["looked/rollouts"])))
                some = rollouts[few], student, teacher, arguments["alignments"][few]
                self.step_metrics.add(look_sums(*some, decoder(self.processing_class)))
        scorer.settle()  # the loss has waited for the device already
        self.step_metrics.add(output.metrics)
        return (output.loss, output) if return_outputs else output.loss

    def _scorer(self, model: nn.Module) -> tuple[Scorer, Layout]:
        """Return what reads the model in both roles and how rollouts share a forward; made before the first step."""
        if self._scoring is None:
            objective = self.config.objective
            devices = [torch.cuda.current_device()] if self.args.device.type == "cuda" else []
            with torch.random.fork_rng(devices):  # dropout in its probe must not move a resumed run's random numbers
                captures = objective.attends or self.loss_terms
                layers = objective.attention.layers if captures else 0
                swaps = self.config.teacher.offload
                scorer = Scorer(model, layers, offload=self.config.offload_activations, swaps_in_place=swaps)
                scorer.check_causal()
                layout = choose_layout(scorer, self.config.layout, device=self.args.device, half=self.half)
            self._scoring = scorer, layout
        return self._scoring

    @property
    def trains_head(self) -> bool:
        """Whether the loss of a step may have a gradient for the output head."""
        return self.config.objective.token_weight > 0 or bool(self.loss_terms)

    def check(self) -> None:
        """Refuse an objective that cannot be computed here, before anything is sampled or written for it."""
        setup.check_kernels(self.config.objective, self.args.device)
        self.balance.check()
        assert isinstance(self.model_wrapped, nn.Module)
        self._scorer(self.model_wrapped)

    # ---- records ----------------------------------------------------------------------------------------------------

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Add the step's own metrics to what Trainer logs for it, and keep them in metrics.jsonl."""
        if "grad_norm" in logs:
            counts = {f"prompts/{name}": count for name, count in self.data.prompt_report.to_dict().items()}
            metrics = self.step_metrics.finish(logs, skipped=self.step_spoiled)
            self.step_spoiled = False
            # Trainer keeps every step's row: names that rows share are held once.
            logs = {sys.intern(name): value for name, value in {**metrics, **counts}.items()}
            logs["epoch"] = self.state.epoch or 0.0
            if self.is_world_process_zero():
                self.metrics_file.append({"step": self.state.global_step, **logs})
        super().log(logs, *args, **kwargs)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Answer the validation sets, or `eval_dataset`, with the current weights; return Avg@k and lengths of each."""
        settings, metrics = self.config.validation, {}
        sets = self.data.validation_sets if eval_dataset is None else setup.named_sets(eval_dataset, self.columns)
        assert isinstance(self.processing_class, PreTrainedTokenizerBase)
        for name, problems in sets.items():
            own_problems = problems[self.accelerator.process_index :: self.accelerator.num_processes]
            with self._whole_student(needed=self.engine.runs_student):
                answers = answer(
                    own_problems, self.engine, self.builder, self.processing_class, settings.sampling,
                    samples=settings.samples, seed=settings.seed, thinking=settings.thinking,
                    grader=self.step_metrics.grader,
                )  # fmt: skip
            metrics |= validation_metrics(name, answers, settings.samples, self.step_metrics.leak)
        if self.is_world_process_zero():
            self.metrics_file.append({"step": self.state.global_step, **metrics})
        super().log(dict(metrics))
        metrics |= {f"eval_{name}": value for name, value in metrics.items()}  # the names that Trainer looks for
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def close(self) -> None:
        """Release what the rollout engine holds beside the model; no rollouts after this."""
        self.engine.close()
