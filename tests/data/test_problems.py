"""Every source gives the same problems; every bad row is named where it stands; nothing is held that need not be."""

import collections
import csv
import gzip
import itertools
import json
import math
import os
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from opasd.config import ColumnConfig, DataConfig, PromptConfig, RunConfig
from opasd.data import sources
from opasd.data.problems import DataReport, Problem, ProblemSet, iter_problems, load_problems
from opasd.errors import DataError

ROWS = [
    {"problem": "What is $1+1$?", "solution": "Add: \\boxed{2}.", "answer": "2"},
    {"problem": 'Löse\n\t$\\frac{x}{2} = "3"$, x ∈ ℝ', "solution": "x = 6,\r\nalso 𝟞", "answer": "007"},
    {"problem": "What is 2+2?", "solution": "4", "answer": None},
]
PROBLEMS = [Problem(row["problem"], row["solution"], row["answer"]) for row in ROWS]

Row = Mapping[str, Any]


def write_jsonl(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8", newline="")


def write_jsonl_gz(path: Path, rows: Sequence[Row]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))


def write_json(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=1), encoding="utf-8", newline="")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def write_parquet(path: Path, rows: Sequence[Row], **options: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, **options)


WRITERS: dict[str, Callable[[Path, Sequence[Row]], None]] = {
    ".jsonl": write_jsonl,
    ".jsonl.gz": write_jsonl_gz,
    ".json": write_json,
    ".csv": write_csv,
    ".parquet": write_parquet,
}
each_format = pytest.mark.parametrize("suffix", WRITERS)


def write(folder: Path, suffix: str, rows: Sequence[Row], stem: str = "math") -> Path:
    path = folder / (stem + suffix)
    path.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[suffix](path, rows)
    return path


def bare(problems: Iterable[Problem]) -> list[Problem]:
    """The problems without their ids."""
    return [Problem(p.question, p.solution, p.answer) for p in problems]


def error_of(source: Any, config: DataConfig | None = None) -> str:
    with pytest.raises(DataError) as caught:
        load_problems(source, config or DataConfig())
    return str(caught.value)


def row(question: str = "q", solution: Any = "s", **more: Any) -> dict[str, Any]:
    return {"problem": question, "solution": solution, **more}


def numbered(count: int) -> list[Problem]:
    return [Problem(f"question {n}", "s", id=str(n)) for n in range(count)]


SKIP = DataConfig(on_bad_row="skip")


# ── Sources ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@each_format
def test_every_format_gives_the_same_problems(tmp_path: Path, suffix: str) -> None:
    problems = load_problems(write(tmp_path, suffix, ROWS))
    assert bare(problems) == PROBLEMS
    assert [p.id for p in problems] == [f"math{suffix}:{n}" for n in (1, 2, 3)]
    assert problems.report == DataReport(source=str(tmp_path / f"math{suffix}"), rows=3, kept=3)


def test_the_source_may_stand_in_the_config(tmp_path: Path) -> None:
    path = write(tmp_path, ".jsonl", ROWS)
    assert bare(load_problems(config=DataConfig(source=str(path)))) == PROBLEMS


def test_rows_in_memory() -> None:
    assert bare(load_problems(ROWS)) == PROBLEMS
    assert bare(load_problems(iter(ROWS))) == PROBLEMS
    assert [p.id for p in load_problems(ROWS)] == ["memory:1", "memory:2", "memory:3"]


def test_problems_in_memory_keep_their_own_id_and_are_checked_too() -> None:
    given_problems = [Problem("q", "s", "1", id="mine"), Problem("r", "s")]
    assert list(load_problems(given_problems)) == [given_problems[0], Problem("r", "s", id="memory:2")]
    assert error_of([Problem("q", " ")]) == (
        'memory, row 1: column "solution" is empty; fix the row or set data.on_bad_row: skip'
    )
    assert error_of([given_problems[0], Problem(" ", "s", id="\ud800")]) == (
        'problem "\\ud800", row 2: column "question" is empty; fix the row or set data.on_bad_row: skip'
    )


def test_datasets_in_memory() -> None:
    from datasets import Dataset, DatasetDict

    dataset = Dataset.from_list(ROWS)
    assert bare(load_problems(dataset)) == PROBLEMS
    assert bare(load_problems(DatasetDict({"train": dataset}))) == PROBLEMS
    assert error_of(DatasetDict({"test": dataset})) == (
        'memory: no split "train"; there is "test"; set data.split to one of these'
    )


def test_columns_are_mapped(tmp_path: Path) -> None:
    rows = [{"prompt": "q", "proof": "s", "final": 3, "problem": 0, "solution": 0, "answer": []}]
    config = DataConfig(columns=ColumnConfig(question="prompt", solution="proof", answer="final"))
    assert bare(load_problems(rows, config)) == [Problem("q", "s", "3")]
    for suffix in (".json", ".csv"):
        assert bare(load_problems(write(tmp_path, suffix, rows), config)) == [Problem("q", "s", "3")]


def test_parquet_decodes_only_the_columns_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    asked: list[list[str] | None] = []
    read = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, columns: list[str] | None = None, **kwargs: Any) -> Any:
        asked.append(columns)
        return read(self, *args, columns=columns, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    path = write(tmp_path, ".parquet", [row(Answer="1", bulk="x" * 1000)])
    assert bare(load_problems(path)) == [Problem("q", "s", "1")]
    assert asked == [["Answer", "problem", "solution"]]


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


LATEX = st.sampled_from(
    ["$\\frac{a}{b}$", "\\\\\n\\end{array}", '"', "''", ",", "\r\n", "\r", "\t", "{}", "[", "\u2028"]
)
TEXT = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12) | LATEX, max_size=4
).map("".join)
FULL_TEXT = TEXT.filter(lambda text: bool(text.strip()))
PROBLEM = st.builds(Problem, FULL_TEXT, FULL_TEXT, st.none() | FULL_TEXT)


@each_format
@given(problems=st.lists(PROBLEM, min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_any_text_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, problems: list[Problem]
) -> None:
    rows = [row(p.question, p.solution, answer=p.answer) for p in problems]
    path = write(tmp_path_factory.getbasetemp(), suffix, rows, stem="round-trip")
    assert bare(load_problems(path, DataConfig(deduplicate=False))) == problems


@given(problems=st.lists(PROBLEM, min_size=1, max_size=5), chunk=st.integers(1, 40), ascii_only=st.booleans())
@settings(max_examples=100, deadline=None)
def test_a_json_array_may_be_cut_anywhere_by_the_buffer(
    tmp_path_factory: pytest.TempPathFactory, problems: list[Problem], chunk: int, ascii_only: bool
) -> None:
    rows = [row(p.question, p.solution, answer=p.answer, extra=[1.5e3, -12, True, None, {}]) for p in problems]
    path = tmp_path_factory.getbasetemp() / "chunks.json"
    path.write_text(json.dumps(rows, ensure_ascii=ascii_only, indent=1), encoding="utf-8", newline="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "CHUNK", chunk)
        assert bare(load_problems(path, DataConfig(deduplicate=False))) == problems


# ── Folders ──────────────────────────────────────────────────────────────────────────────────────────────────────────


SHARDS = ["data/train_sft-00000-of-00001.jsonl", "data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"]


@pytest.mark.parametrize(
    ("files", "split", "used"),
    [
        (["train.jsonl", "test.jsonl"], "train", ["train.jsonl"]),
        (["train.jsonl", "test.jsonl"], "test", ["test.jsonl"]),
        (["b.jsonl", "a.csv", "deep/c.parquet"], "train", ["a.csv", "b.jsonl", "deep/c.parquet"]),
        (["train/1.parquet", "train/0.parquet", "dev/0.json"], "train", ["train/0.parquet", "train/1.parquet"]),
        (["train/0.parquet", "dev/0.json"], "validation", ["dev/0.json"]),
        (["main/train-0-of-1.parquet", "main/test-0-of-1.parquet"], "test", ["main/test-0-of-1.parquet"]),
        (SHARDS, "train", SHARDS[1:]),
        (SHARDS, "train_sft", SHARDS[:1]),
        (["math_train_2.jsonl.gz", "training.csv", "trainer.csv"], "train", ["math_train_2.jsonl.gz", "training.csv"]),
        ([".cache/train.jsonl", ".train.jsonl", "train.jsonl"], "train", ["train.jsonl"]),
        (["dataset_infos.json", "x.jsonl"], "train", ["x.jsonl"]),
    ],
)
def test_a_folder_is_split_as_the_hub_would(tmp_path: Path, files: list[str], split: str, used: list[str]) -> None:
    for file in files:
        path = tmp_path / file
        suffix = "".join(path.suffixes) if path.name.endswith(".gz") else path.suffix
        write(path.parent, suffix, [row(file)], stem=path.name.removesuffix(suffix))
    (tmp_path / "README.md").write_text("not data")
    problems = load_problems(tmp_path, DataConfig(split=split))
    assert [p.question for p in problems] == used
    assert [p.id for p in problems] == [f"{file}:1" for file in used]


def test_a_subset_of_a_folder_is_its_subfolder(tmp_path: Path) -> None:
    for subset in ("main", "socratic"):
        write(tmp_path / subset, ".jsonl", [row(subset)], stem="train")
    assert [p.question for p in load_problems(tmp_path, DataConfig(subset="socratic"))] == ["socratic"]
    message = error_of(tmp_path, DataConfig(subset="other"))
    assert message.startswith(f"{tmp_path / 'other'}: no data file in this folder")


def test_a_folder_without_the_split_says_which_are_there(tmp_path: Path) -> None:
    write(tmp_path, ".jsonl", ROWS, stem="test")
    write(tmp_path, ".jsonl", ROWS, stem="dev")
    assert error_of(tmp_path) == (
        f'{tmp_path}: no split "train"; there is "validation", "test"; set data.split to one of these'
    )


def test_a_folder_without_data(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    assert error_of(tmp_path) == (
        f"{tmp_path}: no data file in this folder; put a .jsonl, .json, .parquet, .csv file there"
    )


def test_what_datasets_saved(tmp_path: Path) -> None:
    from datasets import Dataset, DatasetDict

    dataset = Dataset.from_list([{**r, "more": 1} for r in ROWS])
    dataset.save_to_disk(tmp_path / "one")
    DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(tmp_path / "many")
    assert bare(load_problems(tmp_path / "one")) == PROBLEMS
    assert [p.id for p in load_problems(tmp_path / "one")] == ["one:1", "one:2", "one:3"]
    assert bare(load_problems(tmp_path / "many", DataConfig(split="test"))) == PROBLEMS[:1]
    assert 'no split "dev"; there is "train", "test"' in error_of(tmp_path / "many", DataConfig(split="dev"))
    renamed = DataConfig(columns=ColumnConfig(question="question"))
    assert 'column "question" is missing; the row has "problem", "solution", "answer", "more"' in error_of(
        tmp_path / "one", renamed
    )


def test_a_saved_split_is_not_taken_for_another(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS, split="test").save_to_disk(tmp_path / "saved")
    assert 'no split "train"; there is "test"' in error_of(tmp_path / "saved")
    assert len(load_problems(tmp_path / "saved", DataConfig(split="test"))) == 3
    Dataset.from_list(ROWS, split="train[:3]").save_to_disk(tmp_path / "part")
    assert len(load_problems(tmp_path / "part")) == 3


def test_a_damaged_save(tmp_path: Path) -> None:
    from datasets import Dataset

    Dataset.from_list(ROWS).save_to_disk(tmp_path / "saved")
    next((tmp_path / "saved").glob("*.arrow")).write_bytes(b"not arrow")
    assert error_of(tmp_path / "saved").startswith(f"{tmp_path / 'saved'} cannot be loaded (")


# ── The hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_hub_path_pins_the_commit_and_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path, with a folder standing in for what the hub would serve at that commit."""
    import datasets
    import huggingface_hub

    write(tmp_path, ".jsonl", [{**r, "more": 1} for r in ROWS], stem="train")
    load = datasets.load_dataset
    asked: list[Any] = []

    def dataset_info(self: Any, name: str, *, revision: str | None, timeout: float) -> Any:
        asked.append((name, revision))
        return SimpleNamespace(sha="c0ffee")

    def load_dataset(name: str, subset: str | None, *, split: str, revision: str, streaming: bool) -> Any:
        asked.append((name, subset, split, revision, streaming))
        return load(str(tmp_path), subset, split=split, streaming=streaming)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    problems = load_problems("some-org/math.v1", DataConfig(revision="v1"))
    assert bare(problems) == PROBLEMS
    assert problems[0].id == "some-org/math.v1:1"
    assert problems.report.revision == "c0ffee"
    assert str(problems.report) == "some-org/math.v1 at revision c0ffee: 3 of 3 rows used."
    assert asked == [("some-org/math.v1", "v1"), ("some-org/math.v1", None, "train", "c0ffee", True)]

    message = error_of("some-org/math.v1", DataConfig(split="dev"))
    assert "Bad split: dev. Available splits: ['train']" in message
    message = error_of("some-org/math.v1", DataConfig(subset="algebra"))
    assert "'algebra' not found" in message
    message = error_of("some-org/math.v1", DataConfig(columns=ColumnConfig(solution="solutions")))
    assert message == (
        'some-org/math.v1, row 1: column "solutions" is missing; the row has "problem", "solution", "answer", "more"; '
        'did you mean "solution"? name it in data.columns or set data.on_bad_row: skip'
    )


def test_whatever_datasets_accepts_is_streamed(tmp_path: Path) -> None:
    write(tmp_path, ".parquet", ROWS, stem="train")
    rows = list(sources._streamed_rows(str(tmp_path), DataConfig(), None))
    assert [(number, r["problem"]) for _, number, r in rows] == [(n, r["problem"]) for n, r in enumerate(ROWS, 1)]


def test_an_unreachable_hub_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    message = error_of(None)
    assert message.startswith("siyanzhao/Openthoughts_math_30k_opsd on the Hugging Face hub cannot be loaded (")
    assert message.endswith(
        "without network, fetch it elsewhere (hf download siyanzhao/Openthoughts_math_30k_opsd "
        "--repo-type dataset --local-dir FOLDER) and set data.source to the folder"
    )


@pytest.mark.parametrize(
    "source",
    ["", "math", "no/such/file", "data/train.jsonl", "./x", "a/b.csv.gz", "~nobody-here/x", "a\0b", "x" * 5000],
)
def test_neither_a_path_nor_a_name(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    message = error_of(source)
    assert message.startswith(f'data.source "{source[:200]}" is neither a file or folder here nor the name of a hub')
    assert len(message) < 500


def test_a_local_folder_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "some-org" / "math", ".jsonl", ROWS)
    assert bare(load_problems("some-org/math")) == PROBLEMS


# ── Bad rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()
    assert [p.id for p in problems[:2]] == [f"math{suffix}:1", f"math{suffix}:3"]


HALF = "half a surrogate pair, or a byte that is not UTF-8"


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (row(" \n\t"), 'column "problem" is empty'),
        ({"problem": "q"}, 'column "solution" is missing; the row has "problem"'),
        (row(solution=None), 'column "solution" is null, not text'),
        (row(solution=4), 'column "solution" is int 4, not text'),
        (row(solution=["s"]), "column \"solution\" is list ['s'], not text"),
        (row(solution=b"s"), "column \"solution\" is bytes b's', not text"),
        (row(solution="a" * 11), 'column "solution" has 11 characters, more than data.solution_limit 10'),
        (row(solution="ab\0c"), 'column "solution" holds U+0000 (NUL) at character 3'),
        (row("\ud83d"), f'column "problem" holds U+D83D ({HALF}) at character 1'),
        (row(answer=True), 'column "answer" is bool True, not text or a number'),
        (row(answer=["1"]), "column \"answer\" is list ['1'], not text or a number"),
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
def test_what_makes_a_row_bad(bad: Any, found: str) -> None:
    rows = [row("fine"), bad]
    config = DataConfig(solution_limit=10)
    assert error_of(rows, config) == f"memory, row 2: {found}; fix the row or set data.on_bad_row: skip"
    assert [str(f) for f in load_problems(rows, config.model_copy(update={"on_bad_row": "skip"})).report.faults] == [
        f"memory, row 2: {found}"
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
    ("pattern", "told"), [("####", "has no group"), ("(", "no regular expression"), ("(?P<x", "no regular expression")]
)
def test_a_pattern_without_a_group_is_refused(pattern: str, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        ColumnConfig(answer_pattern=pattern)


@given(count=st.integers(0, 8), start=st.none() | st.integers(0, 9), stop=st.none() | st.integers(0, 9))
def test_rows_are_a_part_of_the_source(count: int, start: int | None, stop: int | None) -> None:
    rows = [row(f"question {n}") for n in range(count)]
    text = ":".join("" if edge is None else str(edge) for edge in (start, stop))
    expected = [one["problem"] for one in rows[start:stop]]
    if stop is not None and stop <= (start or 0):
        return
    report = DataReport()
    try:
        found = [problem.question for problem in iter_problems(rows, DataConfig(rows=text), report)]
    except DataError:
        found = []
    assert found == expected
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


# ── Hostile files ────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = json.dumps(row("one")).encode()
ALSO = json.dumps(row("two")).encode()


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (b'{"problem": "q", ', "is not valid JSON in UTF-8 (Expecting property name"),
        (b"nonsense", "is not valid JSON in UTF-8 (Expecting value"),
        (b"\xff\xfe{}", "is not valid JSON in UTF-8 (Expecting value"),
        (b"[" * 200_000, "is not valid JSON in UTF-8 (maximum recursion depth"),
        (b'{"problem": ' + b"1" * 10_000 + b"}", "is not valid JSON in UTF-8 (Exceeds the limit"),
        (b"[1, 2]", "is list [1, 2], not an object"),
        (b'{"problem": "a\xffb", "solution": "s"}', 'column "problem" holds U+DCFF (half a surrogate pair, or a byte'),
        (b'{"problem": "a", "solution": "\\ud800"}', 'column "solution" holds U+D800 (half a surrogate pair'),
        (b'{"problem": "a", "solution": "\\u0000"}', 'column "solution" holds U+0000 (NUL)'),
    ],
    ids=["cut", "nonsense", "utf-16", "nested", "huge-int", "list", "bytes", "surrogate", "nul"],
)
def test_a_bad_line_is_one_bad_row(tmp_path: Path, bad: bytes, found: str) -> None:
    path = tmp_path / "math.jsonl"
    path.write_bytes(b"\n".join([GOOD, b"", bad, ALSO]))
    assert error_of(path).startswith(f"math.jsonl, row 3: {found}")
    problems = load_problems(path, SKIP)
    assert [p.id for p in problems] == ["math.jsonl:1", "math.jsonl:4"]
    assert [fault.row for fault in problems.report.faults] == [3]
    assert problems.report.rows == 3  # the blank line is none


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv"])
def test_byte_order_mark_and_crlf(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, [row("one", answer="1"), row("two", answer="")])
    text = path.read_bytes().replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + text + b"\r\n\r\n")
    assert bare(load_problems(path)) == [Problem("one", "s", "1"), Problem("two", "s")]


def test_a_json_file_of_one_row_over_several_lines(tmp_path: Path) -> None:
    folder = tmp_path / "train"
    folder.mkdir()
    for name in ("one", "two"):
        (folder / f"{name}.json").write_text(json.dumps(row(name, answer="1"), indent=4) + "\n")
    assert bare(load_problems(folder)) == [Problem("one", "s", "1"), Problem("two", "s", "1")]
    assert [p.id for p in load_problems(folder / "two.json")] == ["two.json:1"]
    broken = tmp_path / "math.json"
    broken.write_bytes(b'{\n"problem": "q",\n"solution": "s"')
    assert error_of(broken).startswith("math.json, row 1: is not valid JSON in UTF-8 (")
    broken.write_bytes(b'{"problem": \n' + GOOD + b"\n" + ALSO)
    assert [p.id for p in load_problems(broken, SKIP)] == ["math.json:2", "math.json:3"]
    broken.write_text(json.dumps({"data": [row("one")]}, indent=1))
    assert 'math.json, row 1: column "problem" is missing; the row has "data"' in error_of(broken)


def test_unneeded_columns_may_hold_anything(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl"
    path.write_bytes(b'{"problem": "q", "solution": "s", "x": "\xff\\u0000", "y": {"deep": [[[1]]]}}')
    assert bare(load_problems(path)) == [Problem("q", "s")]


@pytest.mark.parametrize("suffix", [".jsonl", ".json", ".csv", ".parquet"])
def test_a_ten_megabyte_row(tmp_path: Path, suffix: str) -> None:
    huge = "x\\" * 5_000_000
    path = write(tmp_path, suffix, [row("one"), row("two", huge), row("three")])
    assert error_of(path).startswith(
        f'math{suffix}, row 2: column "solution" has 10000000 characters, more than data.solution_limit 1000000'
    )
    problems = load_problems(path, DataConfig(solution_limit=10_000_000))
    assert [p.question for p in problems] == ["one", "two", "three"]
    assert problems[1].solution == huge


def test_json_lines_under_the_name_json(tmp_path: Path) -> None:
    path = tmp_path / "train.json"
    path.write_bytes(b"\n" + GOOD + b"\n" + ALSO + b"\n")
    assert len(load_problems(path)) == 2
    path.write_bytes(b'{"data": [{"problem": "q", "solution": "s"}]}')
    with pytest.raises(DataError, match='train.json, row 1: column "problem" .*"data"'):
        load_problems(path)


@pytest.mark.parametrize(
    ("content", "number", "reason"),
    [
        (b"", 1, "Expecting an array"),
        (b"]", 1, "Expecting an array"),
        (b"[" + GOOD, 2, "Expecting , or ]"),
        (b"[" + GOOD + b",", 2, "Expecting value"),
        (b"[" + GOOD + b",]", 2, "Expecting value"),
        (b"[" + GOOD + b", " + ALSO[:-2], 2, "Unterminated string"),
        (b"[" + GOOD + b" " + ALSO + b"]", 2, "Expecting , or ]"),
        (b"[" + GOOD + b"}" + b" " * 100_000 + b"]", 2, "Expecting , or ]"),
        (b"[" + GOOD + b", " + ALSO + b"] []", 3, "there is text after the array"),
        (b"[" + GOOD + b", " + b"[" * 200_000, 2, "maximum recursion depth"),
    ],
    ids=["empty", "end", "open", "comma", "comma-end", "string", "no-comma", "brace", "after", "nested"],
)
def test_broken_json_is_an_error_even_when_skipping(tmp_path: Path, content: bytes, number: int, reason: str) -> None:
    path = tmp_path / "math.json"
    path.write_bytes(content)
    message = error_of(path, SKIP)
    assert message.startswith(f"math.json, row {number}: cannot be read ({reason}")
    assert message.endswith("the file is cut off, damaged or not what its name says: write or fetch it again")


def test_a_broken_json_row_is_found_without_reading_on(tmp_path: Path) -> None:
    path = tmp_path / "math.json"
    path.write_bytes(b"[" + GOOD + b', {"problem": oops}, ' + b'"' + b"x" * 20_000_000 + b'"]')
    tracemalloc.start()
    message = error_of(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert message.startswith("math.json, row 2: cannot be read (Expecting value")
    assert peak < 2_000_000


@pytest.mark.timeout(20)
def test_a_long_json_item_takes_linear_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ".json", [row("one", "s" * 1_000_000), row("two")])
    monkeypatch.setattr(sources, "CHUNK", 8)  # the retries add up to minutes if each reads only this much more
    assert [p.question for p in load_problems(path)] == ["one", "two"]


@pytest.mark.parametrize("chunk", range(30, 50))
def test_json_items_that_are_no_rows_are_bad_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(sources, "CHUNK", chunk)
    path = tmp_path / "math.json"
    path.write_bytes(b"[" + GOOD + b", 123, [], " + ALSO + b"]")
    problems = load_problems(path, SKIP)
    assert [p.question for p in problems] == ["one", "two"]
    assert [(f.row, f.found) for f in problems.report.faults] == [
        (2, "is int 123, not an object with columns"),
        (3, "is list [], not an object with columns"),
    ]


def test_a_truncated_gzip(tmp_path: Path) -> None:
    path = tmp_path / "math.jsonl.gz"
    whole = gzip.compress(b"".join(json.dumps(row(os.urandom(50).hex())).encode() + b"\n" for _ in range(1000)))
    path.write_bytes(whole[: len(whole) // 2])
    report = DataReport()
    with pytest.raises(DataError, match=r"cannot be read \(Compressed file ended before") as caught:
        collections.deque(iter_problems(path, SKIP, report), maxlen=0)
    assert str(caught.value).startswith(f"math.jsonl.gz, row {report.rows + 1}: ")
    assert 100 < report.rows < 1000


@pytest.mark.parametrize("content", [b"not gzip at all", b"\x1f\x8b\x08\x00garbage-garbage-garbage"])
def test_no_gzip(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "math.jsonl.gz"
    path.write_bytes(content)
    assert error_of(path, SKIP).startswith("math.jsonl.gz, row 1: cannot be read (")


def test_csv_rows_are_records_not_lines(tmp_path: Path) -> None:
    path = tmp_path / "math.csv"
    path.write_bytes(
        b'problem,solution,answer\n"two\nlines","a\r\nb",007\n\nq2,s2\nq3,"s ""3""",\nq4,s4,4,5\nq\xff,s,1\nq6,s6,\n'
    )
    assert error_of(path).startswith("math.csv, row 2: has 2 cells, the header 3; fix the row")
    problems = load_problems(path, SKIP)
    assert bare(problems) == [Problem("two\nlines", "a\r\nb", "007"), Problem("q3", 's "3"'), Problem("q6", "s6")]
    assert [p.id for p in problems] == ["math.csv:1", "math.csv:3", "math.csv:6"]
    assert [(f.row, f.column) for f in problems.report.faults] == [(2, None), (4, None), (5, "problem")]


@pytest.mark.parametrize(
    ("content", "number", "reason"),
    [
        ('problem,solution\nq,s\nr,"never closed\nmore,text\n', 2, "unexpected end of data"),
        ('problem,solution\nq,s\nr,"quoted"badly\n', 2, "',' expected after '\"'"),
        ("problem,problem\nq,s\n", 1, "the header names a column twice"),
    ],
)
def test_broken_csv_is_an_error_even_when_skipping(tmp_path: Path, content: str, number: int, reason: str) -> None:
    path = tmp_path / "math.csv"
    path.write_text(content)
    assert error_of(path, SKIP).startswith(f"math.csv, row {number}: cannot be read ({reason}")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_csv_line_ends(tmp_path: Path, end: str) -> None:
    path = tmp_path / "math.csv"
    path.write_bytes(f'problem,solution{end}q,"a{end}b"{end}r,c'.encode())
    assert bare(load_problems(path)) == [Problem("q", f"a{end}b"), Problem("r", "c")]


def test_a_csv_with_another_delimiter_shows_its_header(tmp_path: Path) -> None:
    path = tmp_path / "math.csv"
    path.write_text("problem;solution\nq;s\n")
    assert 'column "problem" is missing; the row has "problem;solution"' in error_of(path)


def test_no_parquet(tmp_path: Path) -> None:
    path = tmp_path / "math.parquet"
    path.write_bytes(GOOD)
    assert error_of(path, SKIP).startswith("math.parquet, row 1: cannot be read (Parquet magic bytes not found")


def test_a_truncated_parquet(tmp_path: Path) -> None:
    path = write(tmp_path, ".parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-10])
    assert error_of(path, SKIP).startswith("math.parquet, row 1: cannot be read (")


def test_parquet_text_that_is_not_utf8_is_a_bad_row(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    binary = pa.array([b"fine", b"\xff", b"also"])
    text = pa.StringArray.from_buffers(3, *binary.buffers()[1:])
    path = tmp_path / "math.parquet"
    pq.write_table(pa.table({"problem": text, "solution": ["s"] * 3}), path)
    assert error_of(path).startswith("math.parquet, row 2: is not UTF-8 (")
    assert [p.id for p in load_problems(path, SKIP)] == ["math.parquet:1", "math.parquet:3"]


def test_parquet_types(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    words = pa.array(["q1", "q2", "q1"]).dictionary_encode()
    path = tmp_path / "math.parquet"
    pq.write_table(pa.table({"problem": words, "solution": ["a", "b", "c"], "answer": [1.5, None, 2.0]}), path)
    assert bare(load_problems(path)) == [Problem("q1", "a", "1.5"), Problem("q2", "b")]


def test_an_unknown_kind_of_file(tmp_path: Path) -> None:
    path = tmp_path / "math.txt"
    path.write_text("q")
    assert error_of(path) == "math.txt: unknown kind of file; give a .jsonl, .json, .parquet, .csv file"


# ── Streaming ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_first_problem_comes_before_the_second_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "math.jsonl"
    os.mkfifo(pipe)
    may_go_on = threading.Event()

    def write_slowly() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(GOOD + b"\n")
            assert may_go_on.wait(20)
            file.write(ALSO + b"\n")

    writer = threading.Thread(target=write_slowly)
    writer.start()
    problems = iter_problems(pipe)
    assert next(problems).question == "one"
    may_go_on.set()
    assert [p.question for p in problems] == ["two"]
    writer.join()


@each_format
def test_a_break_far_behind_does_not_stop_what_comes_before(tmp_path: Path, suffix: str) -> None:
    rows = [row(f"question {n}", os.urandom(500).hex()) for n in range(2000)]
    path = tmp_path / f"math{suffix}"
    if suffix == ".parquet":
        write_parquet(path, rows, row_group_size=500, compression="snappy", use_dictionary=False)
        whole = bytearray(path.read_bytes())
        middle = len(whole) * 5 // 8
        whole[middle : middle + 2000] = bytes(2000)
    else:
        write(tmp_path, suffix, rows)
        whole = path.read_bytes()
        middle = len(whole) // 2
        # A quote or brace where none belongs, or for gzip the end.
        whole = whole[:middle] + (b"" if suffix.endswith("gz") else b'"\n"\n}' + whole[middle:])
    path.write_bytes(whole)
    report = DataReport()
    problems = iter_problems(path, report=report)
    assert [next(problems).question for _ in range(300)] == [f"question {n}" for n in range(300)]
    assert report.rows == 300
    with pytest.raises(DataError, match=rf"math{suffix}, row \d+: "):
        collections.deque(problems, maxlen=0)
    assert 300 < report.rows < 2000


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".json", ".csv"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path, suffix, [row(f"question {n}", "s" * 2000) for n in range(5000)])
    tracemalloc.start()
    count = sum(1 for _ in iter_problems(path, DataConfig(deduplicate=False)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 5000
    assert peak < 1_500_000


def test_an_abandoned_stream_closes_its_file(tmp_path: Path) -> None:
    problems = iter_problems(write(tmp_path, ".jsonl", ROWS))
    next(problems)
    del problems  # an open file would be a ResourceWarning, which is an error here


# ── Filters and the sample ───────────────────────────────────────────────────────────────────────────────────────────


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
        kept = list(iter_problems([row(q) for q in questions], config, report))
    except DataError:
        kept = []
    assert report.kept == len(kept)
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


@pytest.mark.parametrize(("suffix", "content"), [(".jsonl", ""), (".jsonl", "\n\n"), (".json", "[ ]"), (".csv", "")])
def test_an_empty_file_is_an_error(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"math{suffix}"
    path.write_text(content)
    assert f"math{suffix}: 0 of 0 rows used." in error_of(path)


# ── The module itself ────────────────────────────────────────────────────────────────────────────────────────────────

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
