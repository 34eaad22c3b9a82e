"""Is there something to learn? A model that is not trained, in both roles, on a recipe's held-out problems.

The student answers each problem several times and the teacher once. Then both read the student's answers, as in
training but without gradients. What the student learns from is not how many problems the teacher solves, but how it
judges the student's own tokens: log p_teacher(y_t) − log p_student(y_t) at temperature 1, the mean over an answer's
tokens, should be higher for right answers than for wrong ones. What of that is the solution's doing is seen beside the
same with another problem's solution in view: likely answers are more often right, and the teacher's prompt may make a
better solver by itself.
"""

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from opasd.analysis.leaks import leak_pattern
from opasd.analysis.preference import tenths, top_share
from opasd.choices import FinishReason
from opasd.config import DataConfig, OPASDConfig, RolloutConfig, RunConfig
from opasd.data.sets import load_set
from opasd.errors import AlignmentError, CaptureError, ConfigError, PromptError
from opasd.evaluation.answers import readable, thinking_prefix
from opasd.grading.verdict import is_correct
from opasd.losses.token import log_probabilities
from opasd.model.batches import microbatches
from opasd.model.loading import load_model, load_tokenizer
from opasd.model.objective import opasd_loss
from opasd.model.scoring import Scorer, choose_layout
from opasd.progress import SampleProgress
from opasd.prompts.pairs import PromptBuilder, PromptPair
from opasd.prompts.rollout import Rollout
from opasd.rollout.drift import DriftCheck
from opasd.rollout.engine import Completion, RolloutEngine, derive_seed
from opasd.rollout.factory import make_engine
from opasd.trainer.session import training_arguments

IN_TENTHS = ("log_ratio", "divergence", "attention_divergence")
"""What a trajectory keeps of each tenth of its tokens."""


@dataclass(frozen=True)
class Asked:
    """A problem in both contexts, and the data section it is from."""

    section: str
    pair: PromptPair


@dataclass(frozen=True)
class Reply:
    """One answer of one role."""

    section: str
    problem: str
    sample: int
    correct: bool
    finish_reason: FinishReason
    tokens: int
    leaks: bool | None
    """Whether it speaks of what only the teacher sees; None where the wording has no phrase to tell by."""


@dataclass(frozen=True)
class Trajectory(Reply):
    """An answer of the student as both roles read it: means over its tokens, and sums over each tenth of them."""

    log_ratio: float
    divergence: float
    """Before clipping."""
    top_share: float
    """The share of the divergence that the 10 % largest tokens hold."""
    clipped: float
    attention_divergence: float | None
    solution_mass: float | None
    """ρ."""
    control: float | None
    """`log_ratio` with another problem's reference in the teacher's context; None where there is no such problem."""
    tenths: dict[str, list[float]]
    """Of `log_ratio`, `divergence` and, where measured, `attention_divergence` and `control`: ten sums, in nats, which
    add up to the mean times the number of tokens. Empty for an answer of fewer than ten tokens."""


@dataclass(frozen=True)
class Probe:
    """What was measured, by problem."""

    student: list[list[Trajectory]]
    teacher: list[Reply]

    def to_dict(self) -> dict[str, Any]:
        """The raw rows as JSON types."""
        return {
            "rows": [asdict(row) for several in self.student for row in several],
            "teacher_rows": [asdict(row) for row in self.teacher],
        }


def probe(config: RunConfig, *, count: int, samples: int, progress: SampleProgress) -> Probe:
    """`samples` answers of the student to each of the first `count` problems, one of the teacher, and both readings."""
    arguments = training_arguments(config.train, Path(config.output_dir))
    tokenizer = load_tokenizer(config.model)
    builder = PromptBuilder(tokenizer, config.prompts)
    asked = held_out(config, builder, count, progress.say)
    model = load_model(config.model).eval().requires_grad_(False)
    if not getattr(model, "is_quantized", False):
        torch.nn.Module.to(model, arguments.device)
    mine = [(one, number) for one in asked for number in range(samples)]
    rollout, seed = config.rollout, config.train.seed
    engine = _engine(config, model, tokenizer)
    try:
        prompts = [one.pair.student_ids for one, _ in mine]
        seeds = [derive_seed(seed, "student", one.pair.problem.id, number) for one, number in mine]
        progress.say(f"student: {len(mine)} answers to {len(asked)} problems")
        answers = _sample(engine, model, prompts, rollout, seeds, progress, "student")
        prompts = [one.pair.teacher_ids for one in asked]
        seeds = [derive_seed(seed, "teacher", one.pair.problem.id, 0) for one in asked]
        progress.say(f"teacher: {len(asked)} answers with the solution in view")
        taught = _sample(engine, model, prompts, rollout, seeds, progress, "teacher")
    finally:
        engine.close()
    rollouts = [
        Rollout(one.pair, completion.ids, f"{one.section}, {one.pair.problem.id}, sample {number}")
        for (one, number), completion in zip(mine, answers, strict=True)
    ]
    progress.say(f"both roles read the student's {len(rollouts)} answers")
    precision = torch.bfloat16 if arguments.bf16 else torch.float16 if arguments.fp16 else None
    readings = _judge_what_can_be(model, rollouts, config, precision, progress)
    others = with_others_references(builder, [one.pair for one in asked])
    controls = [
        replace(rollout, pair=pair)
        for place, rollout in enumerate(rollouts)
        if (pair := others[place // samples]) is not None
    ]
    progress.say("both roles read them again, with another problem's reference")
    progress.begin(len(controls), 0)
    found = iter(judge(model, controls, config, attention=False, precision=precision, progress=progress))
    for place, reading in enumerate(readings):
        if others[place // samples] is not None:
            reading["control"] = next(found)["log_ratio"]
    leak = leak_pattern(config.prompts)
    rows = [
        Trajectory(**asdict(_reply(tokenizer, one, one.pair.student_ids, number, completion, leak)), **_row(reading))
        for (one, number), completion, reading in zip(mine, answers, readings, strict=True)
    ]
    return Probe(
        [rows[start : start + samples] for start in range(0, len(rows), samples)],
        [_reply(tokenizer, one, one.pair.teacher_ids, 0, c, leak) for one, c in zip(asked, taught, strict=True)],
    )


def held_out(config: RunConfig, builder: PromptBuilder, count: int, say: Callable[[str], None]) -> list[Asked]:
    """The first problems of the validation sets that have solutions, or of the training data where there is none."""
    sets: dict[str, tuple[DataConfig, Literal["train", "validation"]]] = {}
    for name, data in config.validation_data.items():
        if data.columns.solution is None and "solution" in config.prompts.reference_fields():
            say(f"validation_data.{name} has no solutions (its columns.solution is null) and is passed over")
        else:
            sets[f"validation_data.{name}"] = data, "validation"
    sets = sets or {"data": (config.data, "train")}
    usable = (
        Asked(section, pair)
        for section, (data, split) in sets.items()
        for problem in load_set(data, split)
        for pair in builder.pairs([problem], on_bad_row=data.on_bad_row)[0]
    )
    found = list(islice(usable, count))
    if not found:
        raise ConfigError(
            f"no problem of {', '.join(sets)} can be used with these prompts; raise prompts.max_student_tokens and "
            f"prompts.max_teacher_tokens, or set {next(iter(sets))}.on_bad_row: stop to be told why"
        )
    if missing := [one for one in found if one.pair.problem.answer is None]:
        first = missing[0]
        raise ConfigError(
            f"{len(missing)} of {len(found)} problems have no answer, such as {first.pair.problem.id} of "
            f"{first.section}, so right cannot be told from wrong; name the answers' column in "
            f"{first.section}.columns.answer, or leave these rows out"
        )
    if len(found) < count:
        say(f"{count} problems were asked for; {', '.join(sets)} has {len(found)}")
    return found


def with_others_references(builder: PromptBuilder, pairs: Sequence[PromptPair]) -> list[PromptPair | None]:
    """Each problem with the reference of the next one that has another answer; None where there is none that fits."""
    found: list[PromptPair | None] = []
    for place, pair in enumerate(pairs):
        mine = pair.problem
        following = (one.problem for one in (*pairs[place + 1 :], *pairs[:place]))
        other = next((one for one in following if one.answer != mine.answer), None)
        try:
            changed = other and replace(mine, solution=other.solution, answer=other.answer)
            found.append(builder.pair(changed) if changed else None)
        except (PromptError, AlignmentError):
            found.append(None)
    return found


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
    """Each rollout's readings per token, in order: `log_ratio` and what the losses measure, whatever their weights.

    `precision` is the number format of mixed precision, if there is any."""
    objective = config.objective.model_copy(update={"token_weight": 1.0, "attention_weight": float(attention)})
    scorer = Scorer(model, objective.attention.layers if attention else 0)
    half = precision is not None or model.dtype.itemsize == 2
    layout = choose_layout(scorer, config.layout, device=model.device, half=half)
    found: dict[int, dict[str, list[float]]] = {}
    for part in microbatches(list(rollouts), config.tokens_per_microbatch, packed=layout == "packed"):
        began = time.perf_counter()
        with torch.autocast(model.device.type, precision, enabled=precision is not None):
            student, teacher = (
                scorer(part, role, query=objective.attention.query, layout=layout) for role in ("student", "teacher")
            )
        output = opasd_loss(part, student, teacher, student.head, teacher.head, objective)
        for rollout, mine, theirs, reading in zip(part, student, teacher, output.readings, strict=True):
            token_T = torch.tensor(rollout.completion_ids, device=mine.hidden_TE.device)
            student_T, teacher_T = (log_probabilities(one.hidden_TE, student.head, token_T) for one in (mine, theirs))
            values = {"log_ratio": teacher_T - student_T}
            values |= {name: reading.token[name] for name in ("divergence", "clipped")}
            if attention:
                values["attention_divergence"] = reading.attention["divergence"]
                values["solution_mass"] = reading.attention["solution_mass"]
            found[id(rollout)] = {name: values_T.tolist() for name, values_T in values.items()}
        if progress is not None:
            tokens = sum(len(rollout.student_ids) + len(rollout.teacher_ids) for rollout in part)
            progress.advance("both roles", len(part), tokens, time.perf_counter() - began)
    return [found[id(rollout)] for rollout in rollouts]


def _engine(config: RunConfig, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> RolloutEngine:
    """Return the recipe's engine over the base, with room for the teacher's contexts."""
    prompts, rollout = config.prompts, config.rollout
    longest = max(prompts.max_student_tokens, prompts.max_teacher_tokens) + rollout.max_new_tokens
    return make_engine(rollout, model, tokenizer, longest=longest)


def _sample(
    engine: RolloutEngine,
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    config: RolloutConfig,
    seeds: Sequence[int],
    progress: SampleProgress,
    label: str,
) -> list[Completion]:
    drift = DriftCheck(model, config.drift, half=engine.half_precision)
    progress.begin(len(prompts), 0)
    completions: list[Completion] = []
    for start in range(0, len(prompts), config.max_batch):
        began = time.perf_counter()
        asked, drawn = prompts[start : start + config.max_batch], seeds[start : start + config.max_batch]
        found = engine.generate(asked, config, drawn, measured=0 if start else drift.measured(0))
        drift(asked, found)
        completions += found
        tokens = sum(len(completion.ids) for completion in found)
        progress.advance(label, len(found), tokens, time.perf_counter() - began)
    return completions


def _judge_what_can_be(
    model: PreTrainedModel,
    rollouts: Sequence[Rollout],
    config: RunConfig,
    precision: torch.dtype | None,
    progress: SampleProgress,
) -> list[dict[str, list[float]]]:
    """Both roles' readings; without attention where it cannot be read and is not to be learned from either."""
    progress.begin(len(rollouts), 0)
    try:
        return judge(model, rollouts, config, precision=precision, progress=progress)
    except CaptureError as error:
        if config.objective.attention_weight > 0:
            raise
        progress.say(f"attention is not measured: {error}")
        progress.begin(len(rollouts), 0)
        return judge(model, rollouts, config, attention=False, precision=precision, progress=progress)


def _row(reading: dict[str, list[float]]) -> dict[str, Any]:
    means: dict[str, Any] = {"attention_divergence": None, "solution_mass": None, "control": None}
    means |= {name: statistics.fmean(values) for name, values in reading.items()}
    parts = {name: tenths(reading[name]) for name in (*IN_TENTHS, "control") if name in reading}
    return means | {
        "top_share": top_share(reading["divergence"]),
        "tenths": {name: sums for name, sums in parts.items() if sums is not None},
    }


def _reply(
    tokenizer: PreTrainedTokenizerBase,
    asked: Asked,
    prompt: Sequence[int],
    number: int,
    completion: Completion,
    leak: re.Pattern[str] | None,
) -> Reply:
    problem, text = asked.pair.problem, readable(tokenizer, completion.ids)
    return Reply(
        section=asked.section,
        problem=problem.id,
        sample=number,
        correct=is_correct(thinking_prefix(tokenizer, prompt) + text, str(problem.answer)),
        finish_reason=completion.finish_reason,
        tokens=len(completion.ids),
        leaks=None if leak is None else leak.search(text) is not None,
    )
