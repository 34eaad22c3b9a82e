"""Measure where a model looks, layer by layer and head by head, as student and as teacher with several references.

For tasks made by code, what each step of a response copies from the question is known (`data.made.needed_spans`). For
the token that begins a copy, in each layer:

    student     its attention on the needed tokens, of that on the shared positions
    teacher     the teacher's attention on them, of all its attention: before projection
    projected   the same, of that on the shared positions: after projection, the student's target

For any task: the attention loss's shares of template, problem, other words and response, and ρ split into the
reference's own text and the words around it.

One response is read at a time, with all layers captured; rows are formed a few at a time.

Shapes: H heads, N steps with a need, T steps, C steps of a chunk, S positions, J shared positions.
"""

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opasd.config import PromptConfig, RunConfig
from opasd.data.made import needed_spans
from opasd.data.problems import Problem
from opasd.errors import AlignmentError, ConfigError, PromptError
from opasd.losses import projection
from opasd.losses.attention import attention_rows
from opasd.losses.attention_chunked import seen_by_both
from opasd.losses.divergence import formulas_of
from opasd.losses.inputs import LayerAttention
from opasd.model.capture import AttentionCapture
from opasd.model.looking import decoder, inside, needed_masses, rho_parts
from opasd.model.scoring import Scorer
from opasd.probe.measure import Setup
from opasd.progress import SampleProgress
from opasd.prompts.alignment import Alignment, align
from opasd.prompts.needs import NeededStep, needed_steps
from opasd.prompts.pairs import PromptBuilder
from opasd.prompts.rollout import Rollout

REFERENCES = {
    "solution": PromptConfig().reference,
    "pointers": "What is needed: {pointers}.\n\n",
    "answer": "The final answer is {answer}.\n\n",
}
"""Wordings for the references that a recipe does not show itself."""
PARTS = ("template", "problem", "words", "response")
CHUNK = 64
"""Steps whose attention is formed at once."""


class Response(NamedTuple):
    """A text to read: a gold solution, or an answer of the student."""

    source: str
    """The data source of its problem."""
    problem: Problem
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Look:
    """One response as both roles read it with one reference. Lists are by layer; heads by layer, then by head."""

    problem: str
    reference: str
    steps: int
    """Steps whose need is known."""
    uniform: float | None
    """The share of the needed tokens in the positions that a step sees; None without such steps, as all masses are."""
    student: list[float] | None
    teacher: list[float] | None
    projected: list[float] | None
    student_statement: list[float] | None
    """The same on the whole statement around the needed text."""
    projected_statement: list[float] | None
    student_heads: list[list[float]] | None
    projected_heads: list[list[float]] | None
    loss: dict[str, list[float]]
    """Shares of the attention loss, by part."""
    divergence: list[float]
    rho_text: list[float]
    """The share of the teacher's attention that the reference's own text has, of that on the block and the support."""
    rho_words: list[float]
    """That of the words around it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON types, with five digits."""
        return {name: _short(value) for name, value in asdict(self).items()}


def references(config: PromptConfig) -> dict[str, PromptConfig]:
    """Return the prompts with the attention loss's own reference first, named by what it shows, and with the others."""
    text = config.reference if config.attention_reference is None else config.attention_reference
    own = config.model_copy(update={"reference": text, "attention_reference": None})
    shown = own.reference_fields()
    others = {name: own.model_copy(update={"reference": text}) for name, text in REFERENCES.items()}
    return {"+".join(sorted(shown)): own} | {name: other for name, other in others.items() if shown != {name}}


def responses(setup: Setup, answers: Sequence[Rollout] | None, longest: int) -> list[Response]:
    """Return the student's answers to read, or the problems' own solutions, cut to `longest` tokens."""
    if answers is not None:
        each = len(answers) // len(setup.problems)
        sources = [problem.source for problem in setup.problems for _ in range(each)]
        return [
            Response(source, one.pair.problem, one.completion_ids) for source, one in zip(sources, answers, strict=True)
        ]
    gold = [(problem.source, problem.pair.problem) for problem in setup.problems if problem.pair.problem.solution]
    if not gold:
        raise ConfigError("--look reads the gold solutions, and these problems have none; give --responses student")
    texts = [setup.tokenizer(problem.solution, add_special_tokens=False)["input_ids"] for _, problem in gold]
    return [Response(*one, tuple(ids[:longest])) for one, ids in zip(gold, texts, strict=True)]  # pyright: ignore[reportArgumentType, reportIndexIssue]


@torch.no_grad()
def look(config: RunConfig, setup: Setup, texts: Sequence[Response], progress: SampleProgress) -> list[Look]:
    """Return what both roles look at in each response, with each reference that its problem has."""
    model, tokenizer, precision = setup.model, setup.tokenizer, setup.precision
    decode = decoder(tokenizer)
    builders = {name: PromptBuilder(tokenizer, prompts) for name, prompts in references(config.prompts).items()}
    scorer = Scorer(model, "all")
    AttentionCapture(model, config.objective.attention.layers)  # refuses layers that the model has not
    looks: list[Look] = []
    progress.begin(len(texts), 0)
    for number, response in enumerate(texts):
        began, tokens = time.perf_counter(), 0
        student: tuple[LayerAttention, ...] | None = None
        needs = needed_spans(response.source, response.problem, decode(list(response.ids)))
        for name, builder in builders.items():
            try:
                pair = builder.pair(response.problem)
            except (PromptError, AlignmentError):
                continue  # the problem has no such reference
            rollout = Rollout(pair, response.ids, f"{response.problem.id}, response {number + 1}, {name}")
            with torch.autocast(model.device.type, precision, enabled=precision is not None):
                if student is None:
                    student = scorer([rollout], "student", query=config.objective.attention.query)[0].layers
                teacher = scorer([rollout], "teacher", query=config.objective.attention.query)[0].layers
            steps = needed_steps(pair, response.ids, needs or [], decode)
            looks.append(_read(rollout, name, student, teacher, steps, config))
            tokens += len(rollout.teacher_ids)
        progress.advance("where they look", 1, tokens, time.perf_counter() - began)
    return looks


def _read(
    rollout: Rollout,
    reference: str,
    student: Sequence[LayerAttention],
    teacher: Sequence[LayerAttention],
    steps: Sequence[NeededStep],
    config: RunConfig,
) -> Look:
    attention = config.objective.attention
    options = {"support": attention.support, "query": attention.query, "first_token": attention.first_token}
    alignment = align(rollout.pair, rollout.num_tokens, **options).to(student[0].query_HTD.device)
    layers = list(zip(student, teacher, strict=True))
    shares = [_shares(*pair, alignment, rollout, config) for pair in layers]
    masses = [needed_masses(*pair, alignment, steps) for pair in layers] if steps else []
    seen = [int(alignment.student_query[step.token]) + 1 for step in steps]
    columns: dict[str, Any] = {name: [mass[name].tolist() for mass in masses] if steps else None for name in _MASSES}
    return Look(
        problem=rollout.pair.problem.id,
        reference=reference,
        steps=len(steps),
        uniform=_mean([len(step.copied) / count for step, count in zip(steps, seen, strict=True)]) if steps else None,
        loss={part: [own[part] for own in shares] for part in PARTS},
        divergence=[own["divergence"] for own in shares],
        rho_text=[own["rho_text"] for own in shares],
        rho_words=[own["rho_words"] for own in shares],
        **columns,
    )


_MASSES = (
    "student", "teacher", "projected", "student_statement", "projected_statement", "student_heads", "projected_heads",
)  # fmt: skip


def _shares(
    student: LayerAttention, teacher: LayerAttention, alignment: Alignment, rollout: Rollout, config: RunConfig
) -> dict[str, float]:
    """Return one layer's mean divergence, its shares by part, and ρ in two, over all steps."""
    formulas, beta = formulas_of(config.objective.attention.divergence), config.objective.attention.jsd_beta
    parts = _parts(alignment, rollout)
    totals: dict[str, float] = dict.fromkeys((*PARTS, "divergence", "rho_text", "rho_words"), 0.0)
    for start in range(0, alignment.num_tokens, CHUNK):
        chunk = slice(start, start + CHUNK)
        queries = alignment.student_query[chunk], alignment.teacher_query[chunk]
        shared = alignment.student_shared, alignment.teacher_shared
        seen_CJ = seen_by_both(queries, shared, (student.sliding_window, teacher.sliding_window))
        student_CS, teacher_CS = (
            attention_rows(replace(role, query_HTD=role.query_HTD[:, chunk]), query_C)
            for role, query_C in zip((student, teacher), queries, strict=True)
        )
        target_CJ, _ = projection.normalise(teacher_CS[:, shared[1]] * seen_CJ)
        student_CJ, _ = projection.normalise(student_CS[:, shared[0]] * seen_CJ)
        terms_J = formulas.terms(target_CJ, student_CJ, beta).sum(0)
        token_C = torch.arange(start, min(start + CHUNK, alignment.num_tokens), device=shared[0].device)
        text_C, words_C = rho_parts(student, teacher, alignment, rollout.pair.shown, token_C)
        sums = {name: terms_J[inside_J] for name, inside_J in parts.items()} | {"divergence": terms_J}
        sums |= {"rho_text": text_C, "rho_words": words_C}
        for name, values in sums.items():
            totals[name] += float(values.sum())
    whole = totals["divergence"] or 1.0
    means = {name: totals[name] / max(alignment.num_tokens, 1) for name in ("divergence", "rho_text", "rho_words")}
    return {name: totals[name] / whole for name in PARTS} | means


def _parts(alignment: Alignment, rollout: Rollout) -> dict[str, Tensor]:
    """Return which shared positions belong to each part."""
    shared_J = alignment.student_shared
    template_J = torch.isin(shared_J, alignment.template)
    problem_J = inside([rollout.pair.student_question], shared_J)[0]
    response_J = ~alignment.in_prompt
    words_J = ~(template_J | problem_J | response_J)
    return dict(zip(PARTS, (template_J, problem_J, words_J, response_J), strict=True))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [_short(one) for one in value]
    return {name: _short(one) for name, one in value.items()} if isinstance(value, dict) else value
