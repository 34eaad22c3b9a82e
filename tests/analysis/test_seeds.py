"""Mean, spread and interval over seeds, against tables of Student's t, integration and the paper's own table."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.analysis.seeds import summarise, t_quantile, within

# Two-sided 95 % points of Student's t, as every table prints them.
PRINTED = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 9: 2.262, 10: 2.228, 20: 2.086,
           30: 2.042, 60: 2.000, 120: 1.980, 1000: 1.962}  # fmt: skip


@pytest.mark.parametrize(("freedom", "printed"), PRINTED.items())
def test_quantiles_as_printed(freedom, printed):
    assert t_quantile(freedom) == pytest.approx(printed, abs=5e-4)


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("t", [0.1, 1.0, 2.5])
def test_distribution_by_integration(freedom, t):
    """Simpson's rule on the density."""
    constant = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))
    count = 2000
    grid = [i * t / count for i in range(count + 1)]
    density = [constant * (1 + x * x / freedom) ** (-(freedom + 1) / 2) for x in grid]
    weights = [1, *(4 if i % 2 else 2 for i in range(1, count)), 1]
    half = t / count / 3 * math.fsum(w * d for w, d in zip(weights, density, strict=True))
    assert within(t, freedom) == pytest.approx(2 * half, abs=1e-10)


def test_the_seeds_table_of_the_paper():
    columns = {
        "AIME24": ([63.27, 63.33, 63.54], ("63.38", "0.14", "0.35")),
        "AIME25": ([50.83, 50.27, 50.63], ("50.58", "0.28", "0.70")),
        "AIME26": ([55.33, 55.56, 54.87], ("55.25", "0.35", "0.87")),
        "HMMT25": ([34.72, 33.89, 34.36], ("34.32", "0.42", "1.03")),
        "Average": ([51.04, 50.76, 50.85], ("50.88", "0.14", "0.36")),
    }
    for values, printed in columns.values():
        summary = summarise(values)
        assert (f"{summary.mean:.2f}", f"{summary.sd:.2f}", f"{summary.half_width:.2f}") == printed
    low, high = summarise(columns["Average"][0]).interval
    assert (f"{low:.2f}", f"{high:.2f}") == ("50.53", "51.24")


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20))
def test_against_the_standard_library(values):
    summary = summarise(values)
    assert summary.mean == pytest.approx(statistics.fmean(values))
    assert summary.sd == pytest.approx(statistics.stdev(values))
    assert summary.half_width == pytest.approx(t_quantile(len(values) - 1) * summary.sd / math.sqrt(len(values)))


def test_one_run_has_no_spread_and_none_is_refused():
    assert summarise([4.0]).interval is None
    with pytest.raises(ValueError, match="no values"):
        summarise([])
    with pytest.raises(ValueError, match="1 or more"):
        t_quantile(0)
