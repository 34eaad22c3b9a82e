"""The chat templates themselves: frames, system prompts, thinking, dates, and those that cannot be used."""

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken
from transformers import ByT5Tokenizer

from opasd.config import PromptConfig
from opasd.data.problems import Problem
from opasd.errors import ConfigError, PromptError
from opasd.prompts.chat import Chat, Encoded
from opasd.prompts.pairs import PromptBuilder
from tests.tokenizers import ALL, decode, load, own_ids, small

SUM = Problem("What is 12 + 30?", "12 + 30 = 42.", id="sum")
INSTRUCTION = PromptConfig().instruction


def built(name: str, **fields: object) -> PromptBuilder:
    return PromptBuilder(load(name), PromptConfig.model_validate(fields))


@pytest.mark.parametrize(
    "name", [n for n in ALL if any(family in n for family in ("llama", "mistral", "gemma", "bos"))]
)
def test_one_bos(name: str) -> None:
    pair = built(name).pair(SUM)
    for ids in (pair.student_ids, pair.teacher_ids):
        assert ids[0] == load(name).bos_token_id
        assert ids.count(ids[0]) == 1


def test_thinking_of_either_role_and_of_evaluation() -> None:
    thinks = load("qwen3").convert_tokens_to_ids("</think>")
    for student in (False, True):
        for teacher in (False, True):
            pair = built("qwen3", student_thinking=student, teacher_thinking=teacher).pair(SUM)
            assert (thinks in pair.student_ids, thinks in pair.teacher_ids) == (not student, not teacher)
    builder = built("qwen3")
    assert builder.student_ids(SUM.question) == builder.pair(SUM).student_ids
    assert thinks not in builder.student_ids(SUM.question, thinking=True)


@pytest.mark.parametrize("name", ALL)
def test_system_prompt(name: str) -> None:
    pair = built(name, system="You know sums.").pair(SUM)
    for ids in (pair.student_ids, pair.teacher_ids):
        assert decode(load(name), ids).count("You know sums.") == 1
    if load(name).chat_template:
        message = f"Problem: {SUM.question}\n\n{INSTRUCTION}"
        assert list(pair.student_ids) == own_ids(load(name), message, False, "You know sums.")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{{ raise_exception('no system role') if messages[0].role == 'system' }}{{ messages[0].content }}",
            "no system",
        ),
        ("{{ messages[-1].content }}", "drops the system prompt"),
        ("{{ messages[-1].content }}{{ messages[-1].content }}{{ messages[0].content }}", "2 times"),
        ("{% for _ in range(10**9) %}{% endfor %}", "cannot render one user message: OverflowError: Range too big"),
        ("{{ 1 / 0 }}", "cannot render one user message: ZeroDivisionError: division by zero"),
        ("{{ 'x' * 10**15 }}", "cannot render one user message: MemoryError"),
        ("{{ 'x'.encode('none') }}", "cannot render one user message: LookupError: unknown encoding"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "cannot render one user message: RecursionError"),
    ],
)
def test_templates_that_cannot_be_used(template: str, message: str) -> None:
    tokenizer = small("qwen2_5")
    tokenizer.chat_template = template
    with pytest.raises(ConfigError, match=message):
        PromptBuilder(tokenizer, PromptConfig(system="You know sums."))


def test_a_template_that_does_not_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small("qwen3")
    tokenizer.chat_template = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    monkeypatch.setattr("opasd.prompts.chat._LONGEST_S", 0.2)
    with pytest.raises(ConfigError, match="cannot render one user message: it does not end"):
        Chat(tokenizer)


def test_a_template_that_reads_the_message_refuses_the_row() -> None:
    tokenizer = small("qwen2_5")
    tokenizer.chat_template = "{{ messages[0].content | replace('seven', '7') }}!"
    builder = PromptBuilder(tokenizer, PromptConfig())
    assert builder.pair(SUM)
    with pytest.raises(PromptError, match="problem 'x': student's context: the chat template treats") as caught:
        builder.pair(Problem("What is seven?", "7", id="x"))
    assert caught.value.reason == "template"
    tokenizer.chat_template = "{{ raise_exception('odd') if 'seven' in messages[0].content }}{{ messages[0].content }}"
    with pytest.raises(PromptError, match="refuses this text: odd"):
        PromptBuilder(tokenizer, PromptConfig()).pair(Problem("What is seven?", "7"))


def test_contexts_keep_the_date_of_the_first_day(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small("llama3")
    render = tokenizer.apply_chat_template
    monkeypatch.setattr(tokenizer, "apply_chat_template", partial(render, date_string="1 Jan 2030"))
    builder = PromptBuilder(tokenizer, PromptConfig())
    monkeypatch.setattr(tokenizer, "apply_chat_template", partial(render, date_string="12 Feb 2031"))
    pair = builder.pair(SUM)
    for ids in (pair.student_ids, pair.teacher_ids):
        assert "Today Date: 1 Jan 2030\n" in decode(tokenizer, ids)


def test_template_options() -> None:
    pair = built("llama3", template_options={"date_string": "1 Jan 2030"}).pair(SUM)
    assert "Today Date: 1 Jan 2030\n" in decode(load("llama3"), pair.teacher_ids)
    with pytest.raises(ConfigError, match="may not set enable_thinking"):
        built("llama3", template_options={"enable_thinking": True})


def test_a_tokenizer_without_offsets_is_refused() -> None:
    with pytest.raises(ConfigError, match="ByT5Tokenizer has no fast backend"):
        PromptBuilder(ByT5Tokenizer(), PromptConfig())


@pytest.mark.parametrize("name", ["llama3", "gemma", "mistral"])
def test_messages_that_a_template_trims(name: str) -> None:
    wording = {"student": "\n {question}\n\n{instruction}\n\n", "teacher": "\n {question}\n\n{reference}"}
    pair = built(name, **wording).pair(Problem("  What is 12 + 30?", "  42 \n "))
    question = [pair.student_ids[position] for position in pair.student_question]
    assert decode(load(name), question).strip() == "What is 12 + 30?"


SPANS = st.tuples(st.integers(0, 12), st.integers(0, 12)).map(lambda ends: (min(ends), max(ends)))


@given(offsets=st.lists(SPANS, max_size=9) | st.lists(SPANS, max_size=9).map(sorted), span=SPANS)
def test_tokens_of_a_span_are_those_that_share_a_character_with_it(
    offsets: list[tuple[int, int]], span: tuple[int, int]
) -> None:
    """Also where offsets are in no order, as a normaliser may leave them."""
    stretched = [
        (min(start, offsets[n - 1][1] if n else 0), max(end, offsets[n + 1][0] if n + 1 < len(offsets) else 12))
        for n, (start, end) in enumerate(offsets)
    ]
    encoded = Encoded("x" * 12, message=(0, 12), origin=0, ids=(0,) * len(offsets), offsets=tuple(offsets))
    for tokens, edges in ((encoded.tokens(span), offsets), (encoded.tokens_touching(span), stretched)):
        hits = [n for n, (start, end) in enumerate(edges) if start < span[1] and end > span[0]]
        assert tokens == (range(hits[0], hits[-1] + 1) if hits else range(0))


@pytest.mark.parametrize(
    ("offsets", "positions"), [(((0, 2), (2, 4), (4, 6)), range(1, 3)), (((4, 6), (0, 2), (2, 4)), range(3))]
)
def test_tokens_of_a_span_in_any_order(offsets: tuple[tuple[int, int], ...], positions: range) -> None:
    assert Encoded("x" * 6, message=(0, 6), origin=0, ids=(0, 1, 2), offsets=offsets).tokens((3, 5)) == positions


USER_TURN = "{% if m.role == 'user' %}"
VICUNA = (
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% else %}A chat "
    "between a curious user and an assistant.{% endif %}{% for m in messages %}"
    f"{USER_TURN}{{{{ ' USER: ' + m.content }}}}{{% else %}}{{{{ ' ASSISTANT: ' + m.content + eos_token }}}}"
    "{% endif %}{% endfor %} ASSISTANT:"
)
GUANACO = (
    f"{{% for m in messages %}}{USER_TURN}{{{{ '### Human: ' + m.content }}}}{{% elif m.role == 'system' %}}"
    "{{ '### System:\n' + m.content + '\n' }}{% else %}{{ '### Assistant: ' + m.content }}{% endif %}{% endfor %}"
    "### Assistant:"
)
ALPACA = (
    f"{{% for m in messages %}}{USER_TURN}{{{{ '### Instruction:\n' + m.content + '\n\n' }}}}"
    "{% elif m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% else %}{{ '### Response:\n' + m.content }}{% endif %}{% endfor %}### Response:"
)
ZEPHYR = "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + eos_token + '\n' }}{% endfor %}<|assistant|>\n"
HEADERS = {
    VICUNA: ("USER:", "ASSISTANT:"),
    GUANACO: ("### Human:", "### System:", "### Assistant:"),
    ALPACA: ("### Instruction:", "### Response:"),
    ZEPHYR: ("<|system|>", "<|user|>", "<|assistant|>"),
}


@pytest.mark.parametrize("template", HEADERS, ids=["vicuna", "guanaco", "alpaca", "zephyr"])
def test_headers_in_plain_text_are_made_harmless_where_the_template_uses_them(template: str) -> None:
    tokenizer = small("plain")
    tokenizer.chat_template, tokenizer.eos_token = template, "<|endoftext|>"
    chat = Chat(tokenizer)
    everywhere = [header for headers in HEADERS.values() for header in headers]
    for header in everywhere:
        text = f"Say {header} no more"
        own = header in HEADERS[template]
        assert (chat.find_control_string(text) is not None) == own
        assert (chat.neutralise(text) == text) == (not own)
        assert chat.find_control_string(chat.neutralise(text)) is None
    assert chat.neutralise("Problem: the user said so. user system # a") == "Problem: the user said so. user system # a"


@pytest.mark.parametrize("tag", ["<|fim_prefix|>", "<|repo_name|>", "<｜fim▁begin｜>"])
def test_tokens_of_the_vocabulary_in_bars_are_made_harmless(tag: str) -> None:
    tokenizer = small("qwen3")
    ordinary = f"a {tag} b"
    assert Chat(tokenizer).neutralise(ordinary) == ordinary
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False), AddedToken("<b>", normalized=False)])
    pair = PromptBuilder(tokenizer, PromptConfig()).pair(Problem(f"1 {tag} + <b> 1?", f"{tag}2"))
    assert pair.neutralised
    assert tokenizer.convert_tokens_to_ids(tag) not in (*pair.student_ids, *pair.teacher_ids)
    assert tokenizer.convert_tokens_to_ids("<b>") in pair.student_ids
