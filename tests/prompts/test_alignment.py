"""Shared positions, solution positions and queries, by hand and as properties over all tokenizers."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opasd.choices import Query, Support
from opasd.config import AttentionLossConfig, PromptConfig
from opasd.data.problems import Problem
from opasd.errors import AlignmentError
from opasd.prompts.alignment import Alignment, align
from opasd.prompts.pairs import PromptBuilder, PromptPair
from tests.losses.cases import check_settings
from tests.texts import texts
from tests.tokenizers import ALL, SMALL, decode, load

SUM = Problem("What is 12 + 30?", "12 + 30 = 42.", id="sum")
BEFORE = PromptConfig(teacher="{reference}Now this.\nProblem: {question}\n\n{instruction}")
BETWEEN = PromptConfig(
    student="Solve this.\n{question}\n\n{instruction}\n\nGo.",
    teacher="Solve this.\n{question}\n\n{instruction}\n\n{reference}Well?\nGo.",
)
CONFIGS = {"default": PromptConfig(), "before": BEFORE, "between": BETWEEN}


@cache
def build(name: str, config: str = "default") -> PromptBuilder:
    return PromptBuilder(load(name), CONFIGS[config])


def tokens(name: str, ids: tuple[int, ...], positions: list[int]) -> list[str]:
    return [str(load(name).convert_ids_to_tokens(ids[position])) for position in positions]


def unmatched(pair: PromptPair) -> tuple[list[int], list[int]]:
    """Return the positions of the student's and the teacher's prompt without a counterpart, outside the solution."""
    alignment = align(pair, 0)
    teachers = {*alignment.teacher_shared.tolist(), *alignment.solution.tolist()}
    return (
        sorted({*range(len(pair.student_ids))} - {*alignment.student_shared.tolist()}),
        sorted({*range(len(pair.teacher_ids))} - teachers),
    )


def check(pair: PromptPair, num_tokens: int, alignment: Alignment, support: Support, query: Query) -> None:
    """What holds for every alignment."""
    student_ids = [*pair.student_ids, *range(-num_tokens, 0)]
    teacher_ids = [*pair.teacher_ids, *range(-num_tokens, 0)]
    students, teachers = alignment.student_shared.tolist(), alignment.teacher_shared.tolist()
    assert [student_ids[s] for s in students] == [teacher_ids[t] for t in teachers]
    assert students == sorted(set(students))
    assert teachers == sorted(set(teachers))
    solution = set(alignment.solution.tolist())
    assert not solution & set(teachers)
    assert alignment.in_prompt.tolist() == [s < len(pair.student_ids) for s in students]
    assert (alignment.student_length, alignment.teacher_length) == (len(student_ids), len(teacher_ids))

    counted = set(zip(students, teachers, strict=True))
    question = set(zip(pair.student_question, pair.teacher_question, strict=True))
    response = {(len(pair.student_ids) + t, len(pair.teacher_ids) + t) for t in range(num_tokens)}
    assert question <= counted if support != "response" else not question & counted
    assert response <= counted if support != "problem" else counted == question
    assert support != "response" or counted == response

    only_student, only_teacher = map(set, unmatched(pair))
    assert not only_student & set(students)
    assert not only_teacher & ({*teachers} | solution)
    if support == "context":
        assert {*students} | only_student == set(range(len(student_ids)))
        assert {*teachers} | only_teacher | solution == set(range(len(teacher_ids)))

    lag = 1 if query == "predicting" else 0
    assert alignment.student_query.tolist() == [len(pair.student_ids) - lag + t for t in range(num_tokens)]
    assert alignment.teacher_query.tolist() == [len(pair.teacher_ids) - lag + t for t in range(num_tokens)]
    for t, visible in enumerate(alignment.visible().tolist()):
        seen_S = [s <= alignment.student_query[t] for s in students]
        assert seen_S == [p <= alignment.teacher_query[t] for p in teachers]
        assert seen_S == [True] * visible + [False] * (len(students) - visible)
        assert all(p <= alignment.teacher_query[t] for p in solution)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("name", ALL)
def test_properties(name: str, config: str) -> None:
    builder = build(name, config)

    @settings(
        max_examples=10 if name.startswith("real/") else 25,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(
        question=texts,
        solution=texts,
        copied=st.booleans(),
        num_tokens=st.integers(0, 4),
        support=st.sampled_from(("context", "problem", "response")),
        query=st.sampled_from(("predicting", "generated")),
    )
    def holds(question: str, solution: str, copied: bool, num_tokens: int, support: Support, query: Query) -> None:
        pair = builder.pair(Problem(question, question if copied else solution))
        check(pair, num_tokens, align(pair, num_tokens, support=support, query=query), support, query)

    holds()


@pytest.mark.parametrize("name", SMALL)
def test_question_and_reference_are_found_by_their_text(name: str) -> None:
    question, solution = "What is 12 + 30?\n\nWhat is 12 + 30?", "What is 12 + 30? It is 42."
    tokenizer = load(name)
    pair = build(name).pair(Problem(question, solution))
    text = decode(tokenizer, pair.teacher_ids)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    first = text.index(question)
    expected = [i for i, (a, b) in enumerate(offsets) if a < first + len(question) and b > first]
    assert [*pair.teacher_question] == expected
    reference = build(name).config.reference.format(solution=solution)
    first = text.index(reference)
    last = first + len(reference)
    covered = [i for i, (a, b) in enumerate(offsets) if a < last and b > first and (b > a or a > first)]
    assert [*pair.reference] == list(range(covered[0], covered[-1] + 1))


@pytest.mark.parametrize("name", ["qwen3", "mistral", "text_only", "plain_bos"])
def test_white_space_at_the_references_end_is_the_references(name: str) -> None:
    config = PromptConfig(
        student="{question}\n{instruction}",
        teacher="{question}\n{reference}{instruction}",
        reference="It is {solution} ",
        instruction="1, 2, 3: go.",
        student_thinking=True,
    )
    pair = PromptBuilder(load(name), config).pair(SUM)
    assert pair.teacher_ids[: pair.reference.start] + pair.teacher_ids[pair.reference.stop :] == pair.student_ids


def test_an_empty_think_block_is_the_students_alone() -> None:
    pair = build("qwen3").pair(SUM)
    alignment = align(pair, 2)
    assert unmatched(pair) == (list(range(len(pair.student_ids) - 4, len(pair.student_ids))), [])
    assert tokens("qwen3", pair.student_ids, unmatched(pair)[0]) == ["<think>", "ĊĊ", "</think>", "ĊĊ"]
    assert len(alignment.student_shared) == len(pair.student_ids) - 4 + 2
    assert len(alignment.solution) == len(pair.teacher_ids) - (len(pair.student_ids) - 4)


@pytest.mark.parametrize("name", [name for name in ALL if name.split("/")[-1] != "qwen3"])
def test_without_a_thinking_switch_the_contexts_differ_by_the_reference_alone(name: str) -> None:
    pair = build(name).pair(SUM)
    assert unmatched(pair) == ([], [])
    assert pair.teacher_ids[: pair.reference.start] + pair.teacher_ids[pair.reference.stop :] == pair.student_ids


def test_an_empty_think_block_in_the_released_template() -> None:
    pair = build("real/qwen3").pair(SUM)
    only_student, only_teacher = unmatched(pair)
    assert tokens("real/qwen3", pair.student_ids, only_student) == ["<think>", "ĊĊ", "</think>", "ĊĊ"]
    assert only_teacher == []


@pytest.mark.parametrize("name", ALL)
def test_a_solution_equal_to_the_problem_is_not_shared(name: str) -> None:
    pair = build(name).pair(Problem(SUM.question, SUM.question))
    alignment = align(pair, 1)
    question = [pair.teacher_ids[position] for position in pair.teacher_question]
    occurrences = [
        start
        for start in range(len(pair.teacher_ids))
        if list(pair.teacher_ids[start : start + len(question) - 1]) == question[:-1]
    ]
    assert pair.teacher_question.start in occurrences
    assert set(pair.teacher_question) <= set(alignment.teacher_shared.tolist())
    for start in occurrences:
        if start != pair.teacher_question.start:
            assert set(range(start, start + len(question) - 1)) <= set(alignment.solution.tolist())


def test_a_reference_before_the_question() -> None:
    pair = build("qwen2_5", "before").pair(SUM)
    alignment = align(pair, 1)
    assert unmatched(pair)[0] == []
    assert "".join(tokens("qwen2_5", pair.teacher_ids, unmatched(pair)[1])) == "NowĠthis.Ċ"
    assert pair.reference.stop <= pair.teacher_question.start
    head = alignment.student_shared.tolist()[: pair.student_question.start - 2]
    assert alignment.teacher_shared.tolist()[: len(head)] == head


def test_a_reference_between_shared_text() -> None:
    pair = build("qwen2_5", "between").pair(SUM)
    assert unmatched(pair)[0] == []
    assert "".join(tokens("qwen2_5", pair.teacher_ids, unmatched(pair)[1])) == "Well?Ċ"


def test_supports() -> None:
    pair = build("qwen3").pair(SUM)
    question = len(pair.student_question)
    context, problem, response = (align(pair, 3, support=support) for support in ("context", "problem", "response"))
    prompt = len(pair.student_ids) - 4
    assert context.visible().tolist() == [prompt, prompt + 1, prompt + 2]
    assert problem.visible().tolist() == [question] * 3
    assert problem.in_prompt.all()
    assert response.visible().tolist() == [0, 1, 2]
    assert not response.in_prompt.any()
    for other in (problem, response):
        assert torch.equal(other.solution, context.solution)


@pytest.mark.parametrize("system", [None, "Be brief."])
@pytest.mark.parametrize("name", SMALL)
def test_template_tokens_have_no_character_of_the_message_or_the_system_prompt(name: str, system: str | None) -> None:
    """The message's own words, the instruction among them, are content; the template's default system prompt is not."""
    tokenizer, config = load(name), PromptConfig(system=system)
    pair = PromptBuilder(tokenizer, config).pair(SUM)
    text = decode(tokenizer, pair.student_ids)
    offsets = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
    message = config.student.format(question=SUM.question, instruction=config.instruction)
    spans = [(text.index(part), text.index(part) + len(part)) for part in (message, system) if part]
    expected = [i for i, (a, b) in enumerate(offsets) if not any(a < last and b > first for first, last in spans)]
    template = [position for part in pair.student_template for position in part]
    assert template == expected
    context, content = align(pair, 2), align(pair, 2, support="content")
    assert {*context.template.tolist()} == {*template} & {*context.student_shared.tolist()}
    assert {*content.student_shared.tolist()} == {*context.student_shared.tolist()} - {*template}
    left_out = dict(zip(*content.left_out.tolist(), strict=True))
    together = {**left_out, **dict(zip(content.student_shared.tolist(), content.teacher_shared.tolist(), strict=True))}
    assert together == dict(zip(context.student_shared.tolist(), context.teacher_shared.tolist(), strict=True))
    assert torch.equal(content.template, context.template)
    assert content.in_prompt.sum() == len(content.student_shared) - 2


def test_template_tokens_of_the_released_template() -> None:
    pair = build("real/qwen3").pair(SUM)
    alignment = align(pair, 0)
    assert tokens("real/qwen3", pair.student_ids, alignment.template.tolist()) == [
        "<|im_start|>", "user", "Ċ", "<|im_end|>", "Ċ", "<|im_start|>", "assistant", "Ċ",
    ]  # fmt: skip


@pytest.mark.parametrize("support", ["context", "content", "problem", "response"])
def test_without_the_first_token(support: Support) -> None:
    pair = build("mistral").pair(SUM)
    with_it, without = (align(pair, 2, support=support, first_token=first) for first in (True, False))
    assert without.student_shared.tolist() == [p for p in with_it.student_shared.tolist() if p > 0]
    assert len(without.in_prompt) == len(without.teacher_shared) == len(without.student_shared)
    assert (0 in without.left_out[0]) == (support in ("context", "content"))


def test_queries() -> None:
    pair = build("qwen3").pair(SUM)
    student, teacher = len(pair.student_ids), len(pair.teacher_ids)
    predicting, generated = align(pair, 2), align(pair, 2, query="generated")
    assert predicting.student_query.tolist() == [student - 1, student]
    assert predicting.teacher_query.tolist() == [teacher - 1, teacher]
    assert generated.student_query.tolist() == [student, student + 1]
    assert generated.teacher_query.tolist() == [teacher, teacher + 1]
    assert align(pair, 2, support="response", query="generated").visible().tolist() == [1, 2]


@pytest.mark.parametrize("support", ["context", "problem", "response"])
@pytest.mark.parametrize("num_tokens", [0, 1])
def test_short_responses(support: Support, num_tokens: int) -> None:
    pair = build("llama3").pair(SUM)
    alignment = align(pair, num_tokens, support=support)
    check(pair, num_tokens, alignment, support, "predicting")
    assert alignment.num_tokens == num_tokens
    for tensor in (alignment.student_query, alignment.student_shared, alignment.solution, alignment.teacher_query):
        assert tensor.dtype == torch.long


def test_alignment_moves_as_a_whole() -> None:
    moved = align(build("llama3").pair(SUM), 2).to("meta")
    assert {moved.student_shared.device.type, moved.in_prompt.device.type, moved.teacher_query.device.type} == {"meta"}
    assert moved.student_length == align(build("llama3").pair(SUM), 2).student_length


@pytest.mark.parametrize(
    "config",
    [
        PromptConfig(teacher="Problem: {question} {reference}{instruction}"),
        PromptConfig(teacher="Problem: {question}{reference}{instruction}", reference="\n\nSolution: {solution}\n"),
        PromptConfig(teacher="Problem:{question}\n\n{reference}{instruction}"),
    ],
    ids=["merges with other text", "merges with the reference", "other text before"],
)
def test_a_question_that_breaks_is_named(config: PromptConfig) -> None:
    builder = PromptBuilder(load("qwen3"), config)
    with pytest.raises(AlignmentError, match=r"problem 'sum': token \d+ of the question .*12.*put the same text"):
        builder.pair(SUM)
    pairs, report = builder.pairs([SUM], on_bad_row="skip")
    assert not pairs
    assert report.to_dict()["skipped_alignment"] == 1


def test_pairs_that_do_not_align_are_refused() -> None:
    pair = build("qwen3").pair(SUM)
    with pytest.raises(AlignmentError, match="tokens in the student's context"):
        align(replace(pair, student_question=pair.student_question[:-1]), 1)
    with pytest.raises(AlignmentError, match="cannot be"):
        align(replace(pair, reference=pair.teacher_question), 1)
    changed = list(pair.teacher_ids)
    changed[pair.teacher_question[0]] += 1
    with pytest.raises(AlignmentError, match="token ids"):
        align(replace(pair, teacher_ids=tuple(changed)), 1)


def test_settings_are_refused_as_in_a_configuration() -> None:
    pair = build("qwen3").pair(SUM)
    check_settings(lambda **setting: align(pair, 3, **setting), AttentionLossConfig, ("support", "query"))
