"""The metrics of one optimizer step, from its rollouts, losses and clocks, and those of a validation.

Names: `rollout/…` of the sampled completions, `token/…` and `attention/…` of the losses, `seconds/…`, `tokens/…`,
`flops/…`. Everything is a mean over the minibatch's rollouts unless its name says otherwise.
"""

import re
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import nn

from opasd.analysis.markers import count_markers
from opasd.choices import FinishReason
from opasd.evaluation.answers import Answer, readable, thinking_prefix
from opasd.evaluation.scores import pass_at_k
from opasd.grading.outside import MATH, RolloutGrader, rollout_grader
from opasd.model.cost import CostModel
from opasd.model.looking import RATIOS
from opasd.prompts.rollout import Rollout
from opasd.rollout.engine import Completion


class StepMetrics:
    """Collect the readings of one optimizer step on one process, and reduce them over all processes."""

    def __init__(
        self,
        model: nn.Module,
        *,
        checkpointing: bool,
        grader: RolloutGrader | None = None,
        leak: re.Pattern[str] | None = None,
    ) -> None:
        self.grader = grader or rollout_grader(MATH)
        self.leak = leak
        """Matches an answer that speaks of the teacher's context."""
        self._cost = CostModel.of(model, checkpointing=checkpointing)
        self._start_step()

    def _start_step(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._events: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self.sums: Counter[str] = Counter()
        self._rows: list[dict[str, Any]] = []
        self.passes = 1
        """How often the update has gone over the step's rollouts."""
        self._started = perf_counter()

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Add the block's wall time to `part`."""
        stop = self.clock(part)
        try:
            yield
        finally:
            stop()

    def clock(self, part: str) -> Callable[[], None]:
        """Start a clock for `part` and return the function that stops it; a GPU's clock is read when the step ends."""
        if torch.cuda.is_initialized():
            first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            first.record()

            def stop() -> None:
                last.record()
                self._events.append((part, first, last))
        else:
            begin = perf_counter()

            def stop() -> None:
                self._seconds[part] += perf_counter() - begin

        return stop

    def add_rollouts(
        self,
        rollouts: list[Rollout],
        completions: list[Completion],
        tokenizer: Any,
        teacher_lengths: Callable[[Rollout], list[int]] = lambda rollout: [len(rollout.teacher_ids)],
    ) -> list[bool | None]:
        """Record the step's rollouts; return whether each is right, or None if its problem has no answer.

        `teacher_lengths` says how long the sequences are in which the teacher reads a rollout.
        """
        texts = [readable(tokenizer, rollout.completion_ids) for rollout in rollouts]
        prefixes = [thinking_prefix(tokenizer, rollout.pair.student_ids) for rollout in rollouts]
        attempts = [(r.pair.problem, prefix + text) for r, prefix, text in zip(rollouts, prefixes, texts, strict=True)]
        verdicts = list(self.grader(attempts))
        for rollout, completion, text, verdict in zip(rollouts, completions, texts, verdicts, strict=True):
            row = _row(text, rollout.num_tokens, completion.finish_reason, verdict, self.leak)
            self._rows.append(row | {"student": len(rollout.student_ids), "teacher": teacher_lengths(rollout)})
        return verdicts

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add readings of this process: its share of the minibatch's mean. The step's are their mean over processes."""
        self.sums.update(metrics)

    def finish(self, logs: Mapping[str, float], *, skipped: bool) -> dict[str, float]:
        """Return the step's metrics over all processes, and start the next step."""
        gathered = gather_object([(self._rows, dict(self.sums), self._parts(), _peak_memory())])
        rows = [row for part, *_ in gathered for row in part]
        count = len(gathered)
        metrics: dict[str, float] = {"loss": logs["loss"]}
        names = dict.fromkeys(name for _, sums, *_ in gathered for name in sums if name != "loss")
        metrics |= {name: sum(sums.get(name, 0.0) for _, sums, *_ in gathered) / count for name in names}
        for name, (above, below) in _RATIOS.items():
            if above in metrics and metrics[below]:
                metrics[name] = metrics[above] / metrics[below]
        metrics = {name: value for name, value in metrics.items() if name not in _SUMS}
        metrics |= {"grad_norm": float(logs["grad_norm"]), "learning_rate": logs["learning_rate"]}
        metrics |= self._rollout_metrics(rows)
        seconds = {name: max(parts[name] for *_, parts, _ in gathered) for name in _PARTS}
        seconds["step"] = perf_counter() - self._started
        metrics |= {f"seconds/{name}": value for name, value in seconds.items()}
        processed = sum(row["student"] + sum(row["teacher"]) for row in rows)
        spent = seconds["teacher"] + seconds["student"] + seconds["update"]
        metrics["ms_per_processed_token"] = 1000 * spent * count / max(processed, 1)
        metrics["memory/peak_bytes"] = max(memory for *_, memory in gathered)
        flops = self._cost.step([row["student"] for row in rows], [n for row in rows for n in row["teacher"]])
        metrics |= {f"flops/{name}": v * (1 if name == "rollout" else self.passes) for name, v in flops.items()}
        metrics["tokens/processed"] = processed
        metrics["skipped"] = float(skipped)
        self._start_step()
        return metrics

    def _parts(self) -> dict[str, float]:
        """Return the seconds of each part on this process; the update's are without the teacher's and the student's."""
        if self._events:
            torch.cuda.synchronize()
        for part, first, last in self._events:
            self._seconds[part] += first.elapsed_time(last) / 1000
        parts = {name: self._seconds[name] for name in _PARTS}
        parts["update"] = max(parts["update"] - parts["teacher"] - parts["student"], 0.0)
        return parts

    def _rollout_metrics(self, rows: list[dict[str, Any]]) -> dict[str, float]:
        lengths = [row["tokens"] for row in rows] or [0]
        graded = [row["correct"] for row in rows if row["correct"] is not None]
        tokens = sum(lengths)
        metrics = {
            "rollout/length_mean": statistics.fmean(lengths),
            "rollout/length_median": float(statistics.median(lengths)),
            "rollout/length_max": max(lengths),
            "rollout/truncated": statistics.fmean(row["truncated"] for row in rows) if rows else 0.0,
            "rollout/markers": statistics.fmean(row["markers"] for row in rows) if rows else 0.0,
            "rollout/markers_per_1000": 1000 * sum(row["markers"] for row in rows) / max(tokens, 1),
            "tokens/generated": tokens,
        }
        if graded:
            metrics["rollout/accuracy"] = statistics.fmean(graded)
        if self.leak and rows:
            metrics["rollout/leaks"] = statistics.fmean(row["leak"] for row in rows)
        return metrics


_PARTS = ("rollout", "teacher", "student", "update")
_RATIOS = {"token/clip_alignment": ("token/clip_inner", "token/gradient_square"), **RATIOS}
"""Quotients of a whole step's sums: ⟨g_clip, g⟩ / |g|², and where both roles look. A mean of the tokens' own quotients
would be that of the smallest ones."""
_SUMS = {"looked/rollouts", *(name for sums in _RATIOS.values() for name in sums)}


def validation_metrics(
    name: str, answers: list[Answer], samples: int, leak: re.Pattern[str] | None = None
) -> dict[str, float]:
    """Return Avg@k of one validation set, Pass@j for every j ≤ k, lengths, markers and leaks.

    Avg@k is over the problems with an answer. Its standard error is over problems, because the samples of a problem
    are not independent.
    """
    rows = [{"problem": a.problem_id} | _row(a.text, len(a.ids), a.finish_reason, a.correct, leak) for a in answers]
    gathered = gather_object(rows)
    verdicts: defaultdict[str, list[bool]] = defaultdict(list)
    for row in gathered:
        if row["correct"] is not None:
            verdicts[row["problem"]].append(row["correct"])
    tokens, markers = ([row[name] for row in gathered] for name in ("tokens", "markers"))
    shares = [statistics.fmean(of_problem) for of_problem in verdicts.values()]
    measured: dict[str, list[float]] = {
        f"avg@{samples}": [correct for of_problem in verdicts.values() for correct in of_problem],
        "stderr": [statistics.stdev(shares) / len(shares) ** 0.5] if len(shares) > 1 else [],
        "length_mean": tokens,
        "truncated": [row["truncated"] for row in gathered],
        "markers_per_1000": [1000 * sum(markers) / sum(tokens)] if sum(tokens) else [],
        "leaks": [row["leak"] for row in gathered] if leak else [],
    }
    if samples > 1:
        measured |= {
            f"pass@{k}": [pass_at_k(sum(of_problem), len(of_problem), k) for of_problem in verdicts.values()]
            for k in range(1, samples + 1)
            if all(len(of_problem) >= k for of_problem in verdicts.values())
        }
    return {f"validation/{name}/{measure}": statistics.fmean(values) for measure, values in measured.items() if values}


def sample_rows(
    step: int, rollouts: list[Rollout], completions: list[Completion], verdicts: list[bool | None], tokenizer: Any
) -> list[dict[str, Any]]:
    """Return the rows of samples.jsonl for a step's rollouts."""
    return [
        {
            "step": step,
            "id": rollout.id,
            "question": rollout.pair.problem.question,
            "answer": rollout.pair.problem.answer,
            "completion": tokenizer.decode(list(rollout.completion_ids), skip_special_tokens=True),
            "completion_ids": list(rollout.completion_ids),
            "finish_reason": completion.finish_reason,
            "correct": correct,
        }
        for rollout, completion, correct in zip(rollouts, completions, verdicts, strict=True)
    ]


def _row(
    text: str, num_tokens: int, finish_reason: FinishReason, correct: bool | None, leak: re.Pattern[str] | None
) -> dict[str, Any]:
    """Return the numbers that the metrics count for a completion."""
    return {
        "tokens": num_tokens,
        "truncated": finish_reason == "length",
        "correct": correct,
        "markers": count_markers(text).total(),
        "leak": leak is not None and leak.search(text) is not None,
    }


def _peak_memory() -> int:
    """Return peak device memory in bytes, or peak resident memory if no device is in use."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated()
    import resource

    # Linux counts in KiB, macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
