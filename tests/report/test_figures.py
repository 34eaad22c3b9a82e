"""Which figures a report has, and that they show the recorded numbers."""

import json
import math

import pytest

from opasd.report.accuracy import validation
from opasd.report.figures import all_figures, cost, markers
from opasd.report.folders import read_run
from opasd.report.results import results
from opasd.report.run import Run
from tests.report.made import make_run, run_with_answers


def figures_of(runs):
    return {figure.id: figure for figures in all_figures(runs).values() for figure in figures}


def test_leaks_are_drawn_where_there_are_any(tmp_path):
    path = make_run(tmp_path, "leaky", steps=4)
    assert "leaks" not in figures_of([read_run(path)])
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    leaky = [row | {"rollout/leaks": 0.25 * (row["step"] - 1)} if "loss" in row else row for row in rows]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in leaky))
    figure = figures_of([read_run(path)])["leaks"]
    assert figure.series[0].points == [(1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75)]


def test_figures_say_what_the_rows_say(tmp_path):
    runs = [read_run(make_run(tmp_path, "a")), read_run(make_run(tmp_path, "b", recipe="lab-opsd"))]
    figures = figures_of(runs)
    raw, smooth = (figures["rollout-accuracy"].series[n] for n in (0, 1))
    assert raw.points == runs[0].curve("rollout/accuracy")
    assert smooth.points[1][1] == pytest.approx(0.7 * raw.points[0][1] + 0.3 * raw.points[1][1])
    assert [series.run for series in figures["attention-alignment"].series] == [0, 0]
    efficiency = figures["token-efficiency-lab"].series[0]
    assert efficiency.points[1] == (sum(2000 + n for n in range(1, 7)), runs[0].validation["lab"]["avg@4"][1][1])
    assert "pass@4" in "".join(figures)
    assert figures["operations"].series[0].points[1][1] == pytest.approx(12 * 4e10 / 1e18)
    assert figures["pareto"].series[0].sizes == [sum(2000 + n for n in range(1, 13))]
    assert math.isclose(figures["pareto"].series[0].points[0][0], 36 / 60)
    assert "truncated" not in figures


def test_markers_by_word_by_verdict_and_against_the_base():
    base = run_with_answers("base", [True, False], "wait", 100)
    run = run_with_answers("trained", [True, False], "Wait, wait. Maybe check", 200)
    figures = {figure.id: figure for figure in markers([base, run])}
    assert figures["markers-by-word"].categories == ["wait", "maybe", "check"]
    assert [y for _, y in figures["markers-by-word"].series[1].points] == [10, 5, 5]
    assert [y for _, y in figures["markers-by-correctness"].series[0].points] == [10, 10]
    assert figures["markers-change"].series[0].points == [(0.0, 3.0)]


def test_no_data_no_figures(tmp_path):
    empty = [Run("a", tmp_path)]
    assert not any(all_figures(empty).values())
    assert (cost(empty), validation(empty)) == ([], [])
    assert results(empty).header == ["run"]
