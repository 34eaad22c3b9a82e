"""Which figures a report has of what is on record."""

import json

from opasd.report.figures import dynamics
from opasd.report.folders import read_run
from tests.report.made import make_run


def test_leaks_are_drawn_where_there_are_any(tmp_path):
    path = make_run(tmp_path, "leaky", steps=4)
    assert "leaks" not in [figure.id for figure in dynamics([read_run(path)])]
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    told = [row | {"rollout/leaks": 0.25 * (row["step"] - 1)} if "loss" in row else row for row in rows]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in told))
    (found,) = [figure for figure in dynamics([read_run(path)]) if figure.id == "leaks"]
    assert found.series[0].points == [(1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75)]
