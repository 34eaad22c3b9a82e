"""The rollouts of a step: whose turn they are, who samples and who judges them, and how far behind their weights are.

A step's problems are the same for any number of processes. Each process samples a share of them, chosen so that the
shares' prompts are about as long. Then rollouts change hands, so that each process judges about as many tokens.

With `rollout.ahead: 1` the rollouts of the next step are sampled on servers while this step updates the weights. They
come from weights that are one step old. A checkpoint holds the rollouts that wait for their step.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object
from torch import nn

from opasd.files import read_object
from opasd.model.sharding import divided, gathered
from opasd.prompts.contexts import PromptPair
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.rollout.drift import DriftCheck
from opasd.rollout.engine import Completion, RolloutEngine, derive_seed
from opasd.trainer.batches import share, without_repeats
from opasd.trainer.metrics import StepMetrics, sample_rows
from opasd.trainer.resuming import ResumableTrainer

AHEAD = "ahead.json"
"""The file of a checkpoint with the next step's rollouts."""
Item = TypeVar("Item")
Sample = tuple[int, PromptPair, int]
"""The place of a problem in its step, the problem, and the number of a rollout of it."""


class RolloutTrainer(ResumableTrainer):
    """A Trainer that samples the rollouts of each step."""

    engine: RolloutEngine
    builder: PromptBuilder
    drift: DriftCheck
    step_metrics: StepMetrics
    _drawn: tuple[Any, tuple[list[Any], Any]] | None = None
    """The data's iterator, and the batch that was taken from it for the next step."""
    _begun: tuple[int, list[Sample]] | None = None
    """The step whose rollouts are being sampled ahead, and what they are."""
    _kept: tuple[int, dict[tuple[str, int], Completion]] | None = None
    """The step whose rollouts lie ready, by problem and number."""

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Any]:
        """Return the step's minibatch, or nothing if the run is over; look at the next one if rollouts run ahead."""
        if self.state.global_step >= self.state.max_steps:  # resumed from the last checkpoint
            self.control.should_training_stop = True
        if self.control.should_training_stop:  # also by a signal during the first validation
            return [], None
        drawn, self._drawn = self._drawn, None
        if drawn is not None and drawn[0] is epoch_iterator:
            batch = drawn[1]
        else:
            batch = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.config.rollout.ahead:
            self._drawn = epoch_iterator, super().get_batch_samples(epoch_iterator, num_batches, device)
        return batch

    def roll_out(self, pairs: list[PromptPair]) -> list[Rollout]:
        """Sample completions of the problems with the student, and record them."""
        step = self.state.global_step
        with self.step_metrics.timed("rollout"):
            samples, completions, behind = self._sampled(step, pairs)
            self._begin_next(step + 1)
            self._compare(samples, completions, behind)
        rollouts = [
            Rollout(pair, completion.ids, f"step {step + 1}, {pair.problem.id}, sample {number}")
            for (_, pair, number), completion in zip(samples, completions, strict=True)
        ]
        verdicts = self.step_metrics.add_rollouts(rollouts, completions, self.processing_class, self.teacher_lengths)
        self._save_samples(samples, rollouts, completions, verdicts)
        return [replace(rollout, correct=right) for rollout, right in zip(rollouts, verdicts, strict=True)]

    def exchanged(self, rollouts: list[Rollout]) -> list[Rollout]:
        """Return the rollouts that this process judges, so that all processes have about as many tokens."""
        if self.accelerator.num_processes == 1:
            return rollouts
        return self._share(rollouts, lambda rollout: len(rollout.student_ids) + sum(self.teacher_lengths(rollout)))

    def teacher_lengths(self, rollout: Rollout) -> list[int]:
        """Return the tokens of each sequence in which the teacher reads a rollout."""
        return [len(rollout.teacher_ids)]

    def _share(self, own: Sequence[Item], length: Any) -> list[Item]:
        everything = gather_object(list(own))
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return [everything[n] for n in share([length(item) for item in everything], rank, world)]

    def _sampled(self, step: int, pairs: list[PromptPair]) -> tuple[list[Sample], list[Completion], int]:
        """Return this process's samples of a step, their completions, and how many steps their weights are behind."""
        begun, self._begun = self._begun, None
        kept, self._kept = self._kept, None
        if begun is not None and begun[0] == step:
            completions = self.engine.collect()
            return begun[1], completions, 1
        samples = self._samples(pairs)
        if self.config.rollout.source == "solution":
            return samples, [self._solution(pair) for _, pair, _ in samples], 0
        if kept is not None and kept[0] == step:
            return samples, [kept[1][pair.problem.id, number] for _, pair, number in samples], 1
        measured = self.drift.measured(step)
        with self._whole_student(needed=self.engine.runs_student):
            completions = self.engine.generate(*self._requests(step, samples), measured=measured)
        return samples, completions, 0

    def _solution(self, pair: PromptPair) -> Completion:
        """Return the solution of a problem in the place of a sample, cut at the longest completion."""
        ids, longest = self.builder.solution_ids(pair.problem), self.config.rollout.max_new_tokens
        return Completion(ids[:longest], "stop" if len(ids) <= longest else "length")

    def _samples(self, pairs: list[PromptPair]) -> list[Sample]:
        """Return this process's samples of a step of which it was dealt `pairs`."""
        places = [(0, pair) for pair in pairs]
        if self.accelerator.num_processes > 1:
            places = gather_object(places)
        places = [(place, pair) for place, (_, pair) in enumerate(places)]
        mine = share([len(pair.teacher_ids) for _, pair in places], self.accelerator.process_index,
                     self.accelerator.num_processes)  # fmt: skip
        count = self.config.rollout.rollouts_per_problem
        return [(*places[n], number) for n in mine for number in range(count)]

    def _requests(self, step: int, samples: list[Sample]) -> tuple[list[Any], Any, list[int]]:
        """Return prompts, settings and seeds."""
        seeds = [derive_seed(self.args.seed, step, pair.problem.id, number) for _, pair, number in samples]
        return [pair.student_ids for _, pair, _ in samples], self.config.rollout, seeds

    def _begin_next(self, step: int) -> None:
        """Let servers sample the rollouts of the next step, if it belongs to the same epoch."""
        batches = self._drawn[1][0] if self._drawn is not None else []
        if not batches or step >= self.state.max_steps or self.config.rollout.source == "solution":
            return
        samples = self._samples(self.own_pairs(batches[0]["pairs"], step))
        often = not divided(self.student)  # to gather all weights for it takes time
        measured = self.drift.config.rollouts if often and self.drift.config.every else self.drift.measured(step)
        self.engine.begin(*self._requests(step, samples), measured=measured)
        self._begun = step, samples

    def _compare(self, samples: list[Sample], completions: list[Completion], behind: int) -> None:
        """Compare the log-probabilities of the engine's weights with those of the current ones."""
        prompts = [pair.student_ids for _, pair, _ in samples]
        if self.config.rollout.ahead:
            self.step_metrics.add({"rollout/steps_behind": float(behind)})
        compares = self.total(any(completion.logprobs for completion in completions)) > 0
        with self._whole_student(needed=compares):
            if behind:
                gaps = self.drift.log_ratios(prompts, completions)
                tokens = self.total(len(gaps)) / self.accelerator.num_processes
                if tokens:
                    # (r − 1) − log r, whose mean is KL(sampling ‖ current) without the noise of −log r.
                    divergence = (gaps.exp() - 1 - gaps).sum()
                    means = {"rollout/log_ratio": gaps.sum() / tokens, "rollout/stale_kl": divergence / tokens}
                    self.step_metrics.add({name: float(value) for name, value in means.items()})
            elif (drift := self.drift(prompts, completions)) is not None:
                self.step_metrics.add(drift.metrics())

    def _whole_student(self, *, needed: bool) -> AbstractContextManager[None]:
        """Hold the student's weights whole in a block in which processes compute with it on their own."""
        assert isinstance(self.model_wrapped, nn.Module)
        return gathered(self.model_wrapped) if needed else nullcontext()

    def own_pairs(self, pairs: list[PromptPair], step: int) -> list[PromptPair]:
        """Return this process's problems of a step, each once in an epoch if accelerate deals batches in turn."""
        args, accelerator = self.args, self.accelerator
        dealt_otherwise = (accelerator.split_batches, accelerator.dispatch_batches, args.ignore_data_skip)
        if any(dealt_otherwise) or args.dataloader_drop_last:
            return pairs
        return without_repeats(
            pairs, step, process=accelerator.process_index, processes=accelerator.num_processes,
            batch_size=args.train_batch_size, num_problems=len(self.data.pairs),
        )  # fmt: skip

    def _save_samples(
        self,
        samples: list[Sample],
        rollouts: list[Rollout],
        completions: list[Completion],
        verdicts: list[bool | None],
    ) -> None:
        """Record completions of every so many steps: some of all processes', spread over the step's problems."""
        every, step = self.config.save_samples_every, self.state.global_step + 1
        if not every or (step - 1) % every:
            return
        together = self.accelerator.num_processes > 1
        own = [(place, number) for place, _, number in samples]
        places = sorted(gather_object(own) if together else own)
        count = min(self.config.saved_samples, len(places))
        chosen = {places[n * len(places) // count] for n in range(count)}
        kept = [n for n, place in enumerate(own) if place in chosen]
        saved = sample_rows(
            step, [rollouts[n] for n in kept], [completions[n] for n in kept], [verdicts[n] for n in kept],
            self.processing_class,
        )  # fmt: skip
        rows = [(own[n], row) for n, row in zip(kept, saved, strict=True)]
        rows = gather_object(rows) if together else rows
        if self.is_world_process_zero():
            self.samples_file.append(*(row for _, row in sorted(rows, key=lambda row: row[0])))

    # ---- rollouts that wait for their step, in checkpoints ----------------------------------------------------------

    def keep_rollouts(self, folder: Path) -> None:
        """Write the rollouts that were begun for the next step, once they are there; a run that is stopped drops them.

        All processes must call this."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        step, samples = begun
        if self.stopped:
            self.engine.abandon()
            return
        names = [(pair.problem.id, number) for _, pair, number in samples]
        rows = [(*name, vars(done)) for name, done in zip(names, self.engine.collect(), strict=True)]
        rows = gather_object(rows) if self.accelerator.num_processes > 1 else rows
        self._keep(step, rows)
        if self.args.should_save:
            (folder / AHEAD).write_text(json.dumps({"step": step, "rollouts": rows}), encoding="utf-8")

    def take_rollouts(self, folder: Path) -> None:
        """Take the next step's rollouts from a checkpoint."""
        if (folder / AHEAD).exists():
            saved = read_object(folder / AHEAD)
            self._keep(saved["step"], saved["rollouts"])

    def _keep(self, step: int, rows: list[Any]) -> None:
        def read(ids: list[int], finish_reason: Any, logprobs: list[float] | None) -> Completion:
            return Completion(tuple(ids), finish_reason, None if logprobs is None else tuple(logprobs))

        self._kept = step, {(problem, number): read(**values) for problem, number, values in rows}
