"""The report's tables and figures against numbers counted by hand."""

import statistics

from opasd.report.accuracy import validation
from opasd.report.folders import read_run
from opasd.report.methods import find_methods, flat, seed_groups
from opasd.report.results import results
from opasd.report.summary import seeds, settings_that_differ
from tests.report.made import make_run


def column(table, name):
    index = list(table.header).index(name)
    return [row[index].text for row in table.rows]


def test_runs_that_differ_in_their_seed_alone_are_put_together(tmp_path):
    runs = [
        read_run(make_run(tmp_path, "opasd-1", seed=1)),
        read_run(make_run(tmp_path, "opsd-1", seed=1, recipe="lab-opsd")),
        read_run(make_run(tmp_path, "opasd-42", seed=42)),
        read_run(make_run(tmp_path, "longer", seed=43, steps=13)),
    ]
    (method,) = seed_groups(find_methods(runs))
    assert method.runs == (runs[0], runs[2])
    table = seeds(method, 1)
    assert table.title == "Seeds of OPASD"
    assert [row[0].text for row in table.rows] == ["seed 1", "seed 42", "Mean", "Std", "95 % CI"]
    values = [100 * run.validation["lab"]["avg@4"][-1][1] for run in (runs[0], runs[2])]
    texts = column(table, "lab Avg@4, %")
    assert texts[2:4] == [f"{statistics.fmean(values):.2f}", f"{statistics.stdev(values):.2f}"]
    figure = next(one for one in validation(find_methods(runs)) if one.id == "validation-lab-avg@4")
    series = next(series for series in figure.series if series.name == "OPASD")
    assert all(low <= y <= high for (_, y), low, high in zip(series.points, series.low, series.high, strict=True))


def test_settings_that_differ(tmp_path):
    runs = [read_run(make_run(tmp_path, "a")), read_run(make_run(tmp_path, "b", recipe="lab-opsd", seed=2))]
    table = settings_that_differ(find_methods(runs))
    assert {row[0].text: (row[1].text, row[2].text) for row in table.rows} == {
        "objective.attention_weight": ("0.5", "0.0"),
        "objective.token.clip": ("per_token", "pointwise"),
    }
    assert settings_that_differ(find_methods(runs[:1])) is None
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {("a", "b"): 1, ("a", "c"): {}, ("d",): [1]}


def with_many_passes(run, most):
    run.rows = [
        row | {f"validation/lab/pass@{k}": 0.3 + 0.01 * k for k in range(1, most + 1)}
        if "grad_norm" not in row
        else row
        for row in run.rows
    ]
    return run


def test_twelve_samples_a_problem_do_not_make_twelve_columns_and_figures(tmp_path):
    runs = [with_many_passes(read_run(make_run(tmp_path, f"r-{seed}", seed=seed)), 12) for seed in (1, 2)]
    assert [name for name in results(runs).header if "lab" in name] == [
        "lab Avg@4, first → last, %", "lab Pass@12, first → last, %",
    ]  # fmt: skip
    assert [name for name in seeds(find_methods(runs)[0], 1).header if "lab" in name] == [
        "lab Avg@4, %",
        "lab Pass@12, %",
    ]
    figures = {figure.id: figure for figure in validation(find_methods(runs))}
    assert [name for name in figures if "pass" in name] == [
        "validation-lab-pass@1", "validation-lab-pass@12", "validation-lab-pass-by-k",
    ]  # fmt: skip
    by_k = figures["validation-lab-pass-by-k"].series[-1]
    assert by_k.points == [(float(k), 0.3 + 0.01 * k) for k in range(1, 13)]
