"""A report's folder: nothing that is not ours is overwritten."""

import json

import pytest

from opasd.errors import ConfigError
from opasd.report.build import MANIFEST, build_report, check_folder, write_report
from opasd.report.facts import read_facts
from opasd.report.folders import read_run, read_runs
from opasd.report.run import Run
from tests.report.made import make_run


def test_a_folder_is_written_and_written_again(tmp_path):
    runs = read_runs([make_run(tmp_path, "one")])
    folder = tmp_path / "out"
    page = write_report(build_report(runs, [read_facts("paper")], remark="First <this>.\nThen that."), folder)
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "figures/rollout-accuracy.svg" in files
    assert {f"tables/results.{kind}" for kind in ("csv", "md", "tex")} <= files
    assert page.read_text().startswith("<!doctype html>")
    assert '<p class="remark">First &lt;this&gt;.<br>Then that.</p>' in page.read_text()
    (folder / "notes.txt").write_text("mine")
    check_folder(folder)
    write_report(build_report(runs), folder)
    again = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert "tables/facts-seeds.tex" not in again
    assert "notes.txt" in again


def test_what_is_no_report_is_not_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "report.html").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name in ("mine", "file"):
        with pytest.raises(ConfigError, match="not overwritten"):
            check_folder(tmp_path / name)
    check_folder(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_folder(tmp_path / "empty")


def test_a_forged_list_of_files_removes_nothing_outside(tmp_path):
    (tmp_path / "precious").write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / MANIFEST).write_text(json.dumps({"files": ["../precious", 7, "missing"]}))
    write_report(build_report([Run("a", tmp_path)]), folder)
    assert (tmp_path / "precious").exists()


def test_a_report_of_the_same_runs_is_the_same_page(tmp_path):
    path = make_run(tmp_path, "one")
    assert build_report([read_run(path)]).page.html() == build_report([read_run(path)]).page.html()


def test_a_report_that_was_not_written_to_its_end_can_be_written_again(tmp_path):
    made = build_report([Run("a", tmp_path)])
    made.side_pages["samples/x.html"] = None  # pyright: ignore[reportArgumentType]
    with pytest.raises(AttributeError):
        write_report(made, tmp_path / "out")
    check_folder(tmp_path / "out")


def test_long_tables_and_many_groups_of_seeds_are_folded(tmp_path):
    few = read_runs([make_run(tmp_path, f"a-seed-{seed}", seed=seed, steps=4) for seed in (1, 2)])
    html = build_report(few).page.html()
    assert "<h3>Seeds of a</h3>" in html
    assert "<summary>Cost:" not in html
    paths = [make_run(tmp_path, f"m{n}-seed-{seed}", seed=seed, steps=4 + n) for n in range(13) for seed in (1, 2)]
    html = build_report(read_runs(paths)).page.html()
    assert "<summary>Cost: 26 rows</summary>" in html
    assert html.count("<summary><bdi>Seeds of m") == 13
