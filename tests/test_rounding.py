import math

import pytest

from opasd.report.numbers import percent
from opasd.rounding import fixed, per_cent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.0765, "7.7"),
        (0.0905, "9.1"),
        (0.0045, "0.5"),
        (-0.0765, "−7.7"),
        (0.07649, "7.6"),
        (0.0, "0.0"),
        (1, "100.0"),
    ],
)
def test_a_share_is_scaled_as_it_is_written(share, text):
    assert fixed(per_cent(share), 1) == text
    assert percent(share) == f"{text} %"


def test_a_mean_of_twelfths_is_a_tie_where_it_is_one():
    shares = [11 / 12] * 83 + [5 / 12] + [0.0] * 916  # 918 of 12,000
    assert fixed(per_cent(math.fsum(shares) / 1000), 1) == "7.7"
    gains = [a - b for a, b in zip(shares, [1 / 12] * 864 + [0.0] * 136, strict=True)]  # 864 of 12,000 less
    assert fixed(per_cent(math.fsum(gains) / 1000), 1, sign=True) == "+0.5"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_no_number_stays_none(value):
    assert fixed(per_cent(value), 1) == "–"
