"""Needs as tokens: for each tokenizer, a step's token and positions hold the characters that the task names."""

import pytest

from opasd.config import PromptConfig
from opasd.data.made import make_problems, needed_spans
from opasd.prompts.needs import needed_steps
from opasd.prompts.pairs import PromptBuilder
from tests.tokenizers import ALL, load

BEFORE = PromptConfig(
    reference="Use {pointers}.\n\n",
    teacher="{reference}Problem: {question}\n\n{instruction}",
    max_student_tokens=4096,
    max_teacher_tokens=4096,
)


def decoder(name):
    return lambda ids: str(load(name).decode(ids, clean_up_tokenization_spaces=False))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("source", ["lookup", "ledger"])
def test_steps_and_positions_hold_the_named_characters(name, source):
    decode = decoder(name)
    for problem in make_problems(source, "test", 2):
        pair = PromptBuilder(load(name), BEFORE).pair(problem)
        completion = load(name)(problem.solution, add_special_tokens=False)["input_ids"]
        text = decode(completion)
        needs = needed_spans(source, problem, text)
        steps = needed_steps(pair, completion, needs, decode)
        assert len(steps) == len(needs) > 3
        for step, (index, span, statement) in zip(steps, needs, strict=True):
            assert len(decode(completion[: step.token])) <= index < len(decode(completion[: step.token + 1]))
            for positions, (first, last) in ((step.copied, span), (step.statement, statement)):
                exact = problem.question[first:last]
                assert exact in decode([pair.student_ids[position] for position in positions])
                assert exact not in decode([pair.student_ids[position] for position in positions[1:]])
                assert exact not in decode([pair.student_ids[position] for position in positions[:-1]])


def test_the_shown_text_of_pointers_is_theirs_alone():
    problem = make_problems("ledger", "test", 1)[0]
    name = ALL[0]
    pair = PromptBuilder(load(name), BEFORE).pair(problem)
    shown = decoder(name)([pair.teacher_ids[position] for position in pair.shown])
    assert problem.pointers in shown
    assert len(shown) <= len(problem.pointers) + 2


def test_a_question_that_the_tokens_do_not_give_back_has_no_steps():
    problem = make_problems("lookup", "test", 1)[0]
    name = ALL[0]
    pair = PromptBuilder(load(name), PromptConfig()).pair(problem)
    needs = needed_spans("lookup", problem, problem.solution)
    assert needed_steps(pair, [1, 2], needs, lambda ids: "?" * len(ids)) == []
