"""Sets of problems: what rows and problems may lack, and what is counted."""

import pytest

from opasd.config import ColumnConfig, DataConfig
from opasd.data.problems import DataReport, Problem, ProblemSet, load_problems
from opasd.data.sets import RunSet, as_set, load_set
from opasd.errors import ConfigError, DataError


def test_solutions_are_asked_for_where_they_are_needed():
    row = {"problem": "1 + 1?", "answer": 2}
    assert [*as_set([row], solutions=False)] == [Problem("1 + 1?", answer="2", id="memory:1")]
    bare = [Problem("1 + 1?", answer="2"), Problem("2 + 2?", "it is 4", "4", "mine")]
    checked = as_set(bare, solutions=False)
    assert [*checked] == [Problem("1 + 1?", answer="2", id="memory:1"), bare[1]]
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
        message = f'^problem "{problem.id}", row 2: column "{column}" is empty; fix the row or set on_bad_row='
        with pytest.raises(DataError, match=message):
            as_set(make([WHOLE[0], problem, WHOLE[1]]), solutions=True)
    checked = as_set(make([*WHOLE, *BLANK]), "skip", solutions=True)
    assert checked.problems == WHOLE
    assert (checked.report.kept, checked.report.bad, len(checked.report.faults)) == (2, 3, 3)
    assert 'Bad rows skipped: 3 (problem "a", row 3: column "solution" is empty; ' in str(checked.report)
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
    assert as_set(WHOLE, solutions=True).problems == WHOLE
    loaded = load_problems([{"problem": "1?", "solution": "s"}, {"problem": "2?"}], DataConfig(on_bad_row="skip"))
    checked = as_set(loaded, "skip", solutions=True)
    assert (checked.problems, checked.report, checked.on_bad_row) == (loaded.problems, loaded.report, "skip")
    own = RunSet((WHOLE[0],), loaded.report, "skip")
    assert as_set(own, "stop", solutions=False) is own


ODD = [{"frage": "1 + 1?", "weg": "1 + 1 = 2", "wert": 2}, {"frage": "2 + 2?", "weg": "2 + 2 = 4", "wert": 4}]
ODD_COLUMNS = {"question": "frage", "solution": "weg", "answer": "wert"}


def test_columns_are_mapped_as_by_the_command():
    expected = [Problem("1 + 1?", "1 + 1 = 2", "2", "memory:1"), Problem("2 + 2?", "2 + 2 = 4", "4", "memory:2")]
    assert [*as_set(ODD, solutions=True, columns=ODD_COLUMNS)] == expected
    assert [*as_set(ODD, solutions=True, columns=ColumnConfig(**ODD_COLUMNS))] == expected
    assert [problem.solution for problem in as_set(ODD, solutions=False, columns=ODD_COLUMNS)] == ["", ""]
    with pytest.raises(ConfigError, match="^columns: got anwser; give the columns of question, solution, answer"):
        as_set(ODD, solutions=True, columns={"anwser": "wert"})
    with pytest.raises(ConfigError, match="^columns.answer_pattern: .* has no group"):
        as_set(ODD, solutions=True, columns={"answer_pattern": "x"})


def test_errors_name_the_arguments_of_python():
    with pytest.raises(DataError, match='column "problem" is missing; the row has "frage".*; map it in columns={…} or '
                       "set on_bad_row='skip'$") as caught:  # fmt: skip
        as_set(ODD, solutions=True)
    assert "data." not in str(caught.value)
    with pytest.raises(DataError, match="columns={…}, give columns={'solution': None} to show the teacher"):
        as_set([{"problem": "1?"}], solutions=True)
    with pytest.raises(DataError, match='^train_dataset "nowhere.csv" is neither a file'):
        as_set("nowhere.csv", solutions=True)
    with pytest.raises(DataError, match='^eval_dataset is a mapping of "train", not rows'):
        as_set({"train": ODD}, solutions=False, purpose="validation")
    with pytest.raises(DataError, match="^no problem is left to use. .* Check train_dataset, columns$"):
        as_set([{"problem": ""}], "skip", solutions=True)


def test_a_file_and_a_task_by_name(tmp_path):
    (tmp_path / "sums.csv").write_text("frage,weg,wert\n1 + 1?,1 + 1 = 2,2\n")
    loaded = as_set(tmp_path / "sums.csv", solutions=True, columns=ODD_COLUMNS)
    assert [*loaded] == [Problem("1 + 1?", "1 + 1 = 2", "2", "sums.csv:1")]
    assert load_set(loaded.config, "train") == loaded
    assert len(as_set("lab", solutions=True)) > 100


def test_rows_of_trl():
    rows = [
        {"prompt": "1 + 1?", "privileged_context": "1 + 1 = 2", "answer": "2"},
        {"prompt": [{"role": "user", "content": "2 + 2?"}], "privileged_context": "2 + 2 = 4"},
    ]
    assert [(p.question, p.solution, p.answer) for p in as_set(rows[:1], solutions=True)] == [
        ("1 + 1?", "1 + 1 = 2", "2")
    ]
    assert as_set(rows, solutions=True)[1].question == "2 + 2?"
    turns = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": "2"}]
    with pytest.raises(DataError, match='column "prompt" is list'):
        as_set([{"prompt": turns, "privileged_context": "x"}], solutions=True)


def test_a_repeated_question_is_counted():
    report = as_set([*ODD, ODD[0]], solutions=True, columns=ODD_COLUMNS).report
    assert (report.rows, report.kept, report.left_out) == (3, 2, {"deduplicate": 1})
