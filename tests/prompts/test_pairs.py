"""The two contexts: wording, templates, imitation of templates, fitting, and what is counted."""

import tracemalloc
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, normalizers
from transformers import PreTrainedTokenizerBase

from opasd.choices import CutPolicy
from opasd.config import PromptConfig
from opasd.data.problems import Problem
from opasd.errors import AlignmentError, ConfigError, PromptError
from opasd.prompts.pairs import CUT_MARK, PromptBuilder, PromptPairs
from tests.texts import IMITATIONS, plain_texts, texts
from tests.tokenizers import ALL, decode, load, own_ids, small

SUM = Problem("What is 12 + 30?", "12 + 30 = 42.", id="sum")
INSTRUCTION = PromptConfig().instruction
quick = settings(max_examples=25, deadline=None, database=None, derandomize=True)


@cache
def build(name: str, config: PromptConfig | None = None) -> PromptBuilder:
    return PromptBuilder(load(name), config or PromptConfig())


def built(name: str, **fields: object) -> PromptBuilder:
    return PromptBuilder(load(name), PromptConfig.model_validate(fields))


def control_tokens(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> Counter[str]:
    """How often each special token or think tag stands in a context; `<unk>` also stands for unknown characters."""
    added = tokenizer.added_tokens_decoder
    controls = {i: t.content for i, t in added.items() if t.special or "think" in t.content or "tool_" in t.content}
    return Counter(controls[i] for i in ids if i in controls and controls[i] != "<unk>")


@pytest.mark.parametrize("name", ALL)
def test_ids_are_the_chat_templates_own(name: str) -> None:
    pair = build(name).pair(SUM)
    config = PromptConfig()
    block = config.reference.format(solution=SUM.solution)
    student, teacher = (f"Problem: {SUM.question}\n\n{middle}{INSTRUCTION}" for middle in ("", block))
    assert list(pair.student_ids) == own_ids(load(name), student, False)
    assert list(pair.teacher_ids) == own_ids(load(name), teacher, True)
    assert (pair.neutralised, pair.solution_tokens_cut) == (False, 0)


@pytest.mark.parametrize("name", ALL)
def test_ids_are_the_chat_templates_own_for_any_text(name: str) -> None:
    @quick
    @given(question=plain_texts)
    def holds(question: str) -> None:
        assume(not build(name).pair(Problem(question, "1")).neutralised)
        message = f"Problem: {question}\n\n{INSTRUCTION}"
        assert list(build(name).student_ids(question)) == own_ids(load(name), message, False)

    holds()


def test_the_default_wording() -> None:
    pair = build("qwen3").pair(SUM)
    text = decode(load("qwen3"), pair.teacher_ids)
    assert text.startswith("<|im_start|>user\nProblem: What is 12 + 30?\n\nHere is a reference solution")
    assert "=== Reference Solution Begin ===\n12 + 30 = 42.\n=== Reference Solution End ===\n\n" in text
    assert text.endswith(f"\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n")
    student = decode(load("qwen3"), pair.student_ids)
    assert student == (
        f"<|im_start|>user\nProblem: What is 12 + 30?\n\n{INSTRUCTION}<|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


@pytest.mark.parametrize("policy", ["tail", "head", "middle"])
@pytest.mark.parametrize("name", ["llama3", "gemma", "mistral"])
def test_solutions_that_a_template_trims_are_cut_exactly(name: str, policy: CutPolicy) -> None:
    solution = " " * 40 + " ".join(f"step{i}" for i in range(100, 200)) + " " * 40
    for teacher in ("{reference}\n\n{question}\n", "{question}\n{reference}"):
        wording = {"student": "{question}\n", "teacher": teacher, "reference": "{solution}", "cut_solution": policy}
        limit = len(built(name, **wording).pair(Problem("So?", solution)).teacher_ids) - 90
        pair = built(name, **wording, max_teacher_tokens=limit).pair(Problem("So?", solution))
        assert limit - 6 <= len(pair.teacher_ids) <= limit


@pytest.mark.parametrize("name", ALL)
def test_imitation_leaves_the_roles_intact(name: str) -> None:
    builder, tokenizer = build(name), load(name)
    harmless = builder.pair(SUM)
    expected = [control_tokens(tokenizer, ids) for ids in (harmless.student_ids, harmless.teacher_ids)]
    neutralised = 0
    for text in IMITATIONS:
        for problem in (
            Problem(f"What is {text}{text} 1?", "It is 2."),
            Problem("What is 1?", f"{text}It is 2.\n{text}"),
            Problem(text, text),
        ):
            pair = builder.pair(problem)
            neutralised += pair.neutralised
            controls = [control_tokens(tokenizer, ids) for ids in (pair.student_ids, pair.teacher_ids)]
            assert controls == expected, text
    assert neutralised >= 6


@pytest.mark.parametrize("name", ALL)
def test_imitation_leaves_the_roles_intact_for_any_text(name: str) -> None:
    builder, tokenizer = build(name), load(name)
    expected = control_tokens(tokenizer, builder.pair(SUM).teacher_ids)

    @quick
    @given(question=texts, solution=texts)
    def holds(question: str, solution: str) -> None:
        assert control_tokens(tokenizer, builder.pair(Problem(question, solution)).teacher_ids) == expected

    holds()


def test_a_role_marker_of_plain_text_is_neutralised() -> None:
    pair = build("text_only").pair(Problem("What?\n\n### Assistant:\nNothing.", "42"))
    assert pair.neutralised
    assert decode(load("text_only"), pair.student_ids).count("### Assistant:") == 1


def test_harmless_markup_is_left_alone() -> None:
    pair = build("gemma").pair(Problem("What is <b>1</b>\n\n[0] x < y > z?", "<0x41> is [1].\n\n\n"))
    assert not pair.neutralised


@pytest.mark.parametrize("problem", [Problem("<|im_end|>", "1", id="q7"), Problem("1", "so </think>", id="q7")])
def test_imitation_refused(problem: Problem) -> None:
    builder = built("qwen3", imitation="refuse")
    with pytest.raises(PromptError, match=r"problem 'q7': the text imitates .*(<\|im_end\|>|</think>)") as caught:
        builder.pair(problem)
    assert caught.value.reason == "imitation"


@pytest.mark.parametrize("text", ["</think>", "＜/think＞"])
def test_control_tokens_that_only_the_normaliser_makes_are_refused(text: str) -> None:
    tokenizer = small("qwen2_5")
    backend = tokenizer.backend_tokenizer
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\u200b", "")])
    backend.add_tokens([AddedToken("</think>", special=False, normalized=True)])
    with pytest.raises(PromptError, match="emit the control token '</think>'") as caught:
        PromptBuilder(tokenizer, PromptConfig()).pair(Problem("What?", f"It is {text} 2."))
    assert caught.value.reason == "imitation"


@pytest.mark.parametrize("policy", ["tail", "head", "middle"])
@pytest.mark.parametrize("name", ALL)
def test_cut_solutions(name: str, policy: CutPolicy) -> None:
    solution = " ".join(f"step{i}" for i in range(100, 400))
    whole = build(name).pair(Problem(SUM.question, solution))
    limit = len(whole.teacher_ids) - 200
    pair = built(name, cut_solution=policy, max_teacher_tokens=limit).pair(Problem(SUM.question, solution))
    assert limit - 6 <= len(pair.teacher_ids) <= limit
    assert 200 <= pair.solution_tokens_cut <= 215
    assert pair.student_ids == whole.student_ids
    text = decode(load(name), pair.teacher_ids)
    body = text.split("Solution Begin ===\n")[1].split("\n=== Reference Solution End")[0]
    first, _, last = body.partition(CUT_MARK)
    assert body.count(CUT_MARK) == 1
    assert solution.startswith(first.rstrip())
    assert solution.endswith(last.lstrip())
    assert (bool(first), bool(last)) == (policy != "head", policy != "tail")
    if policy == "middle":
        assert abs(len(first) - len(last)) < 30
    assert text.endswith(decode(load(name), whole.teacher_ids[-20:]))


@pytest.mark.parametrize("name", ALL)
def test_any_solution_fits_any_limit_or_is_refused(name: str) -> None:
    @quick
    @given(solution=texts, over=st.integers(1, 200), policy=st.sampled_from(("tail", "head", "middle")))
    def holds(solution: str, over: int, policy: CutPolicy) -> None:
        problem = Problem(SUM.question, solution)
        limit = max(len(build(name).pair(problem).teacher_ids) - over, 1)
        cutting = built(name, cut_solution=policy, max_teacher_tokens=limit)
        pairs, report = cutting.pairs([problem], on_bad_row="skip")
        assert pairs or report.skipped == {"solution_too_long": 1}
        for pair in pairs:
            assert limit - 8 <= len(pair.teacher_ids) <= limit
            assert pair.solution_tokens_cut >= over

    holds()


def test_rows_that_do_not_fit() -> None:
    with pytest.raises(PromptError, match=r"problem 'sum': the student's context has \d+ tokens, max") as caught:
        built("qwen3", max_student_tokens=10).pair(SUM)
    assert caught.value.reason == "student_too_long"
    for policy in ("skip", "tail"):
        with pytest.raises(PromptError, match=r"problem 'sum': the teacher's context has \d+ tokens, max") as caught:
            built("qwen3", max_teacher_tokens=40, cut_solution=policy).pair(SUM)
        assert caught.value.reason == "solution_too_long"
    pairs, report = built("qwen3", max_teacher_tokens=40, cut_solution="skip").pairs([SUM])
    assert (len(pairs), report.skipped) == (0, {"solution_too_long": 1})  # asked for, so no mistake
    with pytest.raises(PromptError, match="max_teacher_tokens = 40"):
        built("qwen3", max_teacher_tokens=40, cut_solution="tail").pairs([SUM])


ANSWERED = Problem("What is 12 + 30?", "12 + 30 = 42.", "42", "sum")
ANSWER_ALONE = "The final answer is {answer}.\n\n"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("reference", [ANSWER_ALONE, "It is {answer}: {solution}\n", "{{answer}} is not {solution}\n"])
def test_a_reference_may_show_the_answer(name: str, reference: str) -> None:
    pair = built(name, reference=reference).pair(ANSWERED)
    block = reference.format(answer="42", solution=ANSWERED.solution)
    assert list(pair.teacher_ids) == own_ids(load(name), f"Problem: {SUM.question}\n\n{block}{INSTRUCTION}", True)
    assert pair.student_ids == build(name).pair(SUM).student_ids
    shown = decode(load(name), pair.teacher_ids[pair.reference.start : pair.reference.stop])
    assert block.strip() in shown


def test_an_answer_that_is_not_there_or_imitates_the_template() -> None:
    builder = built("qwen3", reference=ANSWER_ALONE)
    with pytest.raises(
        PromptError, match=r"problem 'sum': there is no {answer}, which prompts.reference shows"
    ) as caught:
        builder.pair(SUM)
    assert caught.value.reason == "missing"
    pairs, report = builder.pairs([SUM, ANSWERED], on_bad_row="skip")
    assert [pair.problem for pair in pairs] == [ANSWERED]
    assert report.to_dict()["skipped_missing"] == 1
    assert builder.pair(Problem(SUM.question, answer="<|im_end|>")).neutralised
    assert not builder.pair(Problem(SUM.question, "<|im_end|>", "42")).neutralised  # nobody is shown it
    with pytest.raises(PromptError, match="imitates the chat template"):
        built("qwen3", reference=ANSWER_ALONE, imitation="refuse").pair(Problem(SUM.question, answer="<|im_end|>"))


def test_a_reference_may_show_pointers_alone() -> None:
    builder = built(
        "qwen3", reference="Use statements {pointers}.\n", teacher="{reference}Problem: {question}\n\n{instruction}"
    )
    pointed = Problem(SUM.question, id="sum", pointers="3, 17")
    pair = builder.pair(pointed)
    text = decode(load("qwen3"), pair.teacher_ids)
    assert "Use statements 3, 17.\nProblem: " in text
    assert pair.reference.stop <= pair.teacher_question.start
    with pytest.raises(PromptError, match=r"there is no {pointers}, .* name its column in columns.pointers") as caught:
        builder.pair(SUM)
    assert caught.value.reason == "missing"


POINTED = Problem("What is 12 + 30?", "12 + 30 = 42.", "42", "sum", pointers="1, 3")


@pytest.mark.parametrize("name", ALL)
def test_the_attention_loss_may_have_a_reference_of_its_own(name: str) -> None:
    own = "Use {pointers}, for {answer}.\n"
    pair = built(name, attention_reference=own).pair(POINTED)
    alone, plain = built(name, reference=own).pair(POINTED), build(name).pair(POINTED)
    assert pair == replace(plain, attention=alone)
    pairs, _ = built(name, attention_reference=own).pairs([POINTED, ANSWERED], on_bad_row="skip")
    assert list(pairs) == [pair]
    assert pairs.longest == {"student": len(pair.student_ids), "teacher": pair.teacher_tokens}


def test_a_reference_of_its_own_is_checked_and_cut_as_the_other() -> None:
    both = {"attention_reference": "Look again: {solution}\n" + "Then say it. " * 60, "reference": ANSWER_ALONE}
    with pytest.raises(ConfigError, match=r"prompts.attention_reference has an unknown field: got {hint}"):
        built("qwen3", attention_reference="{hint}")
    with pytest.raises(ConfigError, match=r"prompts.attention_reference must have {solution} once: got it 0 times"):
        built("qwen3", attention_reference="Look.")
    with pytest.raises(ConfigError, match=r"prompts.attention_reference contains '<\|im_end\|>'"):
        built("qwen3", attention_reference="<|im_end|>{answer}")
    with pytest.raises(PromptError, match=r"there is no {pointers}, which prompts.attention_reference shows"):
        built("qwen3", attention_reference="{pointers}\n").pair(ANSWERED)
    long = replace(ANSWERED, solution=" and again" * 200)
    limit = len(built("qwen3", **both).pair(ANSWERED).attention.teacher_ids) + 30
    cut, report = built("qwen3", **both, max_teacher_tokens=limit).pairs([long])
    assert cut[0].solution_tokens_cut == 0
    assert report.solution_tokens_cut == cut[0].attention.solution_tokens_cut > 100
    with pytest.raises(PromptError, match="with prompts.attention_reference: the teacher's context has") as caught:
        built("qwen3", **both, max_teacher_tokens=limit, cut_solution="skip").pair(long)
    assert caught.value.reason == "solution_too_long"
    joined = {"teacher": "Problem: {question}{reference}{instruction}", "student": "Problem: {question} {instruction}"}
    with pytest.raises(AlignmentError, match=r"with prompts.attention_reference: token \d+ of the question"):
        built("qwen3", **joined, reference=" {answer}\n", attention_reference="\n\n{answer}\n").pair(ANSWERED)


def test_an_answer_is_never_cut() -> None:
    both = "{solution} So it is {answer}.\n"
    long = Problem(SUM.question, " and again" * 200, "424242", "long")
    limit = len(built("qwen3", reference=both).pair(ANSWERED).teacher_ids) + 30
    pair = built("qwen3", reference=both, max_teacher_tokens=limit).pair(long)
    assert pair.solution_tokens_cut > 100
    assert "So it is 424242." in decode(load("qwen3"), pair.teacher_ids)
    with pytest.raises(PromptError, match="there is no solution to cut; raise the limit") as caught:
        built("qwen3", reference=ANSWER_ALONE, max_teacher_tokens=30).pair(ANSWERED)
    assert caught.value.reason == "teacher_too_long"


def test_text_that_cannot_be_tokenised() -> None:
    for question in ("\ud800", "ok \udfff"):
        with pytest.raises(PromptError, match="not valid Unicode") as caught:
            build("qwen3").pair(Problem(question, "1"))
        assert caught.value.reason == "text"
    with pytest.raises(PromptError, match="leaves no token"):
        build("qwen3").pair(Problem("", "1"))


def test_report() -> None:
    short, long = len(build("qwen3").pair(SUM).teacher_ids), " and again" * 100
    problems = [
        SUM,
        Problem(SUM.question, SUM.solution + long, id="cut"),
        Problem(SUM.question, "</think>", id="imitates"),
        *(Problem(SUM.question + long, "1", id=f"long{i}") for i in range(7)),
        Problem("\ud800", "1", id="broken"),
    ]
    builder = built("qwen3", max_student_tokens=60, max_teacher_tokens=short + 20)
    pairs, report = builder.pairs(problems, on_bad_row="skip")
    assert [pair.problem.id for pair in pairs] == ["sum", "cut", "imitates"]
    cut = pairs[1].solution_tokens_cut
    assert cut > 100
    assert report.to_dict() == {
        "rows": 11,
        "used": 3,
        "skipped": 8,
        "skipped_student_too_long": 7,
        "skipped_text": 1,
        "solutions_cut": 1,
        "solution_tokens_cut": cut,
        "neutralised": 1,
    }
    assert report.skipped_ids == {"student_too_long": [f"long{i}" for i in range(5)], "text": ["broken"]}
    with pytest.raises(PromptError, match="long0"):
        builder.pairs(problems)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("start", ["\n", "\n\n  ", " ", "\t", "\r\n"])
def test_a_reference_may_begin_with_a_solution_that_begins_with_white_space(name: str, start: str) -> None:
    bare = built(name, reference="{solution}\n\n")
    pair = bare.pair(Problem("What is 12 + 30?", f"{start}1. 12 + 30 = 42."))
    plain = bare.pair(Problem("What is 12 + 30?", "1. 12 + 30 = 42."))
    assert pair.teacher_ids == plain.teacher_ids
    assert pair.student_question == plain.student_question


@pytest.mark.parametrize("name", ALL)
def test_many_at_once_are_what_each_is_alone(name: str) -> None:
    """More than are encoded together, with rows that are cut, neutralised, refused and there twice."""
    unusual = ["\ud800", " ", "x" * 3000, *IMITATIONS]
    rows = [Problem(f"What is {n} + 30?", f"{n} + 30 = {n + 30}. " * (1 + n % 40), id=str(n)) for n in range(70)]
    rows += [Problem(text, text, id=repr(text)) for text in unusual] + rows[:2]
    short = build(name).pair(rows[0])
    limits = {"max_student_tokens": len(short.student_ids) + 60, "max_teacher_tokens": len(short.teacher_ids) + 60}
    builder = built(name, **limits)
    alone, refused = [], Counter[str]()
    for row in rows:
        try:
            alone.append(builder.pair(row))
        except PromptError as error:
            refused[error.reason] += 1
    pairs, report = builder.pairs(iter(rows), on_bad_row="skip")
    assert list(pairs) == alone
    assert report.skipped == refused
    assert any(pair.solution_tokens_cut for pair in pairs)


def test_pairs_that_are_kept_take_four_bytes_a_token() -> None:
    made = [build("qwen3").pair(Problem(SUM.question, f"{n}: {SUM.solution} " * 500, id=str(n))) for n in range(5)]
    tracemalloc.start()
    packed = PromptPairs(made)
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert list(packed) == made
    assert (len(packed), packed[-1], list(packed[1:3])) == (5, made[-1], made[1:3])
    assert packed.problems == [pair.problem for pair in made]
    with pytest.raises(IndexError):
        packed[5]
    tokens = sum(len(pair.student_ids) + len(pair.teacher_ids) for pair in made)
    assert 4 * tokens <= size < 4 * tokens + 10_000 < 5 * tokens


@pytest.mark.parametrize("field", ["student", "teacher", "reference", "instruction", "system"])
def test_a_wording_that_no_tokenizer_reads_is_refused(field):
    with pytest.raises(ValueError, match="half a surrogate pair"):
        PromptConfig.model_validate({field: "x \ud800"})
    with pytest.raises(ValueError, match="half a surrogate pair"):
        PromptConfig.model_validate({"template_options": {"date_string": "\udfff"}})
