"""`opasd prompt`: both contexts of a problem, with what is shared."""

import json

import pytest

from opasd.cli.prompt import parts, visible, wrapped
from opasd.config import ModelConfig, PromptConfig
from opasd.data.problems import Problem
from opasd.model.loading import load_tokenizer
from opasd.prompts.pairs import PromptBuilder
from tests.commands import opasd

LAB = load_tokenizer(ModelConfig(name_or_path="lab"))
PAIR = PromptBuilder(LAB, PromptConfig()).pair(Problem("How many?", "Two and two are 4.", "4", "p"))


def test_parts_put_both_contexts_together_again():
    sequence = list(parts(PAIR))
    assert [p for part in sequence for p in part.student] == list(range(len(PAIR.student_ids)))
    assert [p for part in sequence for p in part.teacher] == list(range(len(PAIR.teacher_ids)))
    for part in sequence:
        if part.owner == "both":
            shared = [PAIR.student_ids[p] for p in part.student]
            assert shared == [PAIR.teacher_ids[p] for p in part.teacher]
    assert [p for part in sequence if part.owner == "reference" for p in part.teacher] == list(PAIR.reference)


def test_the_solution_is_the_teachers_alone(tmp_path):
    result = opasd(tmp_path, "prompt", "lab", "--problem", "3", "--width", "130")
    assert result.returncode == 0
    marked = [line for line in result.stdout.splitlines() if line.startswith("» ")]
    assert any("Answer: \\boxed{10}" in line for line in marked)
    assert all(not line[2:60].strip() for line in marked)
    assert "⟦<|im_start|>⟧user⏎" in result.stdout
    assert "student 120 tokens, teacher 233 tokens" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 130


def test_a_narrow_terminal_has_one_below_the_other(tmp_path):
    result = opasd(tmp_path, "prompt", "lab", "--width", "60")
    assert max(len(line) for line in result.stdout.splitlines()[5:]) <= 60


def test_own_wording_and_own_data_are_shown(tmp_path):
    row = {"problem": "Which <|im_end|> of them?", "solution": "The second."}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    words = ["--model.name-or-path", "lab", "--data.source", "own.jsonl", "--prompts.reference", "HINT {solution} "]
    result = opasd(tmp_path, "prompt", *words)
    assert result.returncode == 0, result.stderr
    assert "HINT The second." in result.stdout
    assert "imitated the chat template" in result.stdout
    assert "<⟨200b⟩|im_end|>" in result.stdout


def test_the_context_of_the_attention_loss_follows(tmp_path):
    own = ["--prompts.attention-reference", "LOOK {answer} there.\n", "--width", "130"]
    result = opasd(tmp_path, "prompt", "lab", "--problem", "3", *own)
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.split("problem 3 of")[1:]
    assert "the token loss (prompts.reference)" in first
    assert "the attention loss (prompts.attention_reference)" in second
    assert "LOOK 10 there." in second
    assert "LOOK" not in first
    assert "Answer: \\boxed{10}" not in second


def test_a_run_is_shown_with_its_own_settings(tmp_path):
    (tmp_path / "run").mkdir()
    recipe = opasd(tmp_path, "validate", "lab", "--prompts.instruction", "Be brief.")
    (tmp_path / "run/config.yaml").write_text(recipe.stdout)
    assert "Be brief." in opasd(tmp_path, "prompt", "run").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["lab", "--problem", "0"], "--problem: got 0; give 1 or more"),
        (["lab", "--problem", "99999"], "has 2048 problems"),
        (["nothing"], 'no recipe "nothing"'),
    ],
)
def test_mistakes_are_explained(tmp_path, words, message):
    result = opasd(tmp_path, "prompt", *words)
    assert result.returncode == 2
    assert message in result.stderr


def test_every_character_is_visible():
    ids = LAB("a\tb\x1b[2J", add_special_tokens=False)["input_ids"]
    assert "\x1b" not in visible(LAB, ids)
    assert wrapped("one two\nthree", 5) == ["one ", "two⏎", "three"]
    assert wrapped("", 5) == []
