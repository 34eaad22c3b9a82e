"""Sets of problems: what rows and problems may lack, which questions can be asked, and the account of both."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.config import DataConfig, PromptConfig
from opasd.data.problems import Problem, load_problems
from opasd.data.sets import RunSet, as_set, digest
from opasd.errors import ConfigError, PromptError
from opasd.prompts.pairs import PromptBuilder
from opasd.trainer.accounts import askable, check_same_problems, write_accounts
from tests.training import PROBLEMS, TOKENIZER

BUILDER = PromptBuilder(TOKENIZER, PromptConfig(imitation="refuse"))
GOOD, BAD = Problem("1 + 1?", answer="2", id="v.jsonl:1"), Problem("Say <|im_end|>", answer="3", id="v.jsonl:2")


def set_of(*problems, on_bad_row="stop"):
    return RunSet(problems, load_problems(PROBLEMS).report, on_bad_row)


def test_a_question_that_cannot_be_asked_is_an_error_or_left_out_and_counted():
    with pytest.raises(PromptError, match=r"^validation set v, v.jsonl:2: .* imitates the chat template") as caught:
        askable("v", set_of(GOOD, BAD), BUILDER)
    assert caught.value.reason == "imitation"
    usable, account = askable("v", set_of(GOOD, BAD, on_bad_row="skip"), BUILDER)
    assert [*usable] == [GOOD]
    assert account.to_dict()["prompts"] == {"skipped": {"imitation": 1}, "first": {"imitation": ["v.jsonl:2"]}}
    assert str(account).endswith("No prompt can be made of 1 of these: imitation (v.jsonl:2).")
    with pytest.raises(ConfigError, match=r"no question of the validation set v can be asked: .*imitation \(v.jsonl:2"):
        askable("v", set_of(BAD, on_bad_row="skip"), BUILDER)
    with pytest.raises(ConfigError, match="no question of the validation set v can be asked"):
        askable("v", set_of(), BUILDER)


def test_questions_are_tried_as_they_will_be_asked():
    tokenizer = copy.deepcopy(TOKENIZER)
    refusal = "{{ raise_exception('odd') if enable_thinking and 'seven' in messages[-1].content }}"
    tokenizer.chat_template = refusal + tokenizer.chat_template
    builder = PromptBuilder(tokenizer, PromptConfig(student_thinking=False))
    problems = set_of(GOOD, Problem("seven?", answer="7", id="v.jsonl:2"))
    assert askable("v", problems, builder)[0].problems == problems.problems
    with pytest.raises(PromptError, match="validation set v, v.jsonl:2: .*odd"):
        askable("v", problems, builder, thinking=True)


def test_the_account_is_written_and_unused_rows_are_named(tmp_path, capsys):
    rows = [{"problem": "1 + 1?", "answer": "2"}, {"problem": "", "answer": "\ud800"}]
    some = load_problems(rows, DataConfig.model_validate({"on_bad_row": "skip", "columns": {"solution": None}}))
    accounts = {name: askable(name, as_set(rows, solutions=False), BUILDER)[1] for name, rows in
                {"all": PROBLEMS, "some": some}.items()}  # fmt: skip
    write_accounts(accounts, tmp_path / "data.json")
    assert capsys.readouterr().err == (
        'some: memory: 1 of 2 rows used. Bad rows skipped: 1 (memory, row 2: column "problem" is empty).\n'
    )
    written = json.loads((tmp_path / "data.json").read_text())
    assert (written["all"]["rows"], written["all"]["kept"], written["all"]["revision"]) == (16, 16, None)
    assert written["some"]["faults"] == ['memory, row 2: column "problem" is empty']


def test_other_problems_than_before_are_refused(tmp_path):
    path = tmp_path / "data.json"

    def account(*problems):
        return {"data": askable("v", set_of(*problems), BUILDER)[1]}

    first = Problem("1 + 1?", "s", "2", "v.jsonl:1")
    check_same_problems(account(first), path)  # there is no account
    write_accounts(account(first, GOOD), path)
    check_same_problems(account(first, GOOD), path)
    check_same_problems(account(Problem("1 + 1?", "s", "2", "moved.jsonl:7"), GOOD), path)
    check_same_problems({"another": account(first)["data"]}, path)
    others = [(first,), (GOOD, first), (GOOD, GOOD), (first, GOOD, GOOD)]
    others += [(Problem(*texts), GOOD) for texts in [("1+1?", "s", "2"), ("1 + 1?", "t", "2"), ("1 + 1?", "s", "3")]]
    for problems in others:
        with pytest.raises(ConfigError, match=r"^data: the problems are not those that the run in .* began with"):
            check_same_problems(account(*problems), path)
    for text in ("", "[]", "{", '{"data": 3}', '{"data": {"kept": 2}}', '{"data": null}'):
        path.write_text(text)
        check_same_problems(account(first), path)


TEXTS = st.text(max_size=3)


@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS, TEXTS | st.none()), max_size=3), min_size=2, max_size=2))
def test_digests_are_as_different_as_the_problems(sets):
    first, second = ([Problem(*texts) for texts in rows] for rows in sets)
    assert (digest(first) == digest(second)) is (first == second)
