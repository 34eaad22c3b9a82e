"""Records: rows survive kills, any text and any number, and a rewind is exact."""

import json
import math
import multiprocessing
import os
import signal
import tempfile
import time
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.run.records import Records, _line

NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**70), 2**70)
TEXTS = st.text() | st.sampled_from(
    ["\ud800", "a\udfffb", "\x00\x1f\x7f\x85", "\u2028\u2029", "\r\n\r", "\\ud800", '"']
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(
    st.builds(
        lambda step, rest: {**rest, "step": step}, st.integers(0, 20), st.dictionaries(TEXTS, VALUES, max_size=4)
    ),
    max_size=6,
)


def strict(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


@pytest.fixture
def records(tmp_path) -> Records:
    return Records(tmp_path / "metrics.jsonl")


@given(ROWS, ROWS)
def test_rows_come_back_as_they_were(first, second):
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "rows.jsonl")
        records.append(*first)
        records.append(*second)
        assert list(records) == first + second
        # Any other reader of UTF-8 JSON lines agrees.
        lines = records.path.read_bytes().decode().split("\n")
        assert [json.loads(line, parse_constant=strict) for line in lines[:-1]] == first + second


@given(ROWS, st.integers(-1, 21))
def test_rewinding_keeps_what_is_not_later(rows, step):
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "rows.jsonl")
        records.append(*rows)
        records.rewind(step)
        kept = [row for row in rows if row["step"] <= step]
        assert list(records) == kept
        content = records.path.read_bytes()
        records.rewind(step)
        assert records.path.read_bytes() == content
        assert os.listdir(folder) == ["rows.jsonl"]


@given(ROWS, ROWS, st.data())
def test_a_kill_at_any_byte_loses_the_cut_row_only(rows, later, data):
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "rows.jsonl")
        records.append(*rows)
        content = records.path.read_bytes()
        size = data.draw(st.integers(0, len(content)))
        records.path.write_bytes(content[:size])
        whole = content[:size].count(b"\n") + (content[size : size + 1] == b"\n")
        assert list(records) == rows[:whole]
        records.append(*later)
        assert list(records) == rows[:whole] + later


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_null(records, value):
    records.append({"step": 1, "loss": value, "parts": [value, {"deep": (1.0, value)}], "fine": 0.5})
    assert list(records) == [{"step": 1, "loss": None, "parts": [None, {"deep": [1.0, None]}], "fine": 0.5}]
    json.loads(records.path.read_text(), parse_constant=strict)
    table = pd.read_json(records.path, lines=True)
    assert table["loss"].isna().tolist() == [True]


def test_numbers_keep_every_bit(records):
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2**63]
    records.append({"step": 0, "values": values})
    assert [repr(value) for value in next(iter(records))["values"]] == [repr(value) for value in values]


def test_a_missing_file_has_no_rows_and_rewinds_to_nothing(records):
    assert list(records) == []
    records.rewind(3)
    assert not records.path.exists()


def test_nothing_appended_is_nothing(records):
    records.append()
    records.append({"step": 1})
    records.append()
    assert records.path.read_text() == '{"step": 1}\n'


@pytest.mark.parametrize(
    "damage",
    [b'{"step": 2, "lo', b"\x00" * 64, b"\xff\xfe{", b"[1, 2]", b'{"loss": 1}', b'{"step": "2"}', b"", b"null"],
)
def test_damage_is_passed_over(records, damage):
    records.append({"step": 1})
    with records.path.open("ab") as file:
        file.write(damage + b"\n")
    records.append({"step": 3})
    assert list(records) == [{"step": 1}, {"step": 3}]
    records.rewind(3)
    assert records.path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_a_left_over_of_an_interrupted_rewind_does_not_matter(records):
    records.append({"step": 1}, {"step": 2})
    (records.path.parent / ".metrics.jsonl.new").write_text('{"step": 7}\n{"st')
    records.rewind(1)
    assert list(records) == [{"step": 1}]


def test_a_failed_rewrite_leaves_the_old_file(records):
    records.append({"step": 1})
    with pytest.raises(TypeError):
        records.replace(iter([{"step": 2}, {"step": 3, "odd": object()}]))
    assert list(records) == [{"step": 1}]


def test_a_row_that_cannot_be_written_leaves_no_part_behind(records):
    with pytest.raises(TypeError):
        records.append({"step": 1}, {"step": 2, "odd": object()})
    assert list(records) == []


def test_huge_rows(records):
    row = {"step": 1, "completion": "数" * 2_000_000, "completion_ids": list(range(100_000))}
    records.append(row, {"step": 2})
    assert list(records) == [row, {"step": 2}]


def test_rewinding_holds_one_row_at_a_time(records, monkeypatch):
    """A run's samples may be larger than memory."""
    records.append(*({"step": step} for step in range(5)))
    events: list[str] = []

    def rows():
        for step in range(3):
            events.append(f"read {step}")
            yield {"step": step}

    dumps = json.dumps
    monkeypatch.setattr(
        json, "dumps", lambda row, **options: events.append(f"write {row['step']}") or dumps(row, **options)
    )
    records.replace(rows())
    assert events == [f"{what} {step}" for step in range(3) for what in ("read", "write")]


TEXT = "y" * 50_000


def _write_slowly(path: Path) -> None:
    """Byte runs as a slow disk would take them; 50 MB at most."""
    records = Records(path)
    for step in range(500):
        content = _line({"step": step, "text": TEXT}) + _line({"step": step})
        with path.open("ab", buffering=0) as file:
            for start in range(0, len(content), 7_919):
                file.write(content[start : start + 7_919])
                time.sleep(0.0005)
        records.append({"step": step, "text": TEXT}, {"step": step})


def test_a_reader_beside_a_writer_that_is_killed_sees_whole_rows(records):
    writer = multiprocessing.get_context("spawn").Process(target=_write_slowly, args=(records.path,))
    writer.start()
    try:
        counts = []
        while not list(records):
            time.sleep(0.01)
        until = time.monotonic() + 1
        while time.monotonic() < until:
            rows = list(records)
            assert [row["step"] for row in rows] == [number // 4 for number in range(len(rows))]
            assert all(row.get("text") == (None if number % 2 else TEXT) for number, row in enumerate(rows))
            counts.append(len(rows))
        assert counts == sorted(counts)
    finally:
        assert writer.pid is not None  # our own child
        os.kill(writer.pid, signal.SIGKILL)
        writer.join()
    last = len(list(records))
    assert last >= counts[-1] > 0
    records.append({"step": 10**9})
    assert len(list(records)) == last + 1


def test_a_file_set_aside_overwrites_no_earlier_one(tmp_path):
    records = Records(tmp_path / "metrics.jsonl")
    records.set_aside()
    assert not list(tmp_path.iterdir())
    for number in (1, 2, 3):
        records.append({"step": number})
        records.set_aside()
        assert not list(records)
        assert list(Records(tmp_path / f"metrics.jsonl.before-{number}")) == [{"step": number}]
