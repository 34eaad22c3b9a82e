"""Pages of a model's attention, and the mistakes of who asks for one."""

import pytest

from opasd.errors import ConfigError
from opasd.report.attend import attend


def test_attend_on_the_lab_with_a_given_text(tmp_path):
    (tmp_path / "answer.txt").write_text("Plan: Bob.\nAnswer: \\boxed{1}")
    page = attend("lab", [2], completion=tmp_path / "answer.txt", layers=2, out=tmp_path / "page.html")
    text = page.read_text()
    assert 'id="viewer"' in text
    assert "trajectory" in text
    attend("lab", [2], completion=tmp_path / "answer.txt", layers="0,2", out=page)
    assert '"layer":4' in page.read_text().replace(" ", "")
    with pytest.raises(ConfigError, match="--layers: got 'x'; give how many of the last layers"):
        attend("lab", [2], completion=tmp_path / "answer.txt", layers="x", out=page)
    (tmp_path / "mine.html").write_text("mine")
    with pytest.raises(ConfigError, match="not overwritten"):
        attend("lab", [2], completion=tmp_path / "answer.txt", out=tmp_path / "mine.html")
    with pytest.raises(ConfigError, match="neither a run"):
        attend(str(tmp_path), [1])
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(ConfigError, match="no text"):
        attend("lab", [1], completion=tmp_path / "empty.txt", out=tmp_path / "x.html")
    (tmp_path / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="UTF-8"):
        attend("lab", [1], completion=tmp_path / "bad.txt")


def test_a_number_far_beyond_the_labs_problems_is_told_at_once(tmp_path):
    with pytest.raises(ConfigError, match="--problem 99999999: lab has 1200 problems"):
        attend("lab", [99_999_999], out=tmp_path / "page.html")
