"""Files are written whole or not at all; rows survive kills, any text and any number."""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import save_file

from opasd.errors import ConfigError
from opasd.files import (
    JsonLines,
    full_disk_errors,
    read_object,
    staged_files,
    staged_folder,
    write_json,
    write_text,
)
from opasd.run.manifest import write_manifest
from tests.processes import environment, wait_until
from tests.training import TOKENIZER

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
def lines(tmp_path) -> JsonLines:
    return JsonLines(tmp_path / "metrics.jsonl")


@given(ROWS, ROWS)
def test_rows_come_back_as_they_were(first, second):
    with tempfile.TemporaryDirectory() as folder:
        lines = JsonLines(Path(folder) / "rows.jsonl")
        lines.append(*first)
        lines.append(*second)
        assert list(lines) == first + second
        # Any other reader of UTF-8 JSON lines agrees.
        texts = lines.path.read_bytes().decode().split("\n")
        assert [json.loads(line, parse_constant=strict) for line in texts[:-1]] == first + second


@given(ROWS, ROWS, st.data())
def test_a_kill_at_any_byte_loses_the_cut_row_only(rows, later, data):
    with tempfile.TemporaryDirectory() as folder:
        lines = JsonLines(Path(folder) / "rows.jsonl")
        lines.append(*rows)
        content = lines.path.read_bytes()
        size = data.draw(st.integers(0, len(content)))
        lines.path.write_bytes(content[:size])
        whole = content[:size].count(b"\n") + (content[size : size + 1] == b"\n")
        assert list(lines) == rows[:whole]
        lines.append(*later)
        assert list(lines) == rows[:whole] + later


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_does_not_have_is_null(lines, value):
    lines.append({"step": 1, "loss": value, "parts": [value, {"deep": (1.0, value)}], "fine": 0.5})
    assert list(lines) == [{"step": 1, "loss": None, "parts": [None, {"deep": [1.0, None]}], "fine": 0.5}]
    json.loads(lines.path.read_text(), parse_constant=strict)
    table = pd.read_json(lines.path, lines=True)
    assert table["loss"].isna().tolist() == [True]


def test_numbers_keep_every_bit(lines):
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, 2**63]
    lines.append({"step": 0, "values": values})
    assert [repr(value) for value in next(iter(lines))["values"]] == [repr(value) for value in values]


def test_nothing_appended_is_nothing(lines):
    lines.append()
    lines.append({"step": 1})
    lines.append()
    assert lines.path.read_text() == '{"step": 1}\n'


def test_a_failed_rewrite_leaves_the_old_file(lines):
    lines.append({"step": 1})
    with pytest.raises(TypeError):
        lines.replace(iter([{"step": 2}, {"step": 3, "bad": object()}]))
    assert list(lines) == [{"step": 1}]


def test_a_row_that_cannot_be_written_leaves_no_part_behind(lines):
    with pytest.raises(TypeError):
        lines.append({"step": 1}, {"step": 2, "bad": object()})
    assert list(lines) == []


def test_huge_rows(lines):
    row = {"step": 1, "completion": "数" * 2_000_000, "completion_ids": list(range(100_000))}
    lines.append(row, {"step": 2})
    assert list(lines) == [row, {"step": 2}]


def test_replacing_holds_one_row_at_a_time(lines, monkeypatch):
    """A run's samples may be larger than memory."""
    lines.append(*({"step": step} for step in range(5)))
    events: list[str] = []

    def rows():
        for step in range(3):
            events.append(f"read {step}")
            yield {"step": step}

    dumps = json.dumps
    monkeypatch.setattr(
        json, "dumps", lambda row, **options: events.append(f"write {row['step']}") or dumps(row, **options)
    )
    lines.replace(rows())
    assert events == [f"{what} {step}" for step in range(3) for what in ("read", "write")]


TEXT = "y" * 50_000


WRITE_SLOWLY = """
import sys, time
from pathlib import Path
from opasd.files import JsonLines, json_line

path, text = Path(sys.argv[1]), "y" * 50_000
lines = JsonLines(path)
for step in range(500):  # runs of bytes as a slow disk would take them; 50 MB at most
    content = json_line({"step": step, "text": text}) + json_line({"step": step})
    with path.open("ab", buffering=0) as file:
        for start in range(0, len(content), 7_919):
            file.write(content[start : start + 7_919])
            time.sleep(0.0005)
    lines.append({"step": step, "text": text}, {"step": step})
"""


def test_a_reader_beside_a_writer_that_is_killed_sees_whole_rows(lines):
    counts = [0]
    with subprocess.Popen([sys.executable, "-c", WRITE_SLOWLY, str(lines.path)], env=environment()) as writer:
        wait_until(lambda: list(lines), writer)
        while counts[-1] < 40:
            rows = list(lines)
            assert [row["step"] for row in rows] == [number // 4 for number in range(len(rows))]
            assert all(row.get("text") == (None if number % 2 else TEXT) for number, row in enumerate(rows))
            counts.append(len(rows))
        writer.kill()
    assert counts == sorted(counts)
    last = len(list(lines))
    assert last >= counts[-1] > 0
    lines.append({"step": 10**9})
    assert len(list(lines)) == last + 1


def test_a_file_set_aside_overwrites_no_earlier_one(tmp_path):
    lines = JsonLines(tmp_path / "metrics.jsonl")
    lines.set_aside()
    assert not list(tmp_path.iterdir())
    for number in (1, 2, 3):
        lines.append({"step": number})
        lines.set_aside()
        assert not list(lines)
        assert list(JsonLines(tmp_path / f"metrics.jsonl.before-{number}")) == [{"step": number}]


def test_a_missing_file_has_no_rows(lines):
    assert list(lines) == []
    assert not lines.path.exists()


@pytest.mark.parametrize(
    "damage", [b'{"step": 2, "lo', b"\x00" * 64, b"\xff\xfe{", b"[1, 2]", b"", b"null", b"[" * 9999]
)
def test_damage_is_passed_over(lines, damage):
    lines.append({"step": 1})
    with lines.path.open("ab") as file:
        file.write(damage + b"\n")
    lines.append({"step": 3})
    assert list(lines) == [{"step": 1}, {"step": 3}]


def test_a_left_over_of_an_interrupted_rewrite_does_not_matter(lines):
    lines.append({"step": 1}, {"step": 2})
    (lines.path.parent / ".metrics.jsonl.new").write_text('{"step": 7}\n{"st')
    lines.replace(row for row in lines if row["step"] == 1)
    assert list(lines) == [{"step": 1}]


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "first")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "\ud800", "strict")
    assert path.read_text() == "first"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_json_of_any_text(tmp_path):
    value = {"a": "é\ud800", "b": [1, None]}
    write_json(tmp_path / "a.json", value)
    assert read_object(tmp_path / "a.json") == value
    for content in (b'{"a": 1', b"[]", b"\xff"):
        (tmp_path / "b.json").write_bytes(content)
        assert read_object(tmp_path / "b.json") == {}
    assert read_object(tmp_path / "none.json") == {}


def test_a_staged_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(RuntimeError), staged_folder(tmp_path / "out") as staged:
        (staged / "a").write_text("")
        raise RuntimeError
    assert not list(tmp_path.iterdir())
    for _ in range(2):
        with suppress(OSError), staged_folder(tmp_path / "out") as staged:
            (staged / "a").write_text("")
    assert os.listdir(tmp_path) == ["out"]
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_staged_files_come_together(tmp_path):
    with pytest.raises(RuntimeError), staged_files(tmp_path / "new") as staged:
        (staged / "a").write_text("")
        raise RuntimeError
    assert not (tmp_path / "new").exists()
    (tmp_path / ".new-killed").mkdir()
    with staged_files(tmp_path) as staged:
        (staged / "a").write_text("")
        assert not (tmp_path / "a").exists()
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: no kernel"),
        ConnectionRefusedError("no"),
        PermissionError(13, "denied"),
        ValueError("x"),
    ],
)
def test_other_errors_stay_what_they_are(tmp_path, error):
    with pytest.raises(type(error)) as caught, full_disk_errors(tmp_path):
        raise error
    assert caught.value is error


def test_a_full_disk_gives_one_message(tmp_path):
    outer, inner = full_disk_errors(tmp_path), full_disk_errors(tmp_path / "in", "merge again")
    with pytest.raises(ConfigError) as caught, outer, inner:
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    assert str(caught.value).count("could not be written") == 1
    assert str(caught.value).endswith("free some space, and merge again")


def test_a_full_disk_met_by_the_tokenizers_library(tmp_path):
    """It raises what no other exception is."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(ConfigError, match="could not be written: File too large"), full_disk_errors(tmp_path):
            TOKENIZER.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def test_weights_can_be_read_by_whom_the_umask_lets(tmp_path):
    (tmp_path / "plain").touch()
    wanted = (tmp_path / "plain").stat().st_mode
    with staged_files(tmp_path / "merged") as staged:
        save_file({"weight": torch.zeros(2)}, staged / "model.safetensors")
    (tmp_path / "final").mkdir()
    save_file({"weight": torch.zeros(2)}, tmp_path / "final" / "adapter_model.safetensors")
    write_manifest(tmp_path / "final", "run")
    assert {path.stat().st_mode for path in tmp_path.rglob("*.safetensors")} == {wanted}
    assert sorted(path.name for path in (tmp_path / "final").iterdir()) == [
        "adapter_model.safetensors",
        "manifest.json",
    ]
