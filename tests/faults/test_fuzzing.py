"""Hostile input of every kind, a few of each; `make fuzz` tries many."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.targets import TARGETS


@pytest.mark.parametrize(("target", "few"), TARGETS.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_hostile_input(tmp_path, target, few):
    slow = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]

    @settings(max_examples=few, suppress_health_check=slow, derandomize=True)
    @given(data=st.data())
    def tried(data):
        target(tmp_path, data.draw)

    tried()
