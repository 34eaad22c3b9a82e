"""GPUs and cores of the runs of a sweep."""

import pytest

from opasd.sweep.machine import Machine


def test_runs_take_turns_on_gpus_and_share_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(3, ("0", "2", "5", "7"), 2)
    shares = [machine.environment(slot)["CUDA_VISIBLE_DEVICES"] for slot in range(3)]
    assert shares == ["0,2", "5,7", "0,2"]
    assert [machine.shared(0, slot) for slot in range(3)] == [True, False, True]
    assert all(Machine(3, ("0", "1", "12"), 2).shared(*pair) for pair in ((0, 1), (1, 2), (0, 2)))
    assert not Machine(2, ("1", "12")).shared(0, 1)
    assert Machine(2).shared(0, 1)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    assert Machine(3).environment(0) == {"OMP_NUM_THREADS": "2"}
    assert Machine(20).environment(19) == {"OMP_NUM_THREADS": "1"}
    assert Machine(2, ("0",), 0).environment(1) == {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "4"}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert Machine(3).environment(0) == {}
