"""Tables of a sweep: seeds, intervals, differences, published numbers, and damaged folders."""

import math
import statistics
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.sweep.job import Job
from opasd.sweep.results import RunResult, as_json, read_run_result, rows_of
from opasd.sweep.spec import load_sweep
from opasd.sweep.tables import as_text, make_table, seed_tables, write
from tests.sweep.sweeps import make_results, sweep


def test_the_table_has_means_over_seeds_intervals_and_differences(tmp_path: Path) -> None:
    """The paper's own seeds: 50.88 ± 0.14, [50.53, 51.24]."""
    planned = sweep("recipe: opasd-qwen3-4b\nruns: [{name: opasd, label: OPASD}]\nseeds: [1, 42, 123]\nwith_base: true")
    paper = {1: [6327, 5083, 5533, 3472], 42: [6333, 5027, 5556, 3389], 123: [6354, 5063, 5487, 3436]}
    sets = ("aime24", "aime25", "aime26", "hmmt25")
    base = {name: [5000, 5000] for name in sets}
    make_results(tmp_path, planned.runs[0], base, samples=10_000)
    for run in planned.runs[1:]:
        scores = {name: [right, right] for name, right in zip(sets, paper[run.config.train.seed], strict=True)}
        make_results(tmp_path, run, scores, samples=10_000)
    results = [read_run_result(Job(run, tmp_path), planned.table.metrics) for run in planned.runs]
    table = make_table(planned, results)
    cells = dict(zip(table.header, (cell.text for cell in table.rows[1]), strict=True))
    assert cells["run"] == "OPASD"
    assert cells["seeds"] == "1, 42, 123"
    assert cells["aime24 Avg@10000, %"] == "63.38 ± 0.14 [63.03, 63.73]"
    means = [statistics.fmean(row) / 100 for row in paper.values()]
    half = 4.302652729749464 * statistics.stdev(means) / math.sqrt(3)
    average = statistics.fmean(means)
    assert cells["average Avg@10000, %"].startswith("50.88 ± 0.14")
    row = as_json(planned, results)["rows"][1]
    assert row["accuracy"]["average"]["interval"] == pytest.approx([average - half, average + half], abs=1e-9)
    assert row["against_base"]["mean"] == pytest.approx(average - 50)
    assert cells["rollout accuracy, %"] == "47.5 ± 0.0"  # steps 9 and 10 of ten
    untrained = dict(zip(table.header, (cell.text for cell in table.rows[0]), strict=True))
    assert untrained["average Avg@10000, %"].startswith("50.0 [")
    (seeds,) = seed_tables(results)
    assert [row[0].text for row in seeds.rows] == ["Seed 1", "Seed 42", "Seed 123", "Mean", "Std", "95 % CI"]
    # The paper's ± 0.36 is of averages that were rounded first.
    assert [cell.text for cell in seeds.rows[5][1:]] == ["± 0.35", "± 0.70", "± 0.87", "± 1.03", "± 0.35"]


def test_a_run_stands_beside_the_base_that_was_asked_the_same_way(tmp_path: Path) -> None:
    planned = sweep(
        "recipe: lab\nevaluate: {temperature: 0.6}\n"
        "runs: [{name: warm, evaluate: {temperature: 1.0}}, {name: more, evaluate: {samples: 3}},"
        " {name: thought, evaluate: {thinking: true}}, {name: as-the-profile}]\nwith_base: true"
    )
    assert planned.runs[0].evaluate_only
    for run in planned.runs:
        assert run.evaluate
        samples = run.evaluate.samples or 1
        make_results(tmp_path, run, {"lab": [0 if run.evaluate_only else samples] * 4}, samples=samples)
    results = [read_run_result(Job(run, tmp_path), ()) for run in planned.runs]
    rows = {row.label: row for row in rows_of(results)}
    compared = {label: row.gain(["lab"]) is not None for label, row in rows.items() if not row.run.evaluate_only}
    assert compared == {"warm": False, "more": True, "thought": False, "as-the-profile": True}


def test_the_table_tells_the_papers_number_budgets_and_what_is_missing(tmp_path: Path) -> None:
    planned = load_sweep(["lambda"])
    make_results(tmp_path, planned.runs[0], {"aime24": [1, 0, 1, 0]})
    make_results(tmp_path, planned.runs[2], {"aime24": [1, 1, 1, 0]})
    results = [read_run_result(Job(run, tmp_path), planned.table.metrics) for run in planned.runs]
    results[3].failed = "no such data"
    table = make_table(planned, results)
    rows = {row[0].text: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert list(rows) == ["0.25", "0.5", "1.0", "2.0"]
    assert [row["paper's average, %"].text for row in rows.values()] == ["33.75", "34.02", "32.85", "31.82"]
    assert [row[""].text for row in rows.values()] == ["", "not done", "", "failed"]
    assert [row["attention_weight"].text for row in rows.values()] == ["0.25", "0.5", "1", "2"]
    assert rows["1.0"]["aime24 Avg@1, %"].best
    assert not rows["0.25"]["aime24 Avg@1, %"].best
    write(tmp_path / "tables", [table], as_json(planned, results))
    written = {path.name for path in (tmp_path / "tables").iterdir()}
    assert written == {"results.csv", "results.md", "results.tex", "results.json"}
    assert "75.0 [65.0, 85.0]" in as_text(table)


def test_runs_that_differ_in_the_seed_alone_share_a_row_however_they_are_listed(tmp_path: Path) -> None:
    paper = load_sweep(["seeds"])
    for run in paper.runs:
        make_results(tmp_path, run, {"aime24": [run.config.train.seed % 7]}, samples=12)
    results = [read_run_result(Job(run, tmp_path), ()) for run in paper.runs]
    table = make_table(paper, results)
    (cells,) = [dict(zip(table.header, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert (cells["method"], cells["seeds"], cells["paper's average, %"]) == ("OPASD", "1, 42, 123", "50.88")
    (seeds,) = seed_tables(results)
    assert seeds.id == "seeds-seed-1+seed-42+seed-123-160"

    grid = sweep("recipe: lab\ngrid: {train.seed: [1, 2], train.max_steps: [3, 4]}")
    rows = rows_of([RunResult(run, done=False) for run in grid.runs])
    assert [row.label for row in rows] == [f"seed-1-max_steps-{n}, seed-2-max_steps-{n}" for n in (3, 4)]
    mixed = sweep("recipe: lab\nruns: [{evaluate_only: true, name: x}, {name: x}]\nseeds: [1, 2]")
    rows = rows_of([RunResult(run, done=False) for run in mixed.runs])
    assert [len(row.results) for row in rows] == [1, 2]


def test_of_long_texts_a_table_shows_what_differs(tmp_path: Path) -> None:
    wording = "Here is a solution:\\n=== {block} ===\\nRead it, and then work the problem out again.\\n"
    texts = [wording.replace("{block}", block) for block in ("{solution}", "The answer is {answer}.", "{answer} " * 20)]
    runs = "".join(f'  - {{name: r{n}, set: {{prompts.reference: "{text}"}}}}\n' for n, text in enumerate(texts))
    planned = sweep(f"recipe: lab\nruns:\n{runs}with_base: true")  # whose wording is another, and is not shown
    results = [read_run_result(Job(run, tmp_path), ()) for run in planned.runs]
    table = make_table(planned, results)
    assert table.rows[0][table.header.index("reference")].text == "–"
    cells = [row[table.header.index("reference")].text for row in table.rows[1:]]
    assert cells == ["… {solution} …", "… The answer is {answer}. …", "… {answer} {answer} {answer} {answer} {…"]
    assert all(len(line) < 200 for line in as_text(table).splitlines())


def test_written_tables_have_their_title_tell_of_unknown_metrics_and_leave_no_old_ones(tmp_path: Path) -> None:
    planned = sweep(
        "recipe: lab\nruns: [{name: x}]\nseeds: [1, 2]\ntable: {title: My title, metrics: [rollout/acuracy]}"
    )
    for run in planned.runs:
        make_results(tmp_path, run, {"lab": [1, 0]})
    for runs, tables in ((planned.runs, 3), (planned.runs[:1], 0)):
        results = [read_run_result(Job(run, tmp_path), ("rollout/accuracy",)) for run in runs]
        table = make_table(planned, results)
        write(tmp_path / "t", [table, *seed_tables(results)], as_json(planned, results))
        assert len(list((tmp_path / "t").glob("seeds-*"))) == tables
    assert (tmp_path / "t" / "results.md").read_text().startswith("My title\n\n|")
    assert r"\caption{My title. " in (tmp_path / "t" / "results.tex").read_text()
    assert "No run has rollout/acuracy." in (tmp_path / "t" / "results.md").read_text()


def test_runs_with_other_numbers_of_samples_are_not_called_by_one(tmp_path: Path) -> None:
    planned = sweep("recipe: lab\nruns: [base, {name: x, evaluate: {samples: 4}}]")
    make_results(tmp_path, planned.runs[0], {"lab": [1, 0]})
    make_results(tmp_path, planned.runs[1], {"lab": [4, 0]}, samples=4)
    results = [read_run_result(Job(run, tmp_path), ()) for run in planned.runs]
    header = make_table(planned, results).header
    assert "lab Avg@k, %" in header
    assert not any(name.startswith("Pass@") for name in header)


@given(st.binary(max_size=200))
@settings(max_examples=15, deadline=None)
def test_damaged_folders_make_a_table_of_what_is_there(tmp_path_factory: pytest.TempPathFactory, noise: bytes) -> None:
    folder = tmp_path_factory.mktemp("noise")
    planned = load_sweep(["lab-main"])
    for run in planned.runs:
        job = Job(run, folder)
        for path in (
            job.path / "metrics.jsonl",
            job.evaluation / "evaluation.json",
            folder / "state" / f"{run.name}.json",
        ):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(noise)
    results = [read_run_result(Job(run, folder), planned.table.metrics) for run in planned.runs]
    assert len(make_table(planned, results).rows) == 3
