"""Figures of validation and evaluation against numbers counted by hand."""

import json

import pytest

from opasd.report.accuracy import evaluation, validation
from opasd.report.folders import read_run, read_runs
from opasd.report.methods import find_methods
from tests.report.made import make_evaluation, make_run


def test_checkpoints_of_a_run_are_a_curve_over_its_steps(tmp_path):
    checkpoints = {f"checkpoint-{n}": tmp_path / "run" / f"checkpoint-{n}" for n in (20, 40, 100)}
    runs = read_runs([make_evaluation(tmp_path / "e", checkpoints)])
    figures = [figure for figure in evaluation(find_methods(runs)) if "over training" in figure.title]
    assert [figure.title for figure in figures] == ["Pass@1 on set over training", "Pass@3 on set over training"]
    (series,) = figures[0].series
    assert series.name == "run"
    assert [x for x, _ in series.points] == [20, 40, 100]


def test_a_curve_of_checkpoints_has_the_colour_of_their_run(tmp_path):
    other, run = make_run(tmp_path, "other"), make_run(tmp_path, "run")
    checkpoints = {f"checkpoint-{n}": run / f"checkpoint-{n}" for n in (20, 40)}
    runs = read_runs([other, run, make_evaluation(tmp_path / "e", checkpoints)])
    figure = next(figure for figure in evaluation(find_methods(runs)) if "over training" in figure.title)
    (owner,) = [method for method in find_methods(runs) if method.slot == figure.series[0].slot]
    assert owner.runs[0].name == "run"


def test_a_validations_accuracy_has_a_band_of_its_standard_error(tmp_path):
    path = make_run(tmp_path, "one", steps=8)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "validation/lab/avg@4" in row:
            row |= {"validation/lab/avg@4": 0.9, "validation/lab/stderr": 0.1}
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    figures = {figure.id: figure for figure in validation(find_methods([read_run(path)]))}
    (series,) = figures["validation-lab-avg@4"].series
    assert series.low == pytest.approx([0.704] * len(series.points))
    assert list(series.high) == [1.0] * len(series.points)
    assert not any(series.low for series in figures["validation-lab-pass@4"].series)
    assert not any("stderr" in name for name in figures)
    del rows[0]["validation/lab/stderr"]  # a run that was begun before there was one
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert not validation(find_methods([read_run(path)]))[0].series[0].low
