"""Records: a rewind is exact, and rows without a step are none."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.run.records import Records

ROWS = st.lists(st.builds(lambda step, loss: {"loss": loss, "step": step}, st.integers(0, 20), st.text()), max_size=6)


@given(ROWS, st.integers(-1, 21))
def test_rewinding_keeps_what_is_not_later(rows, step):
    with tempfile.TemporaryDirectory() as folder:
        records = Records(Path(folder) / "rows.jsonl")
        records.append(*rows)
        records.rewind(step)
        earlier = [row for row in rows if row["step"] <= step]
        assert list(records) == earlier
        content = records.path.read_bytes()
        records.rewind(step)
        assert records.path.read_bytes() == content
        assert os.listdir(folder) == ["rows.jsonl"]


def test_a_missing_file_rewinds_to_nothing(tmp_path):
    records = Records(tmp_path / "metrics.jsonl")
    records.rewind(3)
    assert not records.path.exists()


@pytest.mark.parametrize("damage", [b'{"loss": 1}', b'{"step": "2"}', b'{"step": 2, "lo'])
def test_rows_without_a_step_are_passed_over(tmp_path, damage):
    records = Records(tmp_path / "metrics.jsonl")
    records.append({"step": 1})
    with records.path.open("ab") as file:
        file.write(damage + b"\n")
    records.append({"step": 3})
    assert list(records) == [{"step": 1}, {"step": 3}]
    records.rewind(3)
    assert records.path.read_text() == '{"step": 1}\n{"step": 3}\n'
