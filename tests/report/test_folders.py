"""Folders as they are found: whole, cut, damaged, growing, hostile."""

import fcntl
import gzip
import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.analysis.markers import count_markers, density_by_marker
from opasd.errors import ConfigError
from opasd.recipes.reading import read_yaml, write_yaml
from opasd.report.build import build_report
from opasd.report.folders import read_evaluation, read_run, read_runs
from opasd.report.run import ROLLOUT, Run
from tests.report.made import make_evaluation, make_run


def test_a_whole_run(tmp_path):
    run = read_run(make_run(tmp_path, "one", steps=12, samples=8))
    assert (run.name, run.state, run.notes, run.method) == ("one", "finished", [], "OPASD")
    assert run.spending.steps == 12
    assert [step for step, _ in run.validation["lab"]["avg@4"]] == [0, 6, 12]
    assert len(run.samples) == 8
    assert {sample.dataset for sample in run.samples} == {ROLLOUT}
    assert run.samples[3].truncated
    assert run.samples[0].tokens == 20
    assert read_run(make_run(tmp_path, "two", recipe="lab-opsd")).method == "OPSD"


def test_a_cut_last_line_a_damaged_one_and_bytes_that_are_no_text(tmp_path):
    path = make_run(tmp_path, "one", steps=4)
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'not json\n[1, 2]\n{"step": 5, "loss": 0.')
    with (path / "samples.jsonl").open("ab") as file:
        file.write(b'{"step": 4, "completion": "\xff\xfe broken \xc3", "correct": true}\n')
    run = read_run(path)
    assert run.notes == [
        "metrics.jsonl: the last line is cut and left out",
        "metrics.jsonl: 2 damaged lines are left out (line 7, 8)",
    ]
    assert run.spending.steps == 4
    assert run.samples[-1].text == "\ufffd\ufffd broken \ufffd"
    assert run.samples[-1].tokens == 3


def test_a_moved_sweeps_evaluations_find_their_runs(tmp_path):
    made = tmp_path / "made"
    for name in ("one", "two"):
        make_evaluation(made / f"{name}.evaluation", {name: make_run(made, name)})
    make_evaluation(made / "base.evaluation", {"base": None})
    shutil.copytree(made, tmp_path / "moved")
    for gone in (False, True):
        runs = read_runs([tmp_path / "moved"])
        assert [(run.name, run.state, len(run.results) > 0) for run in runs] == [
            ("base", "evaluated", True), ("one", "finished", True), ("two", "finished", True),
        ]  # fmt: skip
        if not gone:
            shutil.rmtree(made)
    lonely = tmp_path / "elsewhere" / "one.evaluation"
    shutil.copytree(tmp_path / "moved" / "one.evaluation", lonely)
    assert len(read_runs([tmp_path / "moved" / "one", lonely])) == 2
    other = tmp_path / "moved" / "afterwards"  # of another run of this name, somewhere else
    shutil.copytree(lonely, other)
    assert len(read_runs([tmp_path / "moved" / "one", other])) == 2


def test_gzipped_files_are_read_as_they_are(tmp_path):
    path, other = (make_run(tmp_path / folder, "one", steps=8, samples=6) for folder in "ab")
    evaluation = make_evaluation(tmp_path / "e", {"one": path})
    plain = build_report(read_runs([path, evaluation])).page.html()
    evaluated = [evaluation / name for name in ("samples.jsonl", "evaluation.json", "settings.json")]
    for file in (path / "metrics.jsonl", path / "samples.jsonl", path / "environment.json", *evaluated):
        (file.parent / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    assert build_report(read_runs([path, evaluation])).page.html() == plain
    (evaluation / "evaluation.json.gz").unlink()  # one that was stopped
    assert any("the evaluation is not finished" in note for run in read_runs([path, evaluation]) for note in run.notes)
    packed = path / "metrics.jsonl.gz"
    for damage, reason in ((packed.read_bytes()[:-30], "cannot be read"), (b"no gzip", "Not a gzipped file")):
        packed.write_bytes(damage)
        assert any(note.startswith("metrics.jsonl cannot be read") and reason in note for note in read_run(path).notes)
    for damage in (gzip.compress(b"{}")[:-9], b"no gzip"):
        (path / "environment.json.gz").write_bytes(damage)
        assert any(note.startswith("environment.json cannot be read") for note in read_run(path).notes)
    (other / "metrics.jsonl.gz").write_bytes(b"a file that is there wins")
    assert read_run(other).notes == []


@pytest.mark.parametrize("missing", ["config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl"])
def test_a_missing_file_is_named_and_the_rest_is_there(tmp_path, missing):
    path = make_run(tmp_path, "one")
    (path / missing).unlink()
    run = read_run(path)
    assert len(run.notes) == 1
    assert run.notes[0].startswith(f"{missing} is missing")
    assert missing in build_report([run]).page.html()


def test_an_empty_configuration_is_told_from_a_missing_one(tmp_path):
    path = make_run(tmp_path, "one")
    for content in ("", "# nothing\n", "{}\n"):
        (path / "config.yaml").write_text(content)
        assert read_run(path).notes == ["config.yaml is empty: settings are not known"]


def test_one_of_a_kind_is_told_as_one(tmp_path):
    path = make_run(tmp_path, "one", steps=4)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('oh\n{"step": 5, "loss": NaN}\n')
    with (path / "samples.jsonl").open("a") as file:
        file.write('{"step": 1}\n')
    assert read_run(path).notes == [
        "metrics.jsonl: 1 damaged line is left out (line 7)",
        "metrics.jsonl: 1 value that is no usable number is left out (loss), first at step 5",
        "samples.jsonl: 1 row without a completion is left out",
    ]


def test_what_is_not_what_it_should_be(tmp_path):
    path = make_run(tmp_path, "one")
    (path / "config.yaml").write_text("a: [1, 2")
    (path / "environment.json").write_text("[1]")
    (path / "metrics.jsonl").write_bytes(b"")
    (path / "samples.jsonl").unlink()
    (path / "samples.jsonl").mkdir()
    (path / "attention").mkdir()
    (path / "attention" / "problem-1.json").write_text("{" * 100_000)
    run = read_run(path)
    assert [note.split(" ")[0] for note in run.notes] == [
        "config.yaml", "environment.json", "metrics.jsonl", "samples.jsonl", "problem-1.json",
    ]  # fmt: skip
    build_report([run]).page.html()


def test_a_run_that_is_going_and_one_that_stopped(tmp_path):
    path = make_run(tmp_path, "one", steps=12, finished=False)
    assert read_run(path).notes == ["not finished: step 12 of 12, and no `final` folder"]
    with (path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = read_run(path)
    assert run.state == "running"
    assert run.notes == ["still running: step 12 of 12 when this was made"]


def test_a_finished_run_whose_metrics_end_early(tmp_path):
    path = make_run(tmp_path, "one", steps=12)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:5]))
    assert read_run(path).notes == ["metrics.jsonl ends at step 4 of 12: the curves are not whole"]


def test_folders_of_runs_and_names_that_occur_twice(tmp_path):
    for parent in ("a", "b"):
        make_run(tmp_path / parent, "x")
    make_run(tmp_path / "a", "y")
    assert [run.name for run in read_runs([tmp_path / "a", tmp_path / "b"])] == ["a/x", "y", "b/x"]


def test_what_is_no_run(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        read_runs([tmp_path / "nothing"])
    with pytest.raises(ConfigError, match="holds no run"):
        read_runs([tmp_path])


def test_an_evaluation_belongs_to_the_runs_that_are_shown_and_the_base_comes_first(tmp_path):
    run = make_run(tmp_path, "trained")
    evaluation = make_evaluation(
        tmp_path / "evaluations" / "e", {"base": None, "trained": run, "other": tmp_path / "o"}
    )
    runs = read_runs([run, evaluation])
    assert [run.name for run in runs] == ["base", "trained", "other"]
    assert [run.state for run in runs] == ["evaluated", "finished", "evaluated"]
    trained = runs[1]
    assert len(trained.answers["set"]) == 18
    assert {result.budget for result in trained.results} == {50, 100}
    result = max(trained.results, key=lambda result: result.budget)
    share = sum(sample.correct for sample in trained.answers["set"]) / 18
    assert result.avg[0] == pytest.approx(share)
    assert sum(result.correct.values()) / 6 == pytest.approx(share)
    assert trained.answers["set"][0].extracted in ("7", "8")


def test_runs_of_a_folder_come_in_the_order_of_their_numbers(tmp_path):
    names = ["a-seed-1", "a-seed-42", "a-seed-123", "a-seed-123.x", "b", "b-0.25", "b-0.5", "b-2"]
    for name in reversed(names):
        make_run(tmp_path, name)
    assert [run.name for run in read_runs([tmp_path])] == names


def test_an_evaluation_that_is_not_finished(tmp_path):
    evaluation = make_evaluation(tmp_path / "e", {"base": None})
    (evaluation / "evaluation.json").unlink()
    (run,) = read_evaluation(evaluation)
    assert run.notes == ["e/evaluation.json is missing: the evaluation is not finished"]
    assert {(sample.question, sample.answer) for sample in run.samples if sample.problem == "set/3"} == {
        ("What is 3?", "7")
    }
    assert len(run.samples) == 18


def test_answers_without_their_text_are_counted_and_not_shown(tmp_path):
    run = make_run(tmp_path, "trained")
    evaluation = make_evaluation(tmp_path / "e", {"base": None, "trained": run})
    whole = read_runs([run, evaluation])
    samples = evaluation / "samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    for row in rows:
        if row["sample"]:
            del row["text"]
    rows.append({"target": "base", "benchmark": "set", "problem": "set/1", "sample": 9})  # neither text nor verdict
    samples.write_text("".join(f"{json.dumps(row | {'tokens': len(row.get('ids', []))})}\n" for row in rows))
    packed = read_runs([run, evaluation])
    for before, after in zip(whole, packed, strict=True):
        graded = [
            sorted((sample.key, sample.correct, sample.tokens) for sample in run.answers["set"])
            for run in (before, after)
        ]
        assert graded[0] == graded[1]
        assert {sample.number for sample in after.samples if sample.dataset == "set"} == {0}
        assert all(sample.text for sample in after.samples)
    count = sum(bool(row["sample"]) for row in rows) - 1
    assert (
        f"e/samples.jsonl: {count} answers are without their text: they are counted, and not shown" in packed[0].notes
    )
    build_report(packed).page.html()


def test_counts_stand_for_texts_that_are_not_on_record(tmp_path):
    evaluation = make_evaluation(tmp_path / "e", {"base": None})
    samples = evaluation / "samples.jsonl"
    rows = [json.loads(line) for line in samples.read_text().splitlines()]
    for row in rows:
        row["text"] = f"Wait, maybe. {row['text']} Let me check."
        row["tokens"] = len(row["ids"])
    samples.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (whole,) = read_evaluation(evaluation)
    counts = [dict(count_markers(row.pop("text"))) for row in rows]
    samples.write_text(
        "".join(f"{json.dumps(row | {'markers': counted})}\n" for row, counted in zip(rows, counts, strict=True))
    )
    (packed,) = read_evaluation(evaluation)
    assert not packed.samples
    assert density_by_marker(packed.markers["set"]) == density_by_marker(whole.markers["set"])
    assert density_by_marker(packed.markers["set"])["wait"] > 0
    build_report([packed]).page.html()
    damaged = [None, 3, [], "wait", {"wait": "many", "check": 2}, {"other": 5}, {"wait": float("nan")}]
    samples.write_text(
        "".join(f"{json.dumps(row | {'markers': counted})}\n" for row, counted in zip(rows, damaged, strict=False))
    )
    (hostile,) = read_evaluation(evaluation)
    assert [dict(counts.markers) for counts in hostile.markers["set"]] == [{"check": 2}, {}, {}]


def test_a_renamed_run_keeps_its_evaluations(tmp_path):
    run = make_run(tmp_path, "trained")
    evaluation = make_evaluation(tmp_path / "e", {"base": None, "trained": run})
    (run / "evaluations").mkdir()
    (run / "evaluations" / "e.json").write_bytes((evaluation / "evaluation.json").read_bytes())
    renamed = read_run(run.rename(tmp_path / "renamed"))
    assert {result.benchmark for result in renamed.results} == {"set"}
    assert renamed.notes == []


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ({"targets": {"a": {"run": "/x/a"}, "b": {"run": "/x/b"}}}, "which of a, b is this run is not known"),
        ({"targets": {"base": {"run": None}}, "results": []}, "it names no run"),
        ({"targets": {"a": {"run": "/x/a"}}}, "has no results of a"),
        ({"targets": {}}, "it names no run"),
    ],
)
def test_an_evaluation_that_says_nothing_of_the_run_is_named(tmp_path, text, note):
    run = make_run(tmp_path, "renamed")
    (run / "evaluations").mkdir()
    (run / "evaluations" / "e.json").write_text(json.dumps(text))
    (remark,) = read_run(run).notes
    assert remark.startswith("evaluations/e.json")
    assert note in remark


def test_a_runs_copy_of_its_evaluation_gives_its_results(tmp_path):
    run = make_run(tmp_path, "trained")
    evaluation = make_evaluation(tmp_path / "e", {"base": None, "trained": run})
    (run / "evaluations").mkdir()
    (run / "evaluations" / "e.json").write_bytes((evaluation / "evaluation.json").read_bytes())
    assert len(read_run(run).results) == 2
    (run / "evaluations" / "e.json").write_text(
        f'{{"targets": {{"trained": {{"run": "{run}"}}}}, "results": [{{"target": 3}}, 7]}}'
    )
    assert read_run(run).results == []


def test_a_copy_is_found_wherever_the_run_is_and_from_wherever_it_is_asked_for(tmp_path, monkeypatch):
    """An evaluation names the run as it was given on the command line: often relative to a folder that is no more."""
    run = make_run(tmp_path / "old" / "runs", "trained")
    evaluation = make_evaluation(
        tmp_path / "old" / "evaluations" / "e", {"base": None, "trained": Path("runs/trained")}
    )
    (run / "evaluations").mkdir()
    (run / "evaluations" / "e.json").write_bytes((evaluation / "evaluation.json").read_bytes())
    assert [row.name for row in read_runs([run, evaluation])] == ["base", "trained"]
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.chdir(tmp_path / "new" / "runs")
    assert len(read_run(Path("trained")).results) == 2


@pytest.mark.parametrize("origin", ["a\0b", "~nobody-of-this-name/b", "x" * 5000, 7, ["a"]])
def test_an_evaluation_of_a_run_with_an_odd_name(tmp_path, origin):
    path = make_run(tmp_path, "one")
    (path / "evaluations").mkdir()
    (path / "evaluations" / "e.json").write_text(json.dumps({"targets": {"x": {"run": origin}}, "results": []}))
    assert read_run(path).results == []


@pytest.mark.parametrize("seed", [[1, 2], {"a": 1}, 10**400, float("nan")])
def test_settings_of_any_kind(tmp_path, seed):
    paths = [make_run(tmp_path, "a"), make_run(tmp_path, "b", seed=2)]
    config = read_yaml(paths[0] / "config.yaml")
    config["train"]["seed"] = seed
    (paths[0] / "config.yaml").write_text(write_yaml(config))
    build_report(read_runs(paths)).page.html()


def test_numbers_that_are_none_are_left_out_and_named(tmp_path):
    path = make_run(tmp_path, "one", steps=4)
    huge = {"grad_norm": 1e308, "seconds/step": 1e308, "flops/rollout": 1e308, "rollout/accuracy": 1e308}
    with (path / "metrics.jsonl").open("a") as file:
        for step in (5, 6):
            file.write(
                json.dumps({"step": step, **huge, "loss": float("nan"), "tokens/generated": float("inf")}) + "\n"
            )
    run = read_run(path)
    assert run.notes[0] == (
        "metrics.jsonl: 12 values that are no usable numbers are left out (flops/rollout, grad_norm, loss, …), first "
        "at step 5"
    )
    assert run.spending.seconds == 12
    build_report([run, run]).page.html()


def test_rows_that_cannot_be_shown_are_named(tmp_path):
    path = make_run(tmp_path, "one")
    with (path / "samples.jsonl").open("a") as file:
        file.write('{"step": 1}\n{"step": 2, "completion": null}\n')
    (path / "attention").mkdir()
    (path / "attention" / "problem-1.json").write_text('{"kind": "opasd attention", "version": 1, "x": NaN}')
    (path / "evaluations").mkdir()
    (path / "evaluations" / "e.json").write_text(
        json.dumps({"targets": {"x": {"run": str(path)}}, "results": [{"target": "x"}]})
    )
    run = read_run(path)
    assert run.notes == [
        "samples.jsonl: 2 rows without a completion are left out",
        "problem-1.json is damaged or of another version: one attention record is left out",
        "e.json: 1 damaged result is left out",
        "evaluations/e.json has no results of x",
    ]
    assert run.attention == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(
    ["step", "grad_norm", "rollout/accuracy", "tokens/generated", "seconds/step", "flops/rollout", "validation/a/avg@1",
     "memory/peak_bytes", "completion", "completion_ids", "correct", "finish_reason", "question", "answer", "id"]
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(st.lists(st.dictionaries(names, json_values, max_size=8), max_size=6), st.binary(max_size=60))
def test_whatever_a_folder_holds_a_report_is_made(tmp_path_factory, rows, noise):
    path = tmp_path_factory.mktemp("run")
    content = b"".join(json.dumps(row).encode() + b"\n" for row in rows) + noise
    for name in ("metrics.jsonl", "samples.jsonl"):
        (path / name).write_bytes(content)
    (path / "config.yaml").write_bytes(noise)
    run = read_run(path)
    assert isinstance(run, Run)
    build_report([run, run]).page.html().encode("utf-8")
