"""The report's tables and figures against numbers counted by hand."""

import json
import math
import statistics

import pytest

from opasd.analysis.seeds import t_quantile
from opasd.evaluation.statistics import estimate, paired_difference
from opasd.report.figures import all_figures, attention, cost, evaluation, markers, validation
from opasd.report.folders import Run, Sample, read_run, read_runs
from opasd.report.summary import (
    costs,
    evaluations,
    flat,
    results,
    seed_figures,
    seed_groups,
    seeds,
    settings_that_differ,
)
from tests.report.made import make_evaluation, make_run


def answered(name, verdicts, text="maybe", tokens=100):
    samples = [
        Sample("set", None, f"p{n}", 0, "q", "7", text, tokens, verdict, False) for n, verdict in enumerate(verdicts)
    ]
    return Run(name, path=None, state="evaluated", samples=samples)  # pyright: ignore[reportArgumentType]


def column(table, name):
    place = list(table.header).index(name)
    return [row[place].text for row in table.rows]


def test_accuracy_and_paired_difference_with_their_intervals():
    first, second = [True] * 30 + [False] * 70, [True] * 60 + [False] * 40
    table = results([answered("base", first), answered("trained", second)])
    low, high = (100 * v for v in estimate([float(v) for v in second])[1:])
    assert column(table, "set, %")[1] == f"60.0 [{low:.1f}, {high:.1f}]"
    gain = paired_difference([float(v) for v in second], [float(v) for v in first])
    assert column(table, "set against first") == ["", f"+30.0 [+{100 * gain.low:.1f}, +{100 * gain.high:.1f}]"]
    assert column(table, "markers / 1,000") == ["10.00", "10.00"]


def test_differences_are_on_the_problems_that_both_answered():
    first, second = answered("base", [True, False, True]), answered("trained", [True, True])
    assert column(results([first, second]), "set against first")[1].startswith("+50.0")


def test_the_end_of_training_with_an_interval_over_steps(tmp_path):
    run = read_run(make_run(tmp_path, "one", steps=20))
    tail = [100 * y for _, y in run.curve("rollout/accuracy")[-4:]]
    half = t_quantile(3) * statistics.stdev(tail) / 2
    mean = statistics.fmean(tail)
    assert column(results([run]), "rollout accuracy at the end, %") == [
        f"{mean:.1f} [{mean - half:.1f}, {mean + half:.1f}]"
    ]
    assert column(results([run]), "lab Avg@4, first → last, %")[0].startswith("31.0 → 5")


def test_costs(tmp_path):
    table = costs([read_run(make_run(tmp_path, "one", steps=10)), Run("base", tmp_path)])
    assert column(table, "wall clock") == ["30.0 s", "–"]
    assert column(table, "tokens generated") == ["20.1K", "–"]
    assert column(table, "EFLOPs")[0] == f"{10 * 11e10 / 1e18:.3g}"
    assert costs([Run("base", tmp_path)]) is None


def test_runs_that_differ_in_their_seed_alone_are_put_together(tmp_path):
    runs = [
        read_run(make_run(tmp_path, "opasd-1", seed=1)),
        read_run(make_run(tmp_path, "opsd-1", seed=1, recipe="lab-opsd")),
        read_run(make_run(tmp_path, "opasd-42", seed=42)),
        read_run(make_run(tmp_path, "longer", seed=43, steps=13)),
    ]
    assert seed_groups(runs) == [[0, 2]]
    table = seeds(runs, [0, 2], 1)
    assert table.title == "Seeds of opasd"
    assert [row[0].text for row in table.rows] == ["seed 1", "seed 42", "Mean", "Std", "95 % CI"]
    values = [100 * run.validation["lab"]["avg@4"][-1][1] for run in (runs[0], runs[2])]
    found = column(table, "lab Avg@4, %")
    assert found[2:4] == [f"{statistics.fmean(values):.2f}", f"{statistics.stdev(values):.2f}"]
    figure = seed_figures(runs, [0, 2], 1)[0]
    (series,) = figure.series
    assert all(low <= y <= high for (_, y), low, high in zip(series.points, series.low, series.high, strict=True))


def test_settings_that_differ(tmp_path):
    runs = [read_run(make_run(tmp_path, "a")), read_run(make_run(tmp_path, "b", recipe="lab-opsd", seed=2))]
    table = settings_that_differ(runs)
    assert {row[0].text: (row[1].text, row[2].text) for row in table.rows} == {
        "objective.attention_weight": ("0.5", "0.0"),
        "objective.token.clip": ("per_token", "pointwise"),
        "train.seed": ("1", "2"),
    }
    assert settings_that_differ(runs[:1]) is None
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {("a", "b"): 1, ("a", "c"): {}, ("d",): [1]}


def test_evaluations_by_benchmark_and_budget(tmp_path):
    folder = make_evaluation(tmp_path / "e", {"base": None, "other": tmp_path / "o"})
    runs = read_runs([folder])
    table = evaluations(runs)
    assert [row[0].text for row in table.rows] == [
        "set, up to 50 tokens, 3 samples a problem", "base", "other",
        "set, up to 100 tokens, 3 samples a problem", "base", "other",
    ]  # fmt: skip
    by_k, by_budget = evaluation(runs)
    assert [x for x, _ in by_k.series[0].points] == [1, 2, 3]
    assert all(a[1] <= b[1] for a, b in zip(by_k.series[0].points, by_k.series[0].points[1:], strict=False))
    assert [x for x, _ in by_budget.series[0].points] == [50, 100]
    assert evaluations([Run("a", tmp_path)]) is None


def test_checkpoints_of_a_run_are_a_curve_over_its_steps(tmp_path):
    places = {f"checkpoint-{n}": tmp_path / "run" / f"checkpoint-{n}" for n in (20, 40, 100)}
    runs = read_runs([make_evaluation(tmp_path / "e", places)])
    figures = [figure for figure in evaluation(runs) if "over training" in figure.title]
    assert [figure.title for figure in figures] == ["Pass@1 on set over training", "Pass@3 on set over training"]
    (series,) = figures[0].series
    assert series.name == "run"
    assert [x for x, _ in series.points] == [20, 40, 100]


def test_figures_say_what_the_rows_say(tmp_path):
    runs = [read_run(make_run(tmp_path, "a")), read_run(make_run(tmp_path, "b", recipe="lab-opsd"))]
    found = {figure.id: figure for _, _, figures in all_figures(runs) for figure in figures}
    raw, smooth = (found["rollout-accuracy"].series[n] for n in (0, 1))
    assert raw.points == runs[0].curve("rollout/accuracy")
    assert smooth.points[1][1] == pytest.approx(0.7 * raw.points[0][1] + 0.3 * raw.points[1][1])
    assert [series.run for series in found["attention-alignment"].series] == [0, 0]
    efficiency = found["token-efficiency-lab"].series[0]
    assert efficiency.points[1] == (sum(2000 + n for n in range(1, 7)), runs[0].validation["lab"]["avg@4"][1][1])
    assert "pass@4" in "".join(found)
    assert found["operations"].series[0].points[1][1] == pytest.approx(12 * 4e10 / 1e18)
    assert found["pareto"].series[0].sizes == [sum(2000 + n for n in range(1, 13))]
    assert math.isclose(found["pareto"].series[0].points[0][0], 36 / 60)
    assert "truncated" not in found


def test_markers_by_word_by_verdict_and_against_the_base():
    base = answered("base", [True, False], "wait", 100)
    run = answered("trained", [True, False], "Wait, wait. Maybe check", 200)
    found = {figure.id: figure for figure in markers([base, run])}
    assert found["markers-by-word"].categories == ["wait", "maybe", "check"]
    assert [y for _, y in found["markers-by-word"].series[1].points] == [10, 5, 5]
    assert [y for _, y in found["markers-by-correctness"].series[0].points] == [10, 10]
    assert found["markers-change"].series[0].points == [(0.0, 3.0)]


def test_no_data_no_figures(tmp_path):
    empty = [Run("a", tmp_path)]
    assert [figures for _, _, figures in all_figures(empty) if figures] == []
    assert (attention(empty), cost(empty), validation(empty)) == ([], [], [])
    assert results(empty).header == ["run"]


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
    assert [name for name in seeds(runs, [0, 1], 1).header if "lab" in name] == ["lab Avg@4, %", "lab Pass@12, %"]
    found = {figure.id: figure for figure in validation(runs)}
    assert [name for name in found if "pass" in name] == [
        "validation-lab-pass@1", "validation-lab-pass@12", "validation-lab-pass-by-k",
    ]  # fmt: skip
    by_k = found["validation-lab-pass-by-k"].series[1]
    assert by_k.points == [(float(k), 0.3 + 0.01 * k) for k in range(1, 13)]
    assert len(seed_figures(runs, [0, 1], 1)) == 2


def test_a_curve_of_checkpoints_has_the_colour_of_their_run(tmp_path):
    other, run = make_run(tmp_path, "other"), make_run(tmp_path, "run")
    places = {f"checkpoint-{n}": run / f"checkpoint-{n}" for n in (20, 40)}
    runs = read_runs([other, run, make_evaluation(tmp_path / "e", places)])
    figure = next(figure for figure in evaluation(runs) if "over training" in figure.title)
    assert runs[figure.series[0].run].name == "run"


def test_a_validations_accuracy_has_a_band_of_its_standard_error(tmp_path):
    path = make_run(tmp_path, "one", steps=8)
    rows = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for row in rows:
        if "validation/lab/avg@4" in row:
            row |= {"validation/lab/avg@4": 0.9, "validation/lab/stderr": 0.1}
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = {figure.id: figure for figure in validation([read_run(path)])}
    (series,) = found["validation-lab-avg@4"].series
    assert series.low == pytest.approx([0.704] * len(series.points))
    assert list(series.high) == [1.0] * len(series.points)
    assert not any(one.low for one in found["validation-lab-pass@4"].series)
    assert not any("stderr" in name for name in found)
    del rows[0]["validation/lab/stderr"]  # a run that was begun before there was one
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert not validation([read_run(path)])[0].series[0].low
