"""The tables of results, evaluations and cost against numbers counted by hand."""

import statistics

from opasd.analysis.seeds import t_quantile
from opasd.evaluation.statistics import estimate, paired_difference
from opasd.report.accuracy import evaluation
from opasd.report.folders import read_run, read_runs
from opasd.report.methods import find_methods
from opasd.report.results import costs, evaluations, results
from opasd.report.run import Run
from tests.report.made import make_evaluation, make_run, run_with_answers


def column(table, name):
    index = list(table.header).index(name)
    return [row[index].text for row in table.rows]


def test_accuracy_and_paired_difference_with_their_intervals():
    first, second = [True] * 30 + [False] * 70, [True] * 60 + [False] * 40
    table = results([run_with_answers("base", first), run_with_answers("trained", second)])
    low, high = (100 * v for v in estimate([float(v) for v in second])[1:])
    assert column(table, "set, %")[1] == f"60.0 [{low:.1f}, {high:.1f}]"
    gain = paired_difference([float(v) for v in second], [float(v) for v in first])
    assert column(table, "set against first") == ["", f"+30.0 [+{100 * gain.low:.1f}, +{100 * gain.high:.1f}]"]
    assert column(table, "markers / 1,000") == ["10.00", "10.00"]


def test_differences_are_on_the_problems_that_both_answered():
    first, second = run_with_answers("base", [True, False, True]), run_with_answers("trained", [True, True])
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
    assert column(table, "TFLOPs")[0] == "1.1", "10 steps of 11e10 operations, in a unit that reads well"
    assert costs([Run("base", tmp_path)]) is None


def test_evaluations_by_benchmark_and_budget(tmp_path):
    folder = make_evaluation(tmp_path / "e", {"base": None, "other": tmp_path / "o"})
    runs = read_runs([folder])
    table = evaluations(runs)
    assert [row[0].text for row in table.rows] == [
        "set, up to 50 tokens, 3 samples a problem", "base", "other",
        "set, up to 100 tokens, 3 samples a problem", "base", "other",
    ]  # fmt: skip
    by_k, by_budget = evaluation(find_methods(runs))
    assert [x for x, _ in by_k.series[0].points] == [1, 2, 3]
    assert all(a[1] <= b[1] for a, b in zip(by_k.series[0].points, by_k.series[0].points[1:], strict=False))
    assert [x for x, _ in by_budget.series[0].points] == [50, 100]
    assert evaluations([Run("a", tmp_path)]) is None
