"""Which runs are one method, and that a method has one name and one colour."""

from dataclasses import replace
from pathlib import Path

from opasd.report.build import build_report
from opasd.report.facts import read_facts
from opasd.report.folders import read_run
from opasd.report.methods import find_methods, kind_of
from opasd.report.run import Run
from tests.report.made import make_run


def test_seeds_are_one_method_and_a_second_run_with_a_seed_is_another(tmp_path):
    names = ("opasd-seed-1", "opasd-seed-42", "again-1", "again-42")
    runs = [read_run(make_run(tmp_path, name, seed=int(name.rpartition("-")[2]))) for name in names]
    runs.append(read_run(make_run(tmp_path, "opsd", recipe="lab-opsd")))
    methods = find_methods(runs)
    assert [(m.name, [run.name for run in m.runs]) for m in methods] == [
        ("OPASD", ["opasd-seed-1", "opasd-seed-42"]), ("again", ["again-1", "again-42"]), ("OPSD", ["opsd"]),
    ]  # fmt: skip
    assert [run.slot for run in runs] == [2, 2, 3, 3, 1]


def test_base_opsd_and_opasd_have_their_own_colours_and_others_what_is_free(tmp_path):
    runs = [read_run(make_run(tmp_path, f"v{n}", steps=10 + n)) for n in range(9)]
    methods = find_methods([Run("base", Path("e"), "evaluated"), *runs])
    slots = [method.slot for method in methods]
    assert slots[:3] == [0, 2, 1]
    assert len(set(slots)) == 10
    assert max(slots) == 9, "the second mark begins at slot 8"
    named = [*runs, read_run(make_run(tmp_path, "opasd", steps=99))]
    assert find_methods(named)[-1].slot == 2, "the one that is called like its kind has the kind's colour"


def test_runs_known_by_name_alone_are_put_together_by_their_seeds():
    runs = [Run(name, Path("e"), "evaluated", origin="x") for name in ("a-seed-1", "a-seed-2", "b", "seed-3")]
    assert [[run.name for run in method.runs] for method in find_methods(runs)] == [
        ["a-seed-1", "a-seed-2"], ["b"], ["seed-3"],
    ]  # fmt: skip


def test_the_one_base_is_called_so_and_methods_of_one_name_by_what_differs(tmp_path):
    runs = [read_run(make_run(tmp_path / str(steps), "opsd-seed-1", steps=steps)) for steps in (10, 20)]
    model = Run("lab", Path("e"), "evaluated")
    assert [m.name for m in find_methods([model, *runs])] == ["base", "opsd (max_steps 10)", "opsd (max_steps 20)"]
    assert [method.name for method in find_methods([model])] == ["lab"], "nothing is compared with it"
    renamed = [replace(run, name=name) for run, name in zip(runs, ("a/opsd-seed-1", "opsd-seed-2"), strict=True)]
    same = {**runs[0].config, "train": {**runs[0].config["train"], "seed": 2}}
    (method,) = find_methods([renamed[0], replace(renamed[1], config=same)])
    assert method.name == "a/opsd", "a folder before one of the names"


def test_published_methods_have_the_colours_of_ones_own(tmp_path):
    runs = [read_run(make_run(tmp_path, "mine")), read_run(make_run(tmp_path, "theirs", recipe="lab-opsd"))]
    report = build_report(runs, [read_facts("paper")])
    own = {run.method: run.slot for run in runs}
    published = {s.name: s.slot for figure in report.figures if figure.id.startswith("facts-") for s in figure.series}
    assert published["OPASD"] == own["OPASD"] == 2
    assert published["OPSD"] == own["OPSD"] == 1
    assert published["OPASD − OPSD"] not in own.values()
    (table,) = [table for table in report.tables if table.id == "facts-objectives"]
    assert list(table.slots) == [1, None, 2]
    assert kind_of("Token + Attention (OPASD)") == "OPASD"
    assert kind_of("OPASD − OPSD") == ""
