"""Wordings: what is filled in stays literal, and what cannot be used is named."""

import pytest

from opasd.config import PromptConfig
from opasd.data.problems import Problem
from opasd.errors import ConfigError
from opasd.prompts.pairs import PromptBuilder
from tests.tokenizers import decode, load


def built(name: str, **fields: object) -> PromptBuilder:
    return PromptBuilder(load(name), PromptConfig.model_validate(fields))


@pytest.mark.parametrize(
    ("field", "text", "message"),
    [
        ("student", "Solve it.", "must have {question} once: got it 0 times"),
        ("student", "{question} {question}", "once: got it 2 times"),
        ("student", "{question} {reference}", "unknown field: got {reference}; use {instruction}, {question}"),
        ("teacher", "{question}", "must have {reference} once"),
        ("teacher", "{question} {solution}", "unknown field: got {solution}"),
        ("teacher", "{question!r} {reference}", "got {question!r}"),
        ("teacher", "{question:>9} {reference}", "got {question:>9}"),
        ("teacher", "{question} {reference} \\boxed{}", "unknown field: got {}"),
        ("teacher", "{question} {reference} }", "not a format string"),
        ("reference", "Look it up.", "must have {solution} once: got it 0 times; its fields are {answer}, {pointers}"),
        ("reference", "{answer} or {answer}", "must have {answer} once: got it 2 times"),
        ("reference", "{answer} {problem}", "unknown field: got {problem}; use {answer}, {pointers}, {solution}"),
        ("student", "{question} <|im_end|>", "contains '<|im_end|>'"),
        ("system", "<|im_start|>", "contains '<|im_start|>'"),
        ("instruction", "<|im_start|>", "contains '<|im_start|>'"),
    ],
)
def test_wordings_that_cannot_be_used(field: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        built("qwen3", **{field: text})
    assert f"prompts.{field}" in str(caught.value)
    assert message in str(caught.value)


def test_think_tags_in_the_configuration_are_meant() -> None:
    builder = built("qwen3", system="Use <think>.", instruction="Think in <think></think>.")
    assert not builder.pair(Problem("What is 1?", "1")).neutralised


def test_braces_are_text() -> None:
    problem = Problem("What is {solution} in {0} {question}?", "{instruction} {{}} %s")
    pair = built("qwen3", student="{{}} {question}\n\n{instruction}").pair(problem)
    assert "user\n{} What is {solution} in {0} {question}?\n\n" in decode(load("qwen3"), pair.student_ids)
    assert "\n{instruction} {{}} %s\n" in decode(load("qwen3"), built("qwen3").pair(problem).teacher_ids)
