"""Problems from rows: checked, mapped, filtered and sampled."""

import collections
import dataclasses
import itertools
import json
import math
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from opasd.config import ColumnConfig, DataConfig, PromptConfig, RunConfig
from opasd.data.problems import DataReport, Problem, ProblemSet, iter_problems, load_problems
from opasd.errors import DataError
from tests.data.rows import (
    PROBLEMS,
    ROWS,
    SKIP,
    Row,
    bare,
    each_format,
    error_of,
    numbered,
    row,
    write,
)


def test_the_source_may_stand_in_the_config(tmp_path: Path) -> None:
    path = write(tmp_path, ".jsonl", ROWS)
    assert bare(load_problems(config=DataConfig(source=str(path)))) == PROBLEMS


def test_rows_in_memory() -> None:
    assert bare(load_problems(ROWS)) == PROBLEMS
    assert bare(load_problems(iter(ROWS))) == PROBLEMS
    assert [p.id for p in load_problems(ROWS)] == ["memory:1", "memory:2", "memory:3"]


def test_problemsin_memory_keep_their_own_id_and_are_checked_too() -> None:
    given_problems = [Problem("q", "s", "1", id="mine"), Problem("r", "s")]
    assert list(load_problems(given_problems)) == [given_problems[0], Problem("r", "s", id="memory:2")]
    assert error_of([Problem("q", " ")]) == (
        'memory, row 1: column "solution" is empty; fix the row or set data.on_bad_row: skip'
    )
    assert error_of([given_problems[0], Problem(" ", "s", id="\ud800")]) == (
        'problem "\\ud800", row 2: column "question" is empty; fix the row or set data.on_bad_row: skip'
    )


def test_columns_are_mapped(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "proof": "s", "final": 3, "problem": 0, "solution": 0, "answer": []}]
    config = DataConfig(columns=ColumnConfig(question="prompt", solution="proof", answer="final"))
    assert bare(load_problems(rows, config)) == [Problem("q", "s", "3")]
    for suffix in (".json", ".csv"):
        assert bare(load_problems(write(tmp_path, suffix, rows), config)) == [Problem("q", "s", "3")]


def test_a_problem_set_is_a_sequence() -> None:
    problems = load_problems(ROWS)
    assert isinstance(problems, ProblemSet)
    assert isinstance(problems, Sequence)
    assert len(problems) == 3
    assert problems[-1] is problems.problems[2]
    assert problems[:2] == problems.problems[:2]
    assert next(reversed(problems)) in problems
    assert "What is" not in repr(problems)
    with pytest.raises(AttributeError):
        problems.report = DataReport()


@each_format
def test_a_bad_row_stops_with_its_exact_number(tmp_path: Path, suffix: str) -> None:
    rows = [row(f"q{n}", "" if n == 3 else "s") for n in range(1, 6)]
    assert error_of(write(tmp_path, suffix, rows)) == (
        f'math{suffix}, row 3: column "solution" is empty; fix the row or set data.on_bad_row: skip'
    )


@each_format
def test_skipped_rows_are_counted_and_named(tmp_path: Path, suffix: str) -> None:
    rows = [row(f"q{n}", "" if n % 2 == 0 else "s") for n in range(1, 101)]
    problems = load_problems(write(tmp_path, suffix, rows), SKIP)
    report = problems.report
    assert (report.rows, report.kept, report.bad) == (100, 50, 50)
    assert [fault.row for fault in report.faults] == list(range(2, 42, 2))
    assert {(f.source, f.column, f.found) for f in report.faults} == {(f"math{suffix}", "solution", "is empty")}
    assert f'Bad rows skipped: 50 (math{suffix}, row 2: column "solution" is empty; ' in str(report)
    assert str(report).endswith("; and 45 more).")
    assert json.loads(json.dumps(dataclasses.asdict(report))) == dataclasses.asdict(report)
    assert [p.id for p in problems[:2]] == [f"math{suffix}:1", f"math{suffix}:3"]


HALF = "half a surrogate pair, or a byte that is not UTF-8"


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (row(" \n\t"), 'column "problem" is empty'),
        ({"problem": "q"}, 'column "solution" is missing; the row has "problem"'),
        (row(solution=None), 'column "solution" is null, not text'),
        (row(solution=4), 'column "solution" is int 4, not text'),
        (row(solution=["s"]), "column \"solution\" is list ['s'], not text"),
        (row(solution=b"s"), "column \"solution\" is bytes b's', not text"),
        (row(solution="a" * 11), 'column "solution" has 11 characters, more than data.solution_limit 10'),
        (row("a" * 11), 'column "problem" has 11 characters, more than data.solution_limit 10'),
        (row(answer="1" * 11), 'column "answer" has 11 characters, more than data.solution_limit 10'),
        (row(solution="ab\0c"), 'column "solution" holds U+0000 (NUL) at character 3'),
        (row("\ud83d"), f'column "problem" holds U+D83D ({HALF}) at character 1'),
        (row(answer=True), 'column "answer" is bool True, not text or a number'),
        (row(answer=[1]), 'column "answer" is list [1], not text or a number'),
        (row(answer={}), 'column "answer" is dict {}, not text or a number'),
        (row(answer=math.nan), 'column "answer" is float nan, not text or a number'),
        (row(answer=10**5000), 'column "answer" is a number of too many digits'),
        (row(answer=Decimal("sNaN")), "column \"answer\" is Decimal Decimal('sNaN'), not text or a number"),
        (row(Answer="\0"), 'column "Answer" holds U+0000 (NUL) at character 1'),
        ("text", "is str 'text', not an object with columns"),
        (None, "is null, not an object with columns"),
        ([1, 2], "is list [1, 2], not an object with columns"),
    ],
)
def test_what_makes_a_row_bad(bad: Any, fault: str) -> None:
    rows = [row("fine"), bad]
    config = DataConfig(solution_limit=10)
    assert error_of(rows, config) == f"memory, row 2: {fault}; fix the row or set data.on_bad_row: skip"
    assert [str(f) for f in load_problems(rows, config.model_copy(update={"on_bad_row": "skip"})).report.faults] == [
        f"memory, row 2: {fault}"
    ]


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({}, None),
        ({"answer": None}, None),
        ({"answer": ""}, None),
        ({"answer": "  "}, None),
        ({"answer": " 7 "}, " 7 "),
        ({"answer": "007"}, "007"),
        ({"answer": 42}, "42"),
        ({"answer": 42.0}, "42.0"),
        ({"answer": 10**30}, "1" + "0" * 30),
        ({"answer": -(10**400)}, "-1" + "0" * 400),
        ({"answer": Decimal("12.50")}, "12.50"),
        ({"answer": np.int64(5)}, "5"),
        ({"answer": np.float64(0.5)}, "0.5"),
        ({"answer": Fraction(1, 3)}, "1/3"),
        ({"Answer": "A"}, "A"),
        ({"Answer": "A", "answer": "a"}, "a"),
    ],
)
def test_the_answer_is_text_or_none(answers: dict[str, Any], expected: str | None) -> None:
    assert load_problems([row(**answers)])[0].answer == expected


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("48 + 24 = 72 clips.\n#### 72", "72"), ("#### 1\nmore\n#### 1,000 \n", "1,000"), ("72", "72"),
        ("####", "####"), ("####  ", None), (7, "7"), (None, None), ("  ", None),
    ],
)  # fmt: skip
def test_an_answer_stands_where_its_pattern_says(cell: Any, expected: str | None) -> None:
    columns = ColumnConfig(question="question", solution="work", answer="answer", answer_pattern=r"####\s*(.+?)\s*$")
    rows = [{"question": "q", "work": "w", "answer": cell}]
    assert load_problems(rows, DataConfig(columns=columns))[0].answer == expected


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("####", "has no group"), ("(", "no regular expression"), ("(?P<x", "no regular expression")],
)
def test_a_pattern_without_a_group_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ColumnConfig(answer_pattern=pattern)


@given(count=st.integers(0, 8), start=st.none() | st.integers(0, 9), stop=st.none() | st.integers(0, 9))
def test_rows_are_a_part_of_the_source(count: int, start: int | None, stop: int | None) -> None:
    rows = [row(f"question {n}") for n in range(count)]
    text = ":".join("" if edge is None else str(edge) for edge in (start, stop))
    expected = [item["problem"] for item in rows[start:stop]]
    if stop is not None and stop <= (start or 0):
        return
    report = DataReport()
    try:
        questions = [problem.question for problem in iter_problems(rows, DataConfig(rows=text), report)]
    except DataError:
        questions = []
    assert questions == expected
    assert report.kept == report.rows == len(expected)


def test_parts_of_a_file_keep_their_row_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, ".jsonl", [row(f"question {n}") for n in range(6)])
    held, rest = (load_problems(path, DataConfig(rows=rows)) for rows in (":2", "2:"))
    assert [problem.id.rpartition(":")[2] for problem in (*held, *rest)] == ["1", "2", "3", "4", "5", "6"]
    for bad in ("2", "-1:", "1:2:3", "a:", "1 :2", "", "10:5", "3:3", ":0", f"{'9' * 19}:"):
        with pytest.raises(ValidationError, match="rows\\n.* FIRST:END counted from 0"):
            DataConfig(rows=bad)
    with pytest.raises(DataError, match=r"data\.rows"):
        load_problems(path, DataConfig(rows="6:"))


def test_a_named_answer_column_must_be_there() -> None:
    config = DataConfig(columns=ColumnConfig(answer="final"))
    assert load_problems([row(final=None)], config)[0].answer is None
    assert 'row 2: column "final" is missing' in error_of([row(final="1"), row(answer="1")], config)


def test_a_first_row_without_the_column_is_a_wrong_mapping() -> None:
    assert error_of([{"Problem": "q", "solution": "s"}]) == (
        'memory, row 1: column "problem" is missing; the row has "Problem", "solution"; '
        'did you mean "Problem"? name it in data.columns or set data.on_bad_row: skip'
    )
    assert error_of([{"text": "q", "y": "s"}]) == (
        'memory, row 1: column "problem" is missing; the row has "text", "y"; '
        "map it in data.columns or set data.on_bad_row: skip"
    )
    assert error_of([{"problem": "q", "answer": "5"}]).endswith(
        "map it in data.columns, set data.columns.solution: null to show the teacher the {answer} alone, or set "
        "data.on_bad_row: skip"
    )
    assert error_of([{}]).startswith('memory, row 1: column "problem" is missing; the row has none; map it')
    assert len(error_of([{f"column {n}" * 100: 0 for n in range(1000)}])) < 1000


def test_messages_can_be_printed_whatever_the_file_held() -> None:
    assert "\\udcff" in error_of([{"\udcff": 1}])
    error_of([{"\udcff": 1}]).encode()
    error_of([row("fine"), row(solution=["\udcff" * 1000])]).encode()


def test_length_filters_count_what_they_leave_out() -> None:
    rows = [row("q" * 5), row("q" * 6), row("a", "s" * 7), row("b", "s" * 8), row("q" * 9, "s" * 9)]
    problems = load_problems(rows, DataConfig(max_question_chars=5, max_solution_chars=7))
    assert [p.id for p in problems] == ["memory:1", "memory:3"]
    assert problems.report.left_out == {"max_question_chars": 2, "max_solution_chars": 1}
    assert str(problems.report) == (
        "memory: 2 of 5 rows used. Left out: 2 by max_question_chars, 1 by max_solution_chars."
    )


def test_duplicates_are_equal_up_to_white_space_and_the_first_stays() -> None:
    rows = [row("a  b", "1"), row(" a\nb ", "2"), row("ab", "3"), row("A b", "4"), row("a b", "5")]
    problems = load_problems(rows)
    assert [p.solution for p in problems] == ["1", "3", "4"]
    assert problems.report.left_out == {"deduplicate": 2}
    assert problems[0].question == "a  b"
    assert len(load_problems(rows, DataConfig(deduplicate=False))) == 5


def test_a_filtered_row_does_not_hide_its_duplicate() -> None:
    rows = [row("q", "too long"), row("q", "ok")]
    assert [p.solution for p in load_problems(rows, DataConfig(max_solution_chars=2))] == ["ok"]


def test_the_sample_is_pinned() -> None:
    """The same problems on every machine and Python: a change here changes every published run."""
    sample = load_problems(numbered(1000), DataConfig(sample=8))
    assert [int(p.id) for p in sample] == [19, 124, 290, 368, 394, 427, 481, 684]
    assert sample.report.left_out == {"sample": 992}


def test_the_sample_stands_in_the_order_of_the_source_and_grows_by_addition() -> None:
    samples = [[int(p.id) for p in load_problems(numbered(200), DataConfig(sample=n, seed=7))] for n in (1, 5, 50, 200)]
    for small, large in itertools.pairwise(samples):
        assert large == sorted(large)
        assert set(small) < set(large)
    assert samples[-1] == list(range(200))


def test_the_sample_depends_on_the_seed_alone() -> None:
    draws = {seed: tuple(load_problems(numbered(100), DataConfig(sample=10, seed=seed))) for seed in range(20)}
    assert len(set(draws.values())) == 20
    assert draws[3] == tuple(load_problems(iter(numbered(100)), DataConfig(sample=10, seed=3)))


def test_every_problem_is_as_likely_to_be_drawn() -> None:
    seeds, size, sample = 500, 40, 10
    counts = collections.Counter(
        p.id for seed in range(seeds) for p in load_problems(numbered(size), DataConfig(sample=sample, seed=seed))
    )
    expected = seeds * sample / size
    chi_square = sum((counts[str(n)] - expected) ** 2 for n in range(size)) / (expected * (1 - sample / size))
    assert 15 < chi_square < 75  # 39 degrees of freedom: beyond these with probability below 0.001


def test_a_sample_larger_than_the_data_is_all_of_it() -> None:
    problems = load_problems(numbered(5), DataConfig(sample=10))
    assert [p.id for p in problems] == list("01234")
    assert problems.report.left_out == {}


def test_a_sample_is_drawn_in_memory_of_its_own_size(tmp_path: Path) -> None:
    path = write(tmp_path, ".jsonl", [row(f"question {n}", "s" * 2000) for n in range(5000)])
    tracemalloc.start()
    problems = load_problems(path, DataConfig(sample=10))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(problems) == 10
    assert peak < 2_000_000


@given(
    questions=st.lists(st.sampled_from(["", "a", "b", " b", "long question", "c"]), max_size=20),
    sample=st.none() | st.integers(1, 5),
    deduplicate=st.booleans(),
)
def test_every_row_is_accounted_for(questions: list[str], sample: int | None, deduplicate: bool) -> None:
    config = DataConfig(on_bad_row="skip", max_question_chars=5, sample=sample, deduplicate=deduplicate)
    report = DataReport()
    try:
        problems = list(iter_problems([row(q) for q in questions], config, report))
    except DataError:
        problems = []
    assert report.kept == len(problems)
    assert report.rows == len(questions) == report.kept + report.bad + sum(report.left_out.values())


@pytest.mark.parametrize(
    ("rows", "config", "counts"),
    [
        ([], DataConfig(), "memory: 0 of 0 rows used."),
        ([row("long")], DataConfig(max_question_chars=1), "0 of 1 rows used. Left out: 1 by max_question_chars."),
        ([row("")], SKIP, 'Bad rows skipped: 1 (memory, row 1: column "problem" is empty).'),
    ],
)
def test_nothing_left_is_an_error_with_the_counts(rows: list[Row], config: DataConfig, counts: str) -> None:
    message = error_of(rows, config)
    assert message.startswith("no problem is left to use. ")
    assert counts in message


PROBE = """
import sys
from opasd.config import DataConfig
from opasd.data.problems import load_problems
rows = [{"problem": f"q{n % 300}", "solution": "s"} for n in range(500)]
print([p.id for p in load_problems(rows, DataConfig(sample=20))])
print({"torch", "transformers", "datasets", "pyarrow", "huggingface_hub"} & set(sys.modules))
"""


def test_hash_seed_changes_nothing_and_nothing_heavy_is_imported() -> None:
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROBE],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].splitlines()[1] == "set()"


def test_rows_that_are_only_answered_need_no_solution() -> None:
    config = DataConfig(columns=ColumnConfig(solution=None))
    assert list(load_problems([{"problem": "q", "answer": 5}], config)) == [Problem("q", "", "5", "memory:1")]
    assert Problem("q").solution == ""
    answered = [Problem("q", id="a"), Problem("r", " ", id="b"), Problem("t", "s", id="c")]
    assert [p.solution for p in load_problems(answered, config)] == ["", "", "s"]
    with pytest.raises(ValueError, match="the teacher needs solutions"):
        RunConfig(data=config)
    assert RunConfig(data=config, prompts=PromptConfig(reference="It is {answer}.")).data == config


def test_pointers_come_from_their_column() -> None:
    rows = [
        {"problem": "1 + 1?", "solution": "2", "uses": "3, 17"},
        {"problem": "2 + 2?", "solution": "4", "uses": None},
    ]
    config = DataConfig(columns=ColumnConfig(pointers="uses"))
    assert [problem.pointers for problem in load_problems(rows, config)] == ["3, 17", None]
    assert [problem.pointers for problem in load_problems(rows)] == [None, None]
    kept = load_problems(load_problems(rows, config).problems)
    assert [problem.pointers for problem in kept] == ["3, 17", None]


def test_a_list_of_numbers_is_pointers_too() -> None:
    """`[1, 3]` is how a program writes them."""
    cells = [1, 3], ["1", 3], 7, [True], [[1]], []
    rows = [{"problem": f"{number}?", "solution": "s", "uses": cell} for number, cell in enumerate(cells)]
    config = DataConfig(columns=ColumnConfig(pointers="uses"), on_bad_row="skip")
    assert [problem.pointers for problem in load_problems(rows, config)] == ["1, 3", "1, 3", "7"]


@each_format
def test_pointers_are_read_from_every_kind_of_file(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, [row(needed="1, 3", bulk="x")])
    config = DataConfig(columns=ColumnConfig(pointers="needed"))
    assert [problem.pointers for problem in load_problems(path, config)] == ["1, 3"]


@each_format
def test_rows_of_trl_need_no_mapping(tmp_path: Path, suffix: str) -> None:
    rows = [{"prompt": "1 + 1?", "privileged_context": "It is 2.", "answer": "2", "other": "x"}]
    assert bare(load_problems(write(tmp_path, suffix, rows))) == [Problem("1 + 1?", "It is 2.", "2")]


def test_a_conversation_of_one_message_is_its_text() -> None:
    said = {"role": "user", "content": "1 + 1?"}
    told = [{"role": "user", "content": "It is 2."}]
    assert bare(load_problems([{"prompt": [said], "privileged_context": told}])) == [Problem("1 + 1?", "It is 2.")]
    assert bare(load_problems([{"prompt": [said], "solution": "2"}])) == [Problem("1 + 1?", "2")]
    both = {"prompt": [said], "privileged_context": told, "solution": "2"}
    assert bare(load_problems([both])) == [Problem("1 + 1?", "It is 2.")]
    alone = DataConfig(columns=ColumnConfig(solution=None))
    assert bare(load_problems([{"prompt": [said], "answer": "2"}], alone)) == [Problem("1 + 1?", "", "2")]
    assert error_of([{"prompt": [said, said], "privileged_context": told}]).startswith(
        'memory, row 1: column "prompt" is list'
    )
    assert error_of([{"prompt": [said]}]).startswith('memory, row 1: column "privileged_context" is missing')
