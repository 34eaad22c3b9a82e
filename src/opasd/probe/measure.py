"""Measure whether a student has something to learn: an untrained model in both roles on a recipe's held-out problems.

The student answers each problem several times and the teacher once. Then both read the student's answers, as in
training but without gradients. The student learns from how the teacher judges its tokens, and not from how many
problems the teacher solves: the log ratio log p_teacher(y_t) − log p_student(y_t) at temperature 1, averaged over an
answer's tokens, should be higher for right answers than for wrong ones. As a control, both read the answers again with
another problem's solution in view. This separates the solution's effect from two others: likely answers are more often
right, and the teacher's prompt may make a better solver by itself.
"""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opasd.analysis.leaks import leak_pattern
from opasd.analysis.preference import tenths, top_share
from opasd.choices import FinishReason, Role
from opasd.config import DataConfig, OPASDConfig, RunConfig
from opasd.data.sets import load_set
from opasd.errors import AlignmentError, CaptureError, ConfigError, PromptError
from opasd.evaluation.answers import readable, thinking_prefix
from opasd.grading.outside import RolloutGrader, rollout_grader
from opasd.losses.token import log_probabilities
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.objective import opasd_loss, teacher_scores
from opasd.model.scoring import Scorer, choose_layout, microbatches
from opasd.progress import SampleProgress
from opasd.prompts.contexts import PromptPair
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout
from opasd.rollout.drift import DriftCheck
from opasd.rollout.engine import Completion, derive_seed
from opasd.rollout.factory import make_engine
from opasd.trainer.session import training_arguments

IN_TENTHS = ("log_ratio", "divergence", "attention_divergence")
"""The measures of which a trajectory has a sum for each tenth of its tokens."""


@dataclass(frozen=True)
class HeldOutProblem:
    """A problem in both contexts, and the section of the configuration that it comes from."""

    section: str
    pair: PromptPair
    source: str = ""
    """The data source of that section."""


Attempt = tuple[HeldOutProblem, int]
"""A problem and the number of the answer to it."""


@dataclass(frozen=True)
class GradedAnswer:
    """One answer of one role."""

    section: str
    problem: str
    sample: int
    correct: bool
    finish_reason: FinishReason
    tokens: int
    leaks: bool | None
    """Whether it mentions what only the teacher sees; None if the teacher's wording has no telltale phrase."""


@dataclass(frozen=True)
class Trajectory(GradedAnswer):
    """An answer of the student as both roles read it: means over its tokens, and sums over each tenth of them."""

    log_ratio: float
    divergence: float
    """The token divergence before clipping."""
    top_share: float
    """The share of the divergence that the 10 % largest tokens hold."""
    clipped: float
    attention_divergence: float | None
    solution_mass: float | None
    """ρ."""
    control: float | None
    """`log_ratio` with another problem's reference in the teacher's context; None if there is no such problem."""
    tenths: dict[str, list[float]]
    """Ten sums, in nats, of `log_ratio`, `divergence` and, if measured, `attention_divergence` and `control`. They add
    up to the mean times the number of tokens. Empty for an answer of fewer than ten tokens."""


@dataclass(frozen=True)
class Probe:
    """The measured answers, by problem."""

    student: list[list[Trajectory]]
    teacher: list[GradedAnswer]
    rollouts: list[Rollout] = field(default_factory=list)
    """The student's answers, one problem's after another's."""

    def to_dict(self) -> dict[str, Any]:
        """Return all rows as JSON types."""
        return {
            "rows": [asdict(row) for rows in self.student for row in rows],
            "teacher_rows": [asdict(row) for row in self.teacher],
        }


@dataclass(frozen=True)
class Setup:
    """What a probe works on."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    builder: PromptBuilder
    problems: list[HeldOutProblem]
    precision: torch.dtype | None
    """The number format of mixed precision, if it is used."""


def set_up(config: RunConfig, count: int, say: Callable[[str], None]) -> Setup:
    """Load the model and the first `count` problems."""
    arguments = training_arguments(config.train, Path(config.output_dir))
    tokenizer = load_tokenizer(config.model)
    builder = PromptBuilder(tokenizer, config.prompts)
    problems = held_out(config, builder, count, say)
    model = load_model(config.model).eval().requires_grad_(False)
    if not getattr(model, "is_quantized", False):
        torch.nn.Module.to(model, arguments.device)
    precision = torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else None
    return Setup(model, tokenizer, builder, problems, precision)


def probe(
    config: RunConfig, setup: Setup, *, samples: int, progress: SampleProgress, part: slice = slice(None)
) -> Probe:
    """Measure `samples` answers of the student to each problem of the part, and one of the teacher."""
    model, tokenizer, problems, precision = setup.model, setup.tokenizer, setup.problems[part], setup.precision
    attempts: dict[Role, list[Attempt]] = {
        "student": [(problem, number) for problem in problems for number in range(samples)],
        "teacher": [(problem, 0) for problem in problems],
    }
    completions = _sample(config, model, tokenizer, attempts, progress)
    rollouts = [
        Rollout(problem.pair, completion.ids, f"{problem.section}, {problem.pair.problem.id}, sample {number}")
        for (problem, number), completion in zip(attempts["student"], completions["student"], strict=True)
    ]
    progress.say(f"both roles read the student's {len(rollouts)} answers")
    readings = judge_if_possible(model, rollouts, config, precision, progress)
    others = with_others_references(setup.builder, [problem.pair for problem in setup.problems])
    others = [pair for pair in others[part] for _ in range(samples)]
    controls = {n: replace(rollouts[n], pair=pair) for n, pair in enumerate(others) if pair is not None}
    progress.say("both roles read them again, with another problem's reference")
    progress.begin(len(controls), 0)
    judged = judge(model, list(controls.values()), config, attention=False, precision=precision, progress=progress)
    for n, control in zip(controls, judged, strict=True):
        readings[n]["control"] = control["log_ratio"]
    leak, grader = leak_pattern(config.prompts), rollout_grader(config.grader)
    student, teacher = (
        grade(tokenizer, tries, role, completions[role], leak, grader) for role, tries in attempts.items()
    )
    rows = [Trajectory(**asdict(own), **measures(reading)) for own, reading in zip(student, readings, strict=True)]
    return Probe([rows[start : start + samples] for start in range(0, len(rows), samples)], teacher, rollouts)


def _sample(
    config: RunConfig,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    attempts: dict[Role, list[Attempt]],
    progress: SampleProgress,
) -> dict[Role, list[Completion]]:
    """Return the answers of both roles to their attempts."""
    sampling = config.rollout
    longest_prompt = max(config.prompts.max_student_tokens, config.prompts.max_teacher_tokens)
    engine = make_engine(sampling, model, tokenizer, longest=longest_prompt + sampling.max_new_tokens)
    completions: dict[Role, list[Completion]] = {"student": [], "teacher": []}
    count = len(attempts["teacher"])
    progress.say(f"student: {len(attempts['student'])} answers to {count} problems")
    try:
        for role, tries in attempts.items():
            if role == "teacher":
                progress.say(f"teacher: {count} answers with the solution in view")
            progress.begin(len(tries), 0)
            drift = DriftCheck(model, sampling.drift, half=engine.half_precision)
            for start in range(0, len(tries), sampling.max_batch):
                began = time.perf_counter()
                batch = tries[start : start + sampling.max_batch]
                prompts = [_context(problem.pair, role) for problem, _ in batch]
                seeds = [derive_seed(config.train.seed, role, problem.pair.problem.id, n) for problem, n in batch]
                group = engine.generate(prompts, sampling, seeds, measured=0 if start else drift.measured(0))
                drift(prompts, group)
                completions[role] += group
                tokens = sum(len(completion.ids) for completion in group)
                progress.advance(role, len(group), tokens, time.perf_counter() - began)
    finally:
        engine.close()
    return completions


def _context(pair: PromptPair, role: Role) -> tuple[int, ...]:
    return pair.student_ids if role == "student" else pair.teacher_ids


def held_out(config: RunConfig, builder: PromptBuilder, count: int, say: Callable[[str], None]) -> list[HeldOutProblem]:
    """Return the first problems of the validation sets with solutions, or of the training data if there are none."""
    sets: dict[str, tuple[DataConfig, Literal["train", "validation"]]] = {}
    for name, data in config.validation_data.items():
        if data.columns.solution is None and "solution" in config.prompts.reference_fields():
            say(f"validation_data.{name} has no solutions (its columns.solution is null) and is passed over")
        else:
            sets[f"validation_data.{name}"] = data, "validation"
    sets = sets or {"data": (config.data, "train")}
    usable = (
        HeldOutProblem(section, pair, data.source)
        for section, (data, split) in sets.items()
        for problem in load_set(data, split)
        for pair in builder.pairs([problem], on_bad_row=data.on_bad_row)[0]
    )
    chosen = list(islice(usable, count))
    if not chosen:
        raise ConfigError(
            f"no problem of {', '.join(sets)} can be used with these prompts; raise prompts.max_student_tokens and "
            f"prompts.max_teacher_tokens, or set {next(iter(sets))}.on_bad_row: stop, which names the reason"
        )
    if missing := [problem for problem in chosen if problem.pair.problem.answer is None]:
        first = missing[0]
        raise ConfigError(
            f"{len(missing)} of {len(chosen)} problems have no answer, such as {first.pair.problem.id} of "
            f"{first.section}, so right cannot be told from wrong; name the answers' column in "
            f"{first.section}.columns.answer, or leave these rows out"
        )
    if len(chosen) < count:
        say(f"{count} problems were asked for; {', '.join(sets)} has {len(chosen)}")
    return chosen


def with_others_references(builder: PromptBuilder, pairs: Sequence[PromptPair]) -> list[PromptPair | None]:
    """Return each problem with the reference of the next one with another answer; None if there is none that fits."""
    others: list[PromptPair | None] = []
    for n, pair in enumerate(pairs):
        following = (other.problem for other in (*pairs[n + 1 :], *pairs[:n]))
        other = next((problem for problem in following if problem.answer != pair.problem.answer), None)
        try:
            changed = other and replace(
                pair.problem, solution=other.solution, answer=other.answer, pointers=other.pointers
            )
            others.append(builder.pair(changed) if changed else None)
        except (PromptError, AlignmentError):
            others.append(None)
    return others


@torch.no_grad()
def judge(
    model: PreTrainedModel,
    rollouts: Sequence[Rollout],
    config: OPASDConfig,
    *,
    attention: bool = True,
    precision: torch.dtype | None = None,
    progress: SampleProgress | None = None,
) -> list[dict[str, list[float]]]:
    """Return each rollout's readings per token: `log_ratio` and the measures of both losses, whatever their weights.

    `precision` is the number format of mixed precision, if it is used."""
    objective = config.objective.model_copy(update={"token_weight": 1.0, "attention_weight": float(attention)})
    scorer = Scorer(model, objective.attention.layers if attention else 0)
    half = precision is not None or model.dtype.itemsize == 2
    layout = choose_layout(scorer, config.layout, device=model.device, half=half)
    readings: dict[int, dict[str, list[float]]] = {}
    for part in microbatches(list(rollouts), config.tokens_per_microbatch, packed=layout == "packed"):
        began = time.perf_counter()
        with torch.autocast(model.device.type, precision, enabled=precision is not None):
            student = scorer(part, "student", query=objective.attention.query, layout=layout)
            teacher = teacher_scores(scorer, part, objective, query=objective.attention.query, layout=layout)
        output = opasd_loss(part, student, teacher, student.head, teacher.head, objective)
        for rollout, *scores, reading in zip(part, student, teacher, output.readings, strict=True):
            token_T = torch.tensor(rollout.completion_ids, device=scores[0].hidden_TE.device)
            student_T, teacher_T = (log_probabilities(role.hidden_TE, student.head, token_T) for role in scores)
            values = {"log_ratio": teacher_T - student_T}
            values |= {name: reading[f"token/{name}"] for name in ("divergence", "clipped")}
            if attention:
                values["attention_divergence"] = reading["attention/divergence"]
                values["solution_mass"] = reading["attention/solution_mass"]
            readings[id(rollout)] = {name: values_T.tolist() for name, values_T in values.items()}
        if progress is not None:
            tokens = sum(len(rollout.student_ids) + len(rollout.teacher_ids) for rollout in part)
            progress.advance("both roles", len(part), tokens, time.perf_counter() - began)
    return [readings[id(rollout)] for rollout in rollouts]


def judge_if_possible(
    model: PreTrainedModel,
    rollouts: Sequence[Rollout],
    config: RunConfig,
    precision: torch.dtype | None,
    progress: SampleProgress,
) -> list[dict[str, list[float]]]:
    """Return both roles' readings, without attention if it cannot be read and its loss has no weight."""
    progress.begin(len(rollouts), 0)
    try:
        return judge(model, rollouts, config, precision=precision, progress=progress)
    except CaptureError as error:
        if config.objective.attends:
            raise
        progress.say(f"attention is not measured: {error}")
        progress.begin(len(rollouts), 0)
        return judge(model, rollouts, config, attention=False, precision=precision, progress=progress)


def measures(reading: dict[str, list[float]]) -> dict[str, Any]:
    """Return the measures of a trajectory: means over its tokens, and sums over each tenth of them."""
    means: dict[str, Any] = {"attention_divergence": None, "solution_mass": None, "control": None}
    means |= {name: statistics.fmean(values) for name, values in reading.items()}
    parts = {name: tenths(reading[name]) for name in (*IN_TENTHS, "control") if name in reading}
    return means | {
        "top_share": top_share(reading["divergence"]),
        "tenths": {name: sums for name, sums in parts.items() if sums is not None},
    }


def grade(
    tokenizer: PreTrainedTokenizerBase,
    attempts: Sequence[Attempt],
    role: Role,
    completions: Sequence[Completion],
    leak: re.Pattern[str] | None,
    grader: RolloutGrader,
) -> list[GradedAnswer]:
    """Return the role's answers with their verdicts; one that the grader failed on counts as wrong."""
    texts = [readable(tokenizer, completion.ids) for completion in completions]
    asked = [
        (problem.pair.problem, thinking_prefix(tokenizer, _context(problem.pair, role)) + text)
        for (problem, _), text in zip(attempts, texts, strict=True)
    ]
    return [
        GradedAnswer(
            section=problem.section,
            problem=problem.pair.problem.id,
            sample=number,
            correct=verdict is True,
            finish_reason=completion.finish_reason,
            tokens=len(completion.ids),
            leaks=None if leak is None else leak.search(text) is not None,
        )
        for (problem, number), completion, text, verdict in zip(
            attempts, completions, texts, grader(asked), strict=True
        )
    ]
