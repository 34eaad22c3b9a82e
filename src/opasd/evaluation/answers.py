"""A model's answers to problems: sampled, decoded, graded."""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from opasd.config import SamplingConfig
from opasd.data import Problem
from opasd.evaluation.grading import is_correct
from opasd.prompts import PromptBuilder
from opasd.rollout.engine import FinishReason, RolloutEngine, derive_seed


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
    seeds = [derive_seed(seed, problem.id or problem.question, number) for problem, number in asked]
    completions = engine.generate([prompts[id(problem)] for problem, _ in asked], sampling, seeds)
    answers = []
    for (problem, number), completion in zip(asked, completions, strict=True):
        text = str(tokenizer.decode(list(completion.ids), skip_special_tokens=True))
        correct = None if problem.answer is None else is_correct(text, problem.answer)
        answers.append(Answer(problem.id, number, completion.ids, text, completion.finish_reason, correct))
    return answers
