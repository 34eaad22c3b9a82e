"""Which figures a report has, and that they show the recorded numbers."""

import json
import math
from dataclasses import replace

import pytest

from opasd.report.accuracy import validation
from opasd.report.figures import all_figures, cost
from opasd.report.folders import read_run, read_runs
from opasd.report.markers import marker_table, markers
from opasd.report.methods import find_methods
from opasd.report.results import results
from opasd.report.run import Run
from tests.report.made import make_evaluation, make_run, run_with_answers


def figures_of(runs):
    return {figure.id: figure for figures in all_figures(find_methods(runs)).values() for figure in figures}


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
    assert [series.slot for series in figures["attention-alignment"].series] == [2, 2]
    efficiency = figures["token-efficiency-lab"].series[0]
    assert efficiency.points[1] == (sum(2000 + n for n in range(1, 7)), runs[0].validation["lab"]["avg@4"][1][1])
    assert "pass@4" in "".join(figures)
    assert figures["operations"].series[0].points[1][1] == pytest.approx(12 * 4e10 / 1e12)
    assert figures["pareto"].series[0].sizes == [sum(2000 + n for n in range(1, 13))]
    assert math.isclose(figures["pareto"].series[0].points[0][0], 36 / 60)
    assert "truncated" not in figures


def test_without_validation_accuracy_against_cost_is_that_of_the_evaluation(tmp_path):
    paths = [
        make_run(tmp_path, name, recipe=recipe, steps=n) for name, recipe, n in (("a", "lab", 4), ("b", "lab-opsd", 6))
    ]
    runs = read_runs([*paths, make_evaluation(tmp_path / "e", {"base": None, "a": paths[0], "b": paths[1]})])
    assert figures_of(runs)["pareto"].y_label == "final validation accuracy"
    for run in runs:
        run.rows = run.steps
        run.__dict__.pop("validation", None)
    figure = figures_of(runs)["pareto"]
    assert figure.y_label == "accuracy on set"
    trained = {run.name: run for run in runs if run.config}
    for series in figure.series:
        own = trained[series.name].shares("set", 100)
        assert series.points[0][1] == pytest.approx(sum(own.values()) / len(own))
    assert len(figure.series) == 2


def test_markers_by_word_by_verdict_and_against_the_base():
    base = run_with_answers("base", [True, False] * 15, "wait", 100)
    run = run_with_answers("trained", [True, False] * 15, "Wait, wait. Maybe check", 200)
    figures = {figure.id: figure for figure in markers(find_methods([base, run]))}
    assert figures["markers-by-word"].categories == ["wait", "maybe", "check"]
    assert [y for _, y in figures["markers-by-word"].series[1].points] == [10, 5, 5]
    assert [y for _, y in figures["markers-by-correctness"].series[0].points] == [10, 10]
    assert figures["markers-change"].series[0].points == [(0.0, 3.0)]


def test_markers_are_pooled_over_every_benchmark_that_all_answered():
    runs = [run_with_answers("base", [True] * 40, "wait", 100), run_with_answers("trained", [True] * 40, "wait", 100)]
    for run in runs:
        other = [replace(sample, dataset="other", text="maybe maybe", tokens=50) for sample in run.samples]
        run.samples += other
    runs[0].samples += [replace(sample, dataset="third", text="check " * 50) for sample in runs[0].samples[:5]]
    figures = {figure.id: figure for figure in markers(find_methods(runs))}
    assert figures["markers-by-word"].categories == ["wait", "maybe"], "only the base answered the third"
    assert [y for _, y in figures["markers-by-word"].series[1].points] == pytest.approx([40 / 6, 80 / 6])
    assert "answers to other, set" in figures["markers-by-word"].caption
    table = marker_table(find_methods(runs))
    assert [row[1].text for row in table.rows] == ["80", "80"]
    assert [row[2].text for row in table.rows] == ["120", "120"]


def test_one_marker_of_the_base_is_nothing_to_divide_by():
    base = run_with_answers("base", [True] * 40, "so", 100)
    base.samples[0] = replace(base.samples[0], text="wait")
    run = run_with_answers("trained", [True] * 40, "wait, maybe, check", 100)
    methods = find_methods([base, run])
    assert "markers-change" not in {figure.id for figure in markers(methods)}
    table = marker_table(methods)
    assert [row[5].text for row in table.rows] == ["", "–"]
    assert table.rows[0][2].text == "1"
    assert table.rows[1][3].text.startswith("3.00 [")
    assert "fewer than 30 markers" in table.caption


def test_seeds_are_thin_and_their_mean_is_bold_with_a_band(tmp_path):
    runs = [read_run(make_run(tmp_path, f"opasd-{seed}", seed=seed)) for seed in (1, 2, 3)]
    series = figures_of(runs)["response-length"].series
    assert [(one.name, one.faint) for one in series] == [
        ("opasd-1", True), ("opasd-2", True), ("opasd-3", True), ("OPASD", False),
    ]  # fmt: skip
    values = [dict(one.points)[7] for one in series[:3]]
    mean = series[3]
    at = [x for x, _ in mean.points].index(7)
    assert mean.points[at][1] == pytest.approx(sum(values) / 3)
    assert (mean.low[at], mean.high[at]) == (min(values), max(values))


def test_no_data_no_figures(tmp_path):
    empty = [Run("a", tmp_path)]
    methods = find_methods(empty)
    assert not any(all_figures(methods).values())
    assert (cost(methods), validation(methods)) == ([], [])
    assert results(empty).header == ["run"]
