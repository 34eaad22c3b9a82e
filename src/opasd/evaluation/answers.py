"""A model's answers to problems: sampled, decoded, graded."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from opasd.choices import FinishReason
from opasd.config import SamplingConfig
from opasd.data.problems import Problem
from opasd.grading.outside import MATH, RolloutGrader, rollout_grader
from opasd.grading.reading import BOX_TOKENS, Mark, marks_of, open_mark
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import RolloutEngine, derive_seed


@dataclass(frozen=True)
class Answer:
    """One sampled answer to one problem."""

    problem_id: str
    sample: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    correct: bool | None
    """None where the problem has no known answer."""


def answer(
    problems: Sequence[Problem],
    engine: RolloutEngine,
    builder: PromptBuilder,
    tokenizer: PreTrainedTokenizerBase,
    sampling: SamplingConfig,
    *,
    samples: int = 1,
    seed: int = 0,
    thinking: bool | None = None,
    grader: RolloutGrader | None = None,
) -> list[Answer]:
    """Return `samples` answers to each problem, in order; a problem's seeds do not depend on the other problems."""
    requests = [
        (problem, prompt, number)
        for problem in problems
        for prompt in [builder.student_ids(problem.question, thinking=thinking)]
        for number in range(samples)
    ]
    seeds = [derive_seed(seed, problem.id or problem.question, number) for problem, _, number in requests]
    completions = engine.generate([prompt for _, prompt, _ in requests], sampling, seeds)
    texts = [readable(tokenizer, completion.ids) for completion in completions]
    attempts = [
        (problem, thinking_prefix(tokenizer, prompt) + text)
        for (problem, prompt, _), text in zip(requests, texts, strict=True)
    ]
    verdicts = (grader or rollout_grader(MATH))(attempts)
    return [
        Answer(problem.id, number, completion.ids, text, completion.finish_reason, correct)
        for (problem, _, number), completion, text, correct in zip(requests, completions, texts, verdicts, strict=True)
    ]


def model_marks(tokenizer: PreTrainedTokenizerBase, given: Sequence[Mark] = ()) -> tuple[Mark, ...]:
    """Return the marks of a model's reasoning: those of its chat template, and those that a flag gives."""
    template = tokenizer.chat_template
    templates = template.values() if isinstance(template, dict) else [template or ""]
    return tuple(dict.fromkeys([*given, *marks_of("\n".join(map(str, templates)))]))


def readable(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], marks: Sequence[Mark] | None = None) -> str:
    """Return the text of a completion without control tokens, except those that mark reasoning or a box."""
    kept = [text for mark in (*(model_marks(tokenizer) if marks is None else marks), BOX_TOKENS) for text in mark]
    special = {
        number
        for number, token in zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
        if not token or not any(str(token) in text for text in kept)
    }
    return str(tokenizer.decode([token for token in ids if token not in special]))


def thinking_prefix(
    tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int], marks: tuple[Mark, ...] | None = None
) -> str:
    """Return the mark that opens reasoning if the prompt ends inside it, as with some chat templates, else nothing."""
    return open_mark(str(tokenizer.decode(list(prompt))), model_marks(tokenizer) if marks is None else marks)
