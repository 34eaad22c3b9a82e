"""Scores of methods and their differences against numbers counted by hand."""

import json
import math
import random
import re
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from opasd.analysis.seeds import t_quantile
from opasd.evaluation.comparability import Conditions
from opasd.evaluation.statistics import Estimate, estimate, gap_estimate, macro_average
from opasd.report.build import build_report
from opasd.report.folders import read_runs
from opasd.report.headline import best, forest, headline, measured, method_table
from opasd.report.methods import find_methods
from opasd.report.run import BenchmarkResult, RecordedSample, Run
from opasd.report.scores import find_scores
from tests.report.made import make_evaluation, make_run, run_with_answers

LAB = {"objective": {"token_weight": 1.0, "attention_weight": 0.5}}
NONE = Estimate(0.0, 0.0, 0.0)


def result(benchmark, shares, budget=100, samples=4):
    return BenchmarkResult(benchmark, budget, samples, NONE, {}, {}, NONE, NONE, dict(shares))


def evaluated(name, results, *, seed=None, attention=0.5):
    config = {} if seed is None else {**LAB, "train": {"seed": seed}}
    if config:
        config["objective"] = {"token_weight": 1.0, "attention_weight": attention}
    return Run(name, Path(name), "evaluated", config, results=results, origin="" if seed is None else name)


def shares(seed, mean, count=40):
    rng = random.Random(seed)
    return {f"p{n}": min(1.0, max(0.0, rng.gauss(mean, 0.2))) for n in range(count)}


def cells(table, name):
    index = list(table.header).index(name)
    return [row[index].text for row in table.rows]


def test_the_headline_and_the_table_of_methods_by_benchmarks():
    base = evaluated("base", [result("a", shares(1, 0.3)), result("b", shares(2, 0.5))])
    runs = [
        evaluated(f"opasd-seed-{s}", [result("a", shares(10 + s, 0.6)), result("b", shares(20 + s, 0.7))], seed=s)
        for s in (1, 2, 3)
    ]
    runs.append(evaluated("opsd", [result("a", shares(5, 0.5)), result("b", shares(6, 0.6))], seed=1, attention=0))
    scores = find_scores(find_methods([base, *runs]))
    means = [
        statistics.fmean(statistics.fmean(one.correct.values()) for one in run.results) for run in runs[:3]
    ]  # fmt: skip
    half = t_quantile(2) * statistics.stdev(means) / math.sqrt(3)
    mean = statistics.fmean(means)
    own = f"{100 * mean:.1f} [{100 * (mean - half):.1f}, {100 * (mean + half):.1f}]"
    first = own.replace(" ", " % ", 1)
    gaps = [
        [
            statistics.fmean(run.results[n].correct[p] for run in runs[:3]) - base.results[n].correct[p]
            for p in base.results[n].correct
        ]
        for n in (0, 1)
    ]
    gap = macro_average([gap_estimate(own) for own in gaps])
    over = f"+{100 * gap.mean:.1f} [+{100 * gap.low:.1f}, +{100 * gap.high:.1f}]"
    assert headline(scores).startswith(f"OPASD {first}, {over} over the base, +")
    assert headline(scores).endswith("against OPSD; 3 seeds.")
    table = method_table(scores)
    assert list(table.header) == ["method", "average, %", "against the base", "a, %", "b, %"]
    assert cells(table, "average, %")[1] == own
    assert cells(table, "against the base")[:2] == ["", over]
    single = estimate(list(runs[3].results[0].correct.values()))
    assert cells(table, "a, %")[2] == f"{100 * single.mean:.1f} [{100 * single.low:.1f}, {100 * single.high:.1f}]"
    assert [len(rows) for rows in table.details] == [0, 3, 0]
    assert table.details[1][0][0].text == "seed 1"
    drawn = forest(scores)
    assert drawn.categories == ["OPASD", "OPSD"]
    assert drawn.series[0].points == [(pytest.approx(100 * gap.mean), 0.0)]
    assert len(drawn.series[1].points) == 3


def test_the_best_is_named_and_comes_first_after_the_base():
    runs = [
        evaluated("base", [result("a", shares(1, 0.3))]),
        evaluated("opasd", [result("a", shares(2, 0.4))], seed=1),
        evaluated("weak", [result("a", shares(3, 0.8))], seed=1, attention=0.1),
        evaluated("opsd", [result("a", shares(4, 0.5))], seed=1, attention=0),
    ]
    scores = find_scores(find_methods(runs))
    assert headline(scores).startswith("OPASD ")
    assert re.fullmatch(
        r"Highest of 4 methods: weak \(OPASD\), [\d.]+ % \[.*\], \+[\d.]+ \[.*\] against OPASD\.", best(scores)
    )
    table = method_table(scores)
    assert cells(table, "method") == ["base", "weak (OPASD)", "OPSD", "OPASD"]
    assert [row[1].best for row in table.rows] == [False, True, False, False]
    assert forest(scores).categories == ["weak", "OPSD", "OPASD"]
    assert best(find_scores(find_methods(runs[:2]))) == "", "of two, the headline says it"


def test_checkpoints_are_no_methods_beside_the_results_of_trainings():
    base = evaluated("base", [result("a", shares(1, 0.3))])
    run = evaluated("runs/opasd", [result("a", shares(2, 0.5))], seed=1)
    early = [replace(run, name=f"c{n}", config={}, origin=f"runs/opasd/checkpoint-{n}") for n in (1, 2, 3)]
    for one in early:
        one.results = [result("a", shares(3, 0.9), budget=500)]
    names = [method.name for method in find_scores(find_methods([base, run, *early])).methods]
    assert names == ["base", "runs/opasd"]
    assert len(find_scores(find_methods([base, *early])).methods) == 4, "alone they are what there is"


def test_no_difference_is_called_none():
    same = {f"p{n}": n % 2 for n in range(40)}
    other = {f"p{n}": (n + n // 20) % 2 for n in range(40)}
    scores = find_scores(
        find_methods([evaluated("base", [result("a", same)]), evaluated("opasd", [result("a", other)], seed=1)])
    )
    assert "over the base (no difference seen)" in headline(scores)


def test_separate_budget_folders_are_not_mixed(tmp_path):
    """Three evaluations of one run, with other answers at each budget: the headline is that of the largest."""
    run = make_run(tmp_path, "opasd", samples=0)
    rng, right = random.Random(0), {100: 0.5, 200: 0.6, 300: 0.7}
    for budget, share in right.items():
        folder = make_evaluation(tmp_path / f"e{budget}", {"opasd": run}, problems=40)
        record = json.loads((folder / "evaluation.json").read_text())
        settings = {"profile": {"sampling": {"max_new_tokens": budget}, "samples": 3}}
        record["benchmarks"], record["settings"] = {"set": {"fingerprint": "x"}}, settings
        (one,) = [row for row in record["results"] if row["budget"] == 100]
        one["budget"] = budget
        for counts in one["per_problem"].values():
            counts["correct"] = sum(rng.random() < share for _ in range(3))
        record["results"] = [one]
        (folder / "evaluation.json").write_text(json.dumps(record))
        (folder / "settings.json").write_text(
            json.dumps({**settings, "targets": record["targets"], "benchmarks": record["benchmarks"]})
        )
        rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
        for row in rows:  # some answers of a smaller budget are longer than those of a larger one
            row["ids"] = list(range(rng.randrange(20, budget)))
            row["verdict"] = "correct" if rng.random() < share else "wrong"
        (folder / "samples.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        expected = sum(counts["correct"] for counts in one["per_problem"].values()) / 120
    runs = read_runs([run, *(tmp_path / f"e{budget}" for budget in (200, 300, 100))])
    assert len(runs) == 1
    assert [result.budget for result in runs[0].results] == [100, 200, 300] or len(runs[0].results) == 3
    scores = find_scores(find_methods(runs))
    assert scores.average(scores.methods[0]).mean == pytest.approx(expected)
    assert "up to 300 tokens" in scores.benchmarks[0].label
    assert all(len(sample.text) > 0 for sample in runs[0].samples)
    answers = {sample.key: sample.correct for sample in runs[0].samples}
    last = [json.loads(line) for line in (tmp_path / "e300" / "samples.jsonl").read_text().splitlines()]
    assert list(answers.values()) == [row["verdict"] == "correct" for row in last]


def test_methods_are_compared_at_a_budget_that_they_share():
    one, two = shares(1, 0.4), shares(2, 0.6)
    first = evaluated("opsd", [result("a", one, 100)], seed=1, attention=0)
    second = evaluated("opasd", [result("a", two, 100), result("a", shares(3, 0.9), 200)], seed=1)
    scores = find_scores(find_methods([first, second]))
    opsd, opasd = scores.methods
    assert scores.average(opasd).mean == pytest.approx(statistics.fmean(two.values()))
    gap = statistics.fmean(two[p] - one[p] for p in one)
    assert scores.difference(opasd, opsd).mean == pytest.approx(gap)
    assert "other budgets (200)" in " ".join(scores.notes)


def test_a_seed_that_is_not_evaluated_is_named_and_drops_nothing(tmp_path):
    runs = [evaluated(f"opasd-seed-{s}", [result("a", shares(s, 0.5))], seed=s) for s in (1, 2, 3)]
    runs[1].results = []
    scores = find_scores(find_methods(runs))
    table = method_table(scores)
    assert "Not evaluated on a: opasd-seed-2; means are over the others." in table.caption
    assert [row[0].text for row in table.details[0]] == ["seed 1", "seed 2: not evaluated", "seed 3"]
    from opasd.report.summary import seeds

    drawn = seeds(scores.methods[0], 1)
    assert list(drawn.header) == ["seed", "a, %"]
    assert [row[1].text for row in drawn.rows][1] == "–"
    known = [100 * statistics.fmean(run.results[0].correct.values()) for run in (runs[0], runs[2])]
    assert drawn.rows[3][1].value == pytest.approx(statistics.fmean(known))
    assert "a, % of 2 in place of 3 runs" in drawn.caption


def test_what_was_asked_differently_is_not_compared():
    base, run = run_with_answers("base", [True, False] * 20), run_with_answers("run", [True] * 40)
    run.origin = "run"
    for one, temperature in ((base, 0.6), (run, 1.0)):
        about = {
            "settings": {"profile": {"sampling": {"temperature": temperature}, "samples": 1}},
            "benchmarks": {"set": {}},
        }
        one.conditions = Conditions.recorded(about, {})
    scores = find_scores(find_methods([base, run]))
    assert scores.difference(scores.methods[1], scores.methods[0]) is None
    assert "asked differently: run (temperature 1.0)" in " ".join(scores.notes)


def test_without_an_evaluation_validation_speaks_and_without_that_the_rollouts(tmp_path):
    runs = read_runs([make_run(tmp_path, "opasd"), make_run(tmp_path, "opsd", recipe="lab-opsd")])
    assert "Avg@4 on lab, last validation" in build_report(runs).page.html()
    assert headline(find_scores(find_methods(runs))).startswith(
        f"OPASD {100 * runs[0].validation['lab']['avg@4'][-1][1]:.1f} %"
    )
    for run in runs:
        run.rows = run.steps
        del run.validation
    assert find_scores(find_methods(runs)).benchmarks[0].name == "rollouts"
    assert measured(find_scores(find_methods(runs))).startswith("Accuracy of rollouts, last 20 % of the steps.")
    assert headline(find_scores(find_methods([Run("empty", tmp_path)]))) == ""


def test_methods_without_a_benchmark_in_common_still_have_an_answer():
    runs = [evaluated("base", [result("a", shares(1, 0.3))]), evaluated("opasd", [result("a", shares(2, 0.6))], seed=1)]
    runs.append(evaluated("opsd", [result("b", shares(3, 0.5))], seed=1, attention=0))
    scores = find_scores(find_methods(runs))
    assert headline(scores) == ""
    assert [one.name for one in scores.comparable().benchmarks] == ["a"]
    assert "over the base" in headline(scores.comparable())


def test_sweeps_over_different_benchmarks_are_answered_on_the_one_that_most_methods_have():
    """The base has both; the answer is not the base's own score, and the table is led by the benchmark in common."""
    runs = [evaluated("base", [result("a", shares(1, 0.3)), result("b", shares(2, 0.2))])]
    for n, weight in enumerate((0.5, 0.1, 0.2, 0)):
        runs.append(evaluated(f"first-{n}", [result("a", shares(3 + n, 0.5))], seed=1, attention=weight))
    for n, weight in enumerate((0.3, 0.4)):
        runs.append(evaluated(f"second-{n}", [result("b", shares(9 + n, 0.6))], seed=1, attention=weight))
    scores = find_scores(find_methods(runs))
    common = scores.comparable()
    assert [one.name for one in common.benchmarks] == ["a"]
    assert re.match(r"first-\d \(OPASD\) [\d.]+ % \[.*\], \+[\d.]+ \[.*\] over the base", headline(common))
    assert measured(common).startswith("Avg@4 on a, up to 100 tokens, which most methods have.")
    table = method_table(scores)
    assert list(table.header) == ["method", "a, %", "against the base", "b, %"]
    means = [float(text.split()[0]) for text in cells(table, "a, %")[1:5]]
    assert means == sorted(means, reverse=True)
    assert cells(table, "a, %")[5:] == ["–", "–"]
    html = build_report(runs).page.html()
    assert "base 3" not in re.search(r'<p class="headline">(.*?)</p>', html)[1]
    tables = {one.id: one for one in build_report(runs).tables}
    assert list(tables["ablation-objective.attention-weight"].header) == ["λ_attn", "a, %", "b, %", "runs"]


def test_without_a_base_opsd_is_what_others_are_compared_with():
    runs = [
        evaluated("a-variant", [result("a", shares(1, 0.7))], seed=1, attention=0.1),
        evaluated("opsd", [result("a", shares(2, 0.5))], seed=1, attention=0),
        evaluated("opasd", [result("a", shares(3, 0.6))], seed=1),
    ]
    scores = find_scores(find_methods(runs))
    assert headline(scores).count("against OPSD") == 1
    assert list(method_table(scores).header) == ["method", "a, %", "against OPSD"]
    assert forest(scores).title == "Difference from OPSD"
    assert find_scores(find_methods(runs[::2])).base.name == "a-variant", "or else the first"


def test_means_without_their_problems_are_not_called_paired(tmp_path):
    runs = read_runs([make_run(tmp_path, f"opasd-{seed}", seed=seed) for seed in (1, 2, 3)])
    runs += read_runs([make_run(tmp_path, "opsd", recipe="lab-opsd")])
    scores = find_scores(find_methods(runs))
    assert "paired" not in method_table(scores).caption + forest(scores).caption
    assert "bars" not in forest(scores).caption


def test_the_headline_is_about_a_method_that_was_asked_as_the_base_was():
    """The best OPASD on the page was asked at another temperature: the answer is that of the other one."""
    runs = [
        evaluated("base", [result("a", shares(1, 0.3))]),
        evaluated("warm", [result("a", shares(2, 0.9))], seed=1, attention=0.1),
        evaluated("plain", [result("a", shares(3, 0.6))], seed=1, attention=0.2),
        evaluated("cold-opsd", [result("a", shares(4, 0.95))], seed=1, attention=0),
        evaluated("like-opsd", [result("a", shares(5, 0.5))], seed=2, attention=0),
    ]
    runs[4].config["train"]["max_steps"] = 7
    for run, temperature in zip(runs, (0.6, 1.0, 0.6, 1.0, 0.6), strict=True):
        about = {"sampling": {"temperature": temperature}, "thinking": False}
        run.conditions = Conditions.recorded({"profile": about}, {})
    answer = headline(find_scores(find_methods(runs)))
    assert re.match(r"plain \(OPASD\) [\d.]+ % \[.*\], \+.* over the base.* against like-opsd", answer), answer


def test_four_benchmarks_fit_and_what_they_share_is_said_once():
    names = ["AIME24", "AIME25", "HMMT25", "MATH500"]

    def results(seed, mean):
        budgets = ((100, 0.0), (200, 0.1))
        return [
            result(name, shares(seed + n, mean + more), budget)
            for n, name in enumerate(names)
            for budget, more in budgets
        ]

    long = "a-name-that-says-every-setting-of-the-run-and-is-longer-than-a-line-of-a-page-should-be-weight-"
    runs = [evaluated("base", results(1, 0.3)), evaluated(f"{long}0.5", results(9, 0.6), seed=1)]
    runs += [evaluated(f"{long}0-seed-{seed}", results(20 * seed, 0.5), seed=seed, attention=0) for seed in (1, 2)]
    runs.append(evaluated(f"{long}0-seed-3", [], seed=3, attention=0))
    for run in runs[:-1]:
        run.samples = [RecordedSample(name, None, "p0", 0, "q", "7", "7", 9, True, False) for name in names]
    scores = find_scores(find_methods(runs))
    assert measured(scores).startswith("Mean of AIME24, AIME25, HMMT25 and MATH500: Avg@4, up to 200 tokens. In")
    table = method_table(scores)
    assert list(table.header) == ["method", "average, %", "against the base", *(f"{name}, %" for name in names)]
    assert table.caption.count("other budgets") == table.caption.count("Not evaluated on") == 1
    assert (
        "AIME24, AIME25, HMMT25, MATH500: up to 200 tokens; other budgets (100) are under Evaluation." in table.caption
    )
    assert len(headline(scores)) < 160
    assert headline(scores).startswith("…0.5 (OPASD) ")
