"""A model's answers to problems: sampled, decoded, graded."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from opasd.choices import FinishReason
from opasd.config import SamplingConfig
from opasd.data.problems import Problem
from opasd.grading.outside import MATH, RolloutGrader, rollout_grader
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import RolloutEngine, derive_seed

_THINK, _END_OF_THINK = "<think>", "</think>"


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


def readable(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of a completion without control tokens; think tags stay, even if they are control tokens."""
    tags = tokenizer.convert_tokens_to_ids([_THINK, _END_OF_THINK])
    special = set(tokenizer.all_special_ids) - set(tags if isinstance(tags, list) else [tags])
    return str(tokenizer.decode([token for token in ids if token not in special]))


def thinking_prefix(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> str:
    """Return `<think>` if the prompt ends inside a thinking block, as with some chat templates, else nothing."""
    return _THINK if _THINK in str(tokenizer.decode(list(prompt))).rpartition(_END_OF_THINK)[2] else ""
