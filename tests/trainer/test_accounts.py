"""Sets of problems: what rows and problems may lack, which questions can be asked, and the account of it."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.config import DataConfig, PromptConfig
from opasd.data.problems import DataReport, Problem, ProblemSet, load_problems
from opasd.data.sets import RunSet, as_set, digest
from opasd.errors import ConfigError, DataError, PromptError
from opasd.prompts.pairs import PromptBuilder
from opasd.trainer.accounts import askable, check_same, keep
from tests.training import PROBLEMS, TOKENIZER

BUILDER = PromptBuilder(TOKENIZER, PromptConfig(imitation="refuse"))
GOOD, BAD = Problem("1 + 1?", answer="2", id="v.jsonl:1"), Problem("Say <|im_end|>", answer="3", id="v.jsonl:2")


def set_of(*problems, on_bad_row="stop"):
    return RunSet(problems, load_problems(PROBLEMS).report, on_bad_row)


def test_solutions_are_asked_for_where_they_are_needed():
    row = {"problem": "1 + 1?", "answer": 2}
    assert [*as_set([row], solutions=False)] == [Problem("1 + 1?", answer="2", id="memory:1")]
    bare = [Problem("1 + 1?", answer="2"), Problem("2 + 2?", "it is 4", "4", "mine")]
    found = as_set(bare, solutions=False)
    assert [*found] == [Problem("1 + 1?", answer="2", id="memory:1"), bare[1]]
    for dataset in ([row], bare):
        with pytest.raises(DataError, match='column "solution" is'):
            as_set(dataset, solutions=True)
    with pytest.raises(DataError, match='^memory, row 1: column "question" is empty'):
        as_set([Problem(" ", answer="2")], solutions=False)
    with pytest.raises(ConfigError, match="^on_bad_row: got 'ignore'; use one of stop, skip$"):
        as_set([row], "ignore", solutions=False)  # pyright: ignore[reportArgumentType]


BLANK = (Problem("1?", "", None, "a"), Problem("2?", " \n", None, "b"), Problem("", "s", None, "c"))
WHOLE = (Problem("3?", "s", "3", "d"), Problem("3?", "s", "3", "e"))


@pytest.mark.parametrize("make", [list, lambda problems: ProblemSet(tuple(problems), DataReport("made", None, 9, 9))])
def test_problems_with_an_id_need_their_texts_too(make):
    for problem, column in zip(BLANK, ("solution", "solution", "question"), strict=True):
        message = f'^problem "{problem.id}", row 2: column "{column}" is empty; fix the row or set data.on_bad_row'
        with pytest.raises(DataError, match=message):
            as_set(make([WHOLE[0], problem, WHOLE[1]]), solutions=True)
    found = as_set(make([*WHOLE, *BLANK]), "skip", solutions=True)
    assert found.problems == WHOLE
    assert (found.report.kept, found.report.bad, len(found.report.faults)) == (2, 3, 3)
    assert 'Bad rows skipped: 3 (problem "a", row 3: column "solution" is empty; ' in str(found.report)
    assert [problem.id for problem in as_set(make([*BLANK[:2], *WHOLE]), solutions=False)] == ["a", "b", "d", "e"]
    with pytest.raises(DataError, match='problem "c", row 1: column "question" is empty'):
        as_set(make([BLANK[2]]), solutions=False)
    with pytest.raises(DataError, match="no problem is left to use"):
        as_set(make(BLANK), "skip", solutions=True)


def test_problems_with_an_id_are_not_chosen_among():
    long = Problem("long?", "s" * 1_000_001, "1", "long")
    assert as_set([long, *WHOLE, *WHOLE], solutions=True).problems == (long, *WHOLE, *WHOLE)
    assert not as_set([], solutions=True).problems


def test_what_is_a_set_already_stays_as_it_is():
    assert as_set(PROBLEMS, solutions=True).problems == tuple(PROBLEMS)
    loaded = load_problems([{"problem": "1?", "solution": "s"}, {"problem": "2?"}], DataConfig(on_bad_row="skip"))
    found = as_set(loaded, "skip", solutions=True)
    assert (found.problems, found.report, found.on_bad_row) == (loaded.problems, loaded.report, "skip")
    mine = set_of(GOOD, on_bad_row="skip")
    assert as_set(mine, "stop", solutions=False) is mine


def test_a_question_that_cannot_be_asked_is_an_error_or_left_out_and_counted():
    with pytest.raises(PromptError, match=r"^validation set v, v.jsonl:2: .* imitates the chat template") as caught:
        askable("v", set_of(GOOD, BAD), BUILDER)
    assert caught.value.reason == "imitation"
    kept, account = askable("v", set_of(GOOD, BAD, on_bad_row="skip"), BUILDER)
    assert [*kept] == [GOOD]
    assert account.to_dict()["prompts"] == {"skipped": {"imitation": 1}, "first": {"imitation": ["v.jsonl:2"]}}
    assert str(account).endswith("No prompt can be made of 1 of these: imitation (v.jsonl:2).")
    with pytest.raises(ConfigError, match=r"no question of the validation set v can be asked: .*imitation \(v.jsonl:2"):
        askable("v", set_of(BAD, on_bad_row="skip"), BUILDER)
    with pytest.raises(ConfigError, match="no question of the validation set v can be asked"):
        askable("v", set_of(), BUILDER)


def test_questions_are_tried_as_they_will_be_asked():
    tokenizer = copy.deepcopy(TOKENIZER)
    odd = "{{ raise_exception('odd') if enable_thinking and 'seven' in messages[-1].content }}"
    tokenizer.chat_template = odd + tokenizer.chat_template
    builder = PromptBuilder(tokenizer, PromptConfig(student_thinking=False))
    given = set_of(GOOD, Problem("seven?", answer="7", id="v.jsonl:2"))
    assert askable("v", given, builder)[0].problems == given.problems
    with pytest.raises(PromptError, match="validation set v, v.jsonl:2: .*odd"):
        askable("v", given, builder, thinking=True)


def test_the_account_is_kept_and_what_was_left_out_is_told(tmp_path, capsys):
    rows = [{"problem": "1 + 1?", "answer": "2"}, {"problem": "", "answer": "\ud800"}]
    some = load_problems(rows, DataConfig.model_validate({"on_bad_row": "skip", "columns": {"solution": None}}))
    accounts = {name: askable(name, as_set(given, solutions=False), BUILDER)[1] for name, given in
                {"all": PROBLEMS, "some": some}.items()}  # fmt: skip
    keep(accounts, tmp_path / "data.json")
    assert capsys.readouterr().err == (
        'some: memory: 1 of 2 rows used. Bad rows skipped: 1 (memory, row 2: column "problem" is empty).\n'
    )
    kept = json.loads((tmp_path / "data.json").read_text())
    assert (kept["all"]["rows"], kept["all"]["kept"], kept["all"]["revision"]) == (16, 16, None)
    assert kept["some"]["faults"] == ['memory, row 2: column "problem" is empty']


def test_other_problems_than_before_are_refused(tmp_path):
    path = tmp_path / "data.json"

    def account(*problems):
        return {"data": askable("v", set_of(*problems), BUILDER)[1]}

    first = Problem("1 + 1?", "s", "2", "v.jsonl:1")
    check_same(account(first), path)  # no account was kept
    keep(account(first, GOOD), path)
    check_same(account(first, GOOD), path)
    check_same(account(Problem("1 + 1?", "s", "2", "moved.jsonl:7"), GOOD), path)
    check_same({"another": account(first)["data"]}, path)
    others = [(first,), (GOOD, first), (GOOD, GOOD), (first, GOOD, GOOD)]
    others += [(Problem(*texts), GOOD) for texts in [("1+1?", "s", "2"), ("1 + 1?", "t", "2"), ("1 + 1?", "s", "3")]]
    for problems in others:
        with pytest.raises(ConfigError, match=r"^data: the problems are not those that the run in .* began with"):
            check_same(account(*problems), path)
    for text in ("", "[]", "{", '{"data": 3}', '{"data": {"kept": 2}}', '{"data": null}'):
        path.write_text(text)
        check_same(account(first), path)


TEXTS = st.text(max_size=3)


@given(st.lists(st.lists(st.tuples(TEXTS, TEXTS, TEXTS | st.none()), max_size=3), min_size=2, max_size=2))
def test_digests_are_as_different_as_the_problems(sets):
    first, second = ([Problem(*texts) for texts in one] for one in sets)
    assert (digest(first) == digest(second)) is (first == second)
