"""Rows from files, folders, the hub and memory, streamed; damage is named."""

import collections
import gzip
import json
import os
import threading
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.config import ColumnConfig, DataConfig
from opasd.data import sources
from opasd.data.problems import DataReport, Problem, iter_problems, load_problems
from opasd.errors import DataError
from tests.data.rows import (
    PROBLEMS,
    ROWS,
    SKIP,
    bare,
    each_format,
    error_of,
    row,
    write,
    write_parquet,
)


@each_format
def test_every_format_gives_the_same_problems(tmp_path: Path, suffix: str) -> None:
    problems = load_problems(write(tmp_path, suffix, ROWS))
    assert bare(problems) == PROBLEMS
    assert [p.id for p in problems] == [f"math{suffix}:{n}" for n in (1, 2, 3)]
    assert problems.report == DataReport(source=str(tmp_path / f"math{suffix}"), rows=3, kept=3)


def test_datasets_in_memory() -> None:
    from datasets import Dataset, DatasetDict

    dataset = Dataset.from_list(ROWS)
    assert bare(load_problems(dataset)) == PROBLEMS
    assert bare(load_problems(DatasetDict({"train": dataset}))) == PROBLEMS
    assert error_of(DatasetDict({"test": dataset})) == (
        'memory: no split "train"; there is "test"; set data.split to one of these'
    )


def test_parquet_decodes_only_the_columns_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow.parquet as pq

    requests: list[list[str] | None] = []
    read = pq.ParquetFile.iter_batches

    def spy(self: Any, *args: Any, columns: list[str] | None = None, **kwargs: Any) -> Any:
        requests.append(columns)
        return read(self, *args, columns=columns, **kwargs)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", spy)
    path = write(tmp_path, ".parquet", [row(Answer="1", bulk="x" * 1000)])
    assert bare(load_problems(path)) == [Problem("q", "s", "1")]
    assert requests == [["Answer", "problem", "solution"]]


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


def test_the_hub_path_pins_the_commit_and_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole path, with a folder standing in for what the hub would serve at that commit."""
    import datasets
    import huggingface_hub

    write(tmp_path, ".jsonl", [{**r, "more": 1} for r in ROWS], stem="train")
    load = datasets.load_dataset
    requests: list[Any] = []

    def dataset_info(self: Any, name: str, *, revision: str | None, timeout: float) -> Any:
        requests.append((name, revision))
        return SimpleNamespace(sha="c0ffee")

    def load_dataset(name: str, subset: str | None, *, split: str, revision: str, streaming: bool) -> Any:
        requests.append((name, subset, split, revision, streaming))
        return load(str(tmp_path), subset, split=split, streaming=streaming)

    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    problems = load_problems("some-org/math.v1", DataConfig(revision="v1"))
    assert bare(problems) == PROBLEMS
    assert problems[0].id == "some-org/math.v1:1"
    assert problems.report.revision == "c0ffee"
    assert str(problems.report) == "some-org/math.v1 at revision c0ffee: 3 of 3 rows used."
    assert requests == [("some-org/math.v1", "v1"), ("some-org/math.v1", None, "train", "c0ffee", True)]

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
    rows = list(sources.streamed_rows(str(tmp_path), DataConfig(), None))
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


GOOD = json.dumps(row("one")).encode()
ALSO = json.dumps(row("two")).encode()


@pytest.mark.parametrize(
    ("bad", "fault"),
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
def test_a_bad_line_is_one_bad_row(tmp_path: Path, bad: bytes, fault: str) -> None:
    path = tmp_path / "math.jsonl"
    path.write_bytes(b"\n".join([GOOD, b"", bad, ALSO]))
    assert error_of(path).startswith(f"math.jsonl, row 3: {fault}")
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


def test_a_long_json_item_is_decoded_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ".json", [row("one", "s" * 1_000_000), row("two")])
    lengths: list[int] = []

    class Decoder(json.JSONDecoder):
        def raw_decode(self, s: str, idx: int = 0) -> tuple[Any, int]:
            lengths.append(len(s))
            return super().raw_decode(s, idx)

    monkeypatch.setattr(sources, "CHUNK", 8)
    monkeypatch.setattr(json, "JSONDecoder", Decoder)
    assert [p.question for p in load_problems(path)] == ["one", "two"]
    assert sum(lengths) < 5 * path.stat().st_size  # quadratic if each retry reads only a chunk more


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


def test_a_parquet_that_names_a_column_twice(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, column = tmp_path / "math.parquet", pa.array(["q"])
    pq.write_table(pa.Table.from_arrays([column] * 3, names=["problem", "problem", "solution"]), path)
    assert error_of(path, SKIP).startswith("math.parquet, row 1: cannot be read (it names a column twice")


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


def test_the_first_problem_comes_before_the_second_is_written(tmp_path: Path) -> None:
    pipe = tmp_path / "math.jsonl"
    os.mkfifo(pipe)
    may_go_on = threading.Event()

    def write_slowly() -> None:
        with pipe.open("wb", buffering=0) as file:
            file.write(GOOD + b"\n")
            may_go_on.wait()
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


@pytest.mark.parametrize(("suffix", "content"), [(".jsonl", ""), (".jsonl", "\n\n"), (".json", "[ ]"), (".csv", "")])
def test_an_empty_file_is_an_error(tmp_path: Path, suffix: str, content: str) -> None:
    path = tmp_path / f"math{suffix}"
    path.write_text(content)
    assert f"math{suffix}: 0 of 0 rows used." in error_of(path)
