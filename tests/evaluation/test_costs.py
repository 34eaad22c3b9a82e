"""What an evaluation took, over all its calls."""

import json
import os
import subprocess
import sys

from opasd.evaluation.costs import Costs


def test_calls_are_added_up_and_a_cut_row_is_left_out(tmp_path):
    path = tmp_path / "calls.jsonl"
    first = Costs(path, gpus=2)
    first.start()
    first.add(4, 100, 1.5)
    first.add(2, 50, 0.5)
    with path.open("ab") as file:
        file.write(b'{"call": 1, "tokens": 9')
    second = Costs(path, gpus=2)
    assert second.call == 2
    second.start()
    second.add(1, 10, 1.0)
    calls, total = second.calls(), second.total()
    assert [call["tokens"] for call in calls] == [150, 10]
    assert all(call["environment"]["versions"]["torch"] for call in calls)
    assert (total["calls"], total["samples"], total["tokens"], total["seconds"]) == (2, 7, 160, 3.0)
    assert total["gpu_seconds"] == 6.0
    assert total["cpu_seconds"] == sum(call["cpu_seconds"] for call in calls) > 0
    assert json.loads(json.dumps(total)) == total


def test_unknown_gpu_time_stays_unknown(tmp_path):
    Costs(tmp_path / "calls.jsonl", gpus=1).add(1, 1, 1.0)
    costs = Costs(tmp_path / "calls.jsonl", gpus=None)
    costs.add(1, 1, 1.0)
    assert costs.total()["gpu_seconds"] is None
    assert costs.total()["seconds"] == 2


def test_processes_that_end_after_the_last_group_count_too(tmp_path):
    """The graders do: they work until all is drawn."""

    def drawn():
        yield 1, 10, 1.0
        before = os.times()
        subprocess.run([sys.executable, "-Sc", "sum(range(5 * 10**6))"], check=True)
        spent.append(os.times().children_user - before.children_user)

    spent: list[float] = []
    costs = Costs(tmp_path / "calls.jsonl", gpus=0)
    assert list(costs.follow(drawn())) == [(1, 10, 1.0)]
    *_, group, rest = (tmp_path / "calls.jsonl").read_text().splitlines()
    assert json.loads(rest)["cpu_seconds"] > 0.9 * spent[0] > 0
    assert costs.total()["samples"] == json.loads(group)["samples"] == 1


def test_nothing_drawn_costs_nothing(tmp_path):
    costs = Costs(tmp_path / "calls.jsonl", gpus=0)
    assert not list(costs.follow([]))
    assert costs.total()["calls"] == 0
    assert not (tmp_path / "calls.jsonl").exists()
