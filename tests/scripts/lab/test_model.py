"""The embedded model: its tokenizer, template and contexts, its demonstrations, and what it can do."""

import json
import random
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer

from opasd.config import PromptConfig
from opasd.data.made.counts import LEVELS, MAX_COUNT, make_problems, make_puzzles
from opasd.lab import model_path
from opasd.prompts.alignment import align
from opasd.prompts.chat import Chat
from opasd.prompts.pairs import PromptBuilder
from scripts.lab.demos import Rates, make_demo
from scripts.lab.formats import Formats, wordings
from scripts.lab.measure import SHARP, is_right, log_probabilities, sample, summarise
from scripts.lab.model import END_OF_TEXT, END_OF_TURN, make_tokenizer
from scripts.lab.pretrain import Settings, make_examples, pretrain

TOKENIZER = AutoTokenizer.from_pretrained(model_path())


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def made():
    """The tokenizer that the code makes."""
    return make_tokenizer(wordings())


@given(st.text())
def test_any_text_is_written_without_loss(text):
    assert TOKENIZER.decode(TOKENIZER(text, add_special_tokens=False)["input_ids"]) == text


def test_words_and_numbers_are_single_tokens():
    for puzzle in make_puzzles("test", 40):
        words = re.findall(r" \w+", puzzle.question)
        assert all(len(TOKENIZER(word)["input_ids"]) == 1 for word in words)
    assert all(len(TOKENIZER(f" {number}")["input_ids"]) == 1 for number in range(MAX_COUNT + 1))


def test_the_shipped_tokenizer_is_the_one_the_code_makes(made):
    assert made.get_vocab() == TOKENIZER.get_vocab()
    assert made.chat_template == TOKENIZER.chat_template


def test_the_template_switches_thinking_and_takes_a_system_prompt():
    messages = [{"role": "user", "content": "Hi"}]
    plain = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    off = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    assert plain == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert off == plain + "<think>\n\n</think>\n\n"
    assert (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        in Chat(TOKENIZER, system="Be brief.").encode("Hi", thinking=True).text
    )


@pytest.mark.parametrize("level", LEVELS)
def test_contexts_are_the_products_own_and_align(level):
    builder, formats = PromptBuilder(TOKENIZER, PromptConfig()), Formats(TOKENIZER)
    for problem in make_problems("train", 25, 2, level):
        pair = builder.pair(problem)
        student, teacher = (
            formats.prompt("student", problem.question),
            formats.prompt("privileged", problem.question, problem.solution),
        )
        assert tuple(TOKENIZER(student, add_special_tokens=False)["input_ids"]) == pair.student_ids
        assert tuple(TOKENIZER(teacher, add_special_tokens=False)["input_ids"]) == pair.teacher_ids
        assert formats.prompt("thinking", problem.question) + "<think>\n\n</think>\n\n" == student
        alignment = align(pair, 30)
        assert len(alignment.student_shared) == len(pair.student_ids) - 4 + 30  # without the empty think block
        assert len(alignment.teacher_shared) + len(alignment.solution) == len(pair.teacher_ids) + 30
        assert pair.solution_tokens_cut == 0


@given(st.integers(0, 10**6), st.sampled_from(["student", "thinking", "privileged"]))
def test_demonstrations_are_made_of_whole_tokens(seed, kind):
    for puzzle in make_puzzles("pretrain", 4, seed):
        segments = make_demo(puzzle, kind, Rates(), random.Random(seed)).segments
        parts = [TOKENIZER(text, add_special_tokens=False)["input_ids"] for text, _ in segments]
        whole = TOKENIZER("".join(text for text, _ in segments), add_special_tokens=False)["input_ids"]
        assert [token for part in parts for token in part] == whole


def test_privileged_demonstrations_are_right_unless_a_mistake_was_carried_to_the_end():
    rng, right, puzzles = random.Random(0), {}, make_puzzles("pretrain", 400, 9)
    for kind in ("student", "thinking", "privileged"):
        texts = ["".join(t for t, _ in make_demo(puzzle, kind, Rates(), rng).segments) for puzzle in puzzles]
        right[kind] = sum(is_right(text, p.answer) for text, p in zip(texts, puzzles, strict=True)) / len(puzzles)
    assert 0.3 < right["student"] < 0.55 < right["thinking"] < 0.85 < right["privileged"]
    flawless = Rates(spoiled=0.0, false_alarm=0.0)
    for puzzle in puzzles:
        assert "".join(t for t, _ in make_demo(puzzle, "privileged", flawless, rng).segments) == puzzle.solution


def test_examples_learn_responses_alone_whatever_the_number_of_workers():
    settings = Settings(examples=40)
    examples = make_examples(TOKENIZER, settings, Rates(), workers=1)
    start, end = TOKENIZER.convert_tokens_to_ids("assistant"), TOKENIZER.convert_tokens_to_ids(END_OF_TURN)
    for row, length in enumerate(examples.lengths.tolist()):
        ids, learned = examples.ids[row, :length].tolist(), examples.learned[row]
        assert not learned[: ids.index(start) + 2].any()
        assert ids[-1] == end
        assert learned[length - 1]
        assert not learned[length:].any()


def test_pretraining_runs_and_writes_a_model_with_its_record(tmp_path, made, monkeypatch):
    def sample_briefly(model, tokenizer, puzzles, kind, sampling):
        return sample(model, tokenizer, puzzles, kind, replace(sampling, max_tokens=8))

    monkeypatch.setattr("scripts.lab.pretrain.make_tokenizer", lambda _: made)
    monkeypatch.setattr("scripts.lab.measure.sample", sample_briefly)
    out = tmp_path / "model"
    record = pretrain(out, Settings(size="small", steps=2, batch=4, examples=20, measured=4))
    assert json.loads((out / "TRAINING.json").read_text())["settings"]["steps"] == record["settings"]["steps"] == 2
    assert AutoModelForCausalLM.from_pretrained(out).config.model_type == "qwen3"


def test_the_shipped_model_is_small_and_a_qwen3(model):
    assert sum(file.stat().st_size for file in model_path().iterdir()) <= 8_000_000
    assert model.config.architectures == ["Qwen3ForCausalLM"]
    assert model.config.dtype == torch.float32  # loaded so; the file is bf16
    stored = AutoModelForCausalLM.from_pretrained(model_path(), dtype="auto")
    assert stored.dtype == torch.bfloat16
    ends = [TOKENIZER.convert_tokens_to_ids(token) for token in (END_OF_TURN, END_OF_TEXT)]
    assert model.generation_config.eos_token_id == ends
    record = json.loads((model_path() / "TRAINING.json").read_text())
    assert record["parameters"] == model.num_parameters()


def test_it_solves_a_part_alone_and_far_more_with_the_solution(model):
    puzzles = make_puzzles("test", 36)
    sampling = replace(SHARP, max_tokens=128)
    alone = summarise(puzzles, sample(model, TOKENIZER, puzzles, "student", sampling))
    helped = summarise(puzzles[:12], sample(model, TOKENIZER, puzzles[:12], "privileged", sampling))
    assert 0.25 < alone["accuracy"]["value"] < 0.6
    assert helped["accuracy"]["value"] > 0.9
    assert alone["ended"] > 0.95
    forks = [log_probabilities(model, TOKENIZER, puzzles[:12], kind)["forks"] for kind in ("student", "privileged")]
    assert forks[0] < -0.1 < -0.02 < forks[1]


def test_the_last_box_counts():
    assert is_right("\\boxed{3} no, \\boxed{ 07 }", "7")
    assert not is_right("7", "7")
    assert not is_right("\\boxed{}", "7")
