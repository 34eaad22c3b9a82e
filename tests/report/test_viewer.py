"""Packed rows of attention: a browser shows them nearly exactly."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from opasd.report.viewer import KEPT, packed, quantised
from tests.report.unpacking import restored, unpacked


@given(arrays(float, st.integers(0, 600), elements=st.floats(0, 1)))
def test_a_packed_weight_is_off_by_little_and_the_largest_are_kept(row):
    levels, largest = quantised(row)
    again = restored(levels, largest)
    stored = levels > 0
    assert np.allclose(again[stored], row[stored], rtol=0.032)
    assert stored.sum() <= KEPT
    lost = row[~stored]
    if lost.size and stored.any():
        assert lost.max() <= max(largest * 2**-10.9, row[stored].min() * 1.000001)
    (back,) = unpacked(packed([row]), [row.size])
    assert np.allclose(back, again, rtol=1e-4)


def test_odd_rows():
    assert quantised(np.zeros(3))[1] == 0
    assert quantised(np.array([]))[1] == 0
    assert quantised(np.array([np.nan, 1.0]))[1] == 0
    assert restored(*quantised(np.array([0.5]))) == pytest.approx([0.5])
