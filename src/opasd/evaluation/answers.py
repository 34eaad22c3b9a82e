"""A model's answers to problems: sampled, decoded, graded."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from opasd.choices import FinishReason
from opasd.config import SamplingConfig
from opasd.data.problems import Problem
from opasd.grading.verdict import is_correct
from opasd.prompts.pairs import PromptBuilder
from opasd.rollout.engine import RolloutEngine, derive_seed

THINK, END_OF_THINK = "<think>", "</think>"


@dataclass(frozen=True)
class Answer:
    """One sampled answer to one problem."""

    problem_id: str
    sample: int
    ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason
    correct: bool | None
    """Unknown where the problem has no answer."""


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
) -> list[Answer]:
    """`samples` answers to each problem, in order; a problem's seeds do not depend on the other problems."""
    asked = [(problem, number) for problem in problems for number in range(samples)]
    prompts = {id(problem): builder.student_ids(problem.question, thinking=thinking) for problem in problems}
    opened = {key: THINK if opens_thinking(tokenizer, prompt) else "" for key, prompt in prompts.items()}
    seeds = [derive_seed(seed, problem.id or problem.question, number) for problem, number in asked]
    completions = engine.generate([prompts[id(problem)] for problem, _ in asked], sampling, seeds)
    answers = []
    for (problem, number), completion in zip(asked, completions, strict=True):
        text = readable(tokenizer, completion.ids)
        correct = None if problem.answer is None else is_correct(opened[id(problem)] + text, problem.answer)
        answers.append(Answer(problem.id, number, completion.ids, text, completion.finish_reason, correct))
    return answers


def readable(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """The text of a completion without control tokens; think tags stay, also where they are such."""
    tags = tokenizer.convert_tokens_to_ids([THINK, END_OF_THINK])
    special = set(tokenizer.all_special_ids) - set(tags if isinstance(tags, list) else [tags])
    return str(tokenizer.decode([token for token in ids if token not in special]))


def opens_thinking(tokenizer: PreTrainedTokenizerBase, prompt: Sequence[int]) -> bool:
    """Whether a prompt leaves the model inside a thinking block, as some chat templates do."""
    return THINK in str(tokenizer.decode(list(prompt))).rpartition(END_OF_THINK)[2]
