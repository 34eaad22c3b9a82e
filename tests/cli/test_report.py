"""`opasd report`, as it is typed."""

import sys

from opasd.cli import main
from tests import processes
from tests.report.made import make_evaluation, make_run


def test_a_report_of_runs_and_published_numbers(tmp_path, capsys):
    run = make_run(tmp_path / "runs", "one")
    make_run(tmp_path / "runs", "two", finished=False)
    evaluation = make_evaluation(tmp_path / "evaluations" / "e", {"base": None, "one": run})
    out = tmp_path / "out"
    arguments = [str(tmp_path / "runs"), str(evaluation), "--facts", "paper", "--output", str(out), "--title", "T"]
    assert main(["report", *arguments]) == 0
    said = capsys.readouterr()
    assert said.out == f"{out / 'report.html'}\n"
    assert "two: not finished: step 12 of 12" in said.err
    assert (out / "figures" / "pass-at-k-set.svg").exists()
    assert main(["report", *arguments]) == 0


def test_what_is_missing_everywhere_is_said_once(tmp_path, capsys):
    for name in ("a", "b", "c", "d", "e"):
        run = make_run(tmp_path / "runs", name)
        (run / "samples.jsonl").unlink()
    (run / "environment.json").unlink()
    assert main(["report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "a, b and 2 more: samples.jsonl is missing: there are no samples",
        "e: environment.json is missing: the environment is not known",
        "e: samples.jsonl is missing: there are no samples",
    ]


def test_figures_as_png(tmp_path):
    evaluation = make_evaluation(tmp_path / "e", {"base": None})
    assert main(["report", str(evaluation), "--out", str(tmp_path / "out"), "--png"]) == 0
    assert (tmp_path / "out" / "figures" / "pass-at-k-set.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes(tmp_path, capsys):
    for arguments, words in {
        (): "nothing to report on",
        (str(tmp_path / "x"), "--out", str(tmp_path / "y")): "no folder",
        ("--facts", "none.yaml", "--out", str(tmp_path / "y")): "no file of facts",
        ("--facts", "paper", "--out", str(tmp_path)): "not overwritten",
    }.items():
        (tmp_path / "something").write_text("")
        assert main(["report", *arguments]) == 2
        assert words in capsys.readouterr().err


def test_png_without_the_extra_says_what_to_install(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("opasd.report.charts.find_spec", lambda _: None)
    assert main(["report", "--facts", "paper", "--out", str(tmp_path / "o"), "--png"]) == 2
    assert "pip install 'opasd[png]'" in capsys.readouterr().err


def test_it_needs_no_torch(tmp_path):
    run = make_run(tmp_path, "one")
    code = (
        "import sys; from opasd.cli import main; "
        f"main(['report', {str(run)!r}, '--facts', 'paper', '--out', {str(tmp_path / 'o')!r}]); "
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers')))"
    )
    assert processes.run([sys.executable, "-c", code]).returncode == 0
