"""Numbers in short, and the marks of an axis."""

import pytest

from opasd.report.numbers import duration, labels, short, size


def test_short_forms():
    assert [short(v) for v in (0, 12.345, 9000, 12345, 1.5e6, -2e9, 3e12, 1e-7, None)] == [
        "0", "12.3", "9000", "12.3K", "1.5M", "−2G", "3T", "1e−7", "–",
    ]  # fmt: skip
    assert [duration(v) for v in (3, 600, 7200, None)] == ["3.0 s", "10.0 min", "2.00 h", "–"]
    assert [size(v) for v in (2**20, 3 * 2**30, None)] == ["1.0 MiB", "3.00 GiB", "–"]


@pytest.mark.parametrize(
    ("values", "percent", "texts"),
    [([0.5025, 0.505, 0.5075], True, ["50.25 %", "50.50 %", "50.75 %"]), ([0, 0.5, 1], True, ["0 %", "50 %", "100 %"]),
     ([12_000, 12_250, 12_500], False, ["12.00K", "12.25K", "12.50K"]), ([0, 0.02, 0.04], False, ["0", "0.02", "0.04"]),
     ([1, 2, 3], False, ["1", "2", "3"]), ([-2e6, 0, 2e6], False, ["−2M", "0", "2M"]), ([1e-7], False, ["1e−7"]),
     ([], False, [])],
)  # fmt: skip
def test_marks_of_an_axis_say_exactly_where_they_are(values, percent, texts):
    assert labels(values, percent=percent) == texts
