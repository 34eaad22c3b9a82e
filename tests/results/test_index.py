"""The tables of the README and of the evidence's first page are those of the records."""

import json
from importlib import import_module
from pathlib import Path
from statistics import fmean

import pytest

from opasd.cli.demo import HEADER
from opasd.data.made.mistakes import MISTAKES
from opasd.probe.advice import advise
from tests.results.importing import imported

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/evidence/index.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tables():
    with imported("tables_index") as module:
        yield module


def test_the_readmes_results_are_those_of_the_records(tables):
    for row in tables.readme_rows():
        assert row in README, "run python results/tables.py index"


def test_the_demos_tables_are_those_of_the_record(tables):
    page = (ROOT / "docs/lab.md").read_text(encoding="utf-8")
    for short, whole in zip(tables.demo_rows(whole=False), tables.demo_rows(whole=True), strict=True):
        assert short in README, "run python results/tables.py index"
        assert whole in page, "run python results/tables.py index"
    for score in json.loads((ROOT / "results/lab/demo.json").read_text(encoding="utf-8"))["validation"].values():
        assert f"| {score:.1f} |" in page


def test_the_pages_table_is_that_of_the_records(tables):
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    found = {row[0].strip("| [").partition("]")[0].partition(",")[0]: row for row in rows if "three seeds" in row[0]}
    assert set(found) == {task.partition(",")[0] for task in tables.ROWS}
    for task, cells in tables.rows().items():
        shown = [
            cell.removesuffix(" |").removesuffix(" (two)").strip(" |") for cell in found[task.partition(",")[0]][1:]
        ]
        assert shown == cells


def test_greedy_decoding_of_the_larger_model_is_that_of_the_records(tables):
    """Also on the pages of both tasks."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if ", 1.5B, one seed" in line]
    shown = {row[0].partition(", one seed")[0]: row[2] for row in rows}
    assert shown == {task: tables.greedy(task) for task in tables.GREEDY if "1.5B" in task}
    for task, share in shown.items():
        page = (ROOT / f"docs/evidence/{task.partition(',')[0].lower()}.md").read_text(encoding="utf-8")
        assert f"Greedy decoding gives the 1.5B base {share} % [" in page


def test_the_first_sentences_are_the_records(tables):
    """The pilot's lead, and what OPASD cost on the embedded model; test_lookup.py has the second round."""
    lookup = import_module("tables_lookup")
    pilot = {arm: lookup.rollouts(arm, "lookup/pilot") for arm in ("opsd", "opasd-look", "opasd-last")}
    leads = [
        round(lookup.over_seeds(lookup.gains(pilot[arm], pilot["opsd"]))[0]) for arm in ("opasd-look", "opasd-last")
    ]
    top = " ".join(PAGE.split("\n\n")[1].split())
    assert f"a pilot had OPASD {leads[0]} to {leads[1]} points above OPSD" in " ".join(PAGE.split())
    assert top.count("**") == 6
    lost = round(tables.mean("embedded, 1.9 M", "OPSD") - tables.mean("embedded, 1.9 M", "OPASD"))
    assert f"On the embedded model it costs {lost} points" in PAGE


def test_the_page_of_the_embedded_model_has_the_records_mistakes_and_baselines(tables):
    page = (ROOT / "docs/evidence/lab.md").read_text(encoding="utf-8")
    lab = import_module("tables_lab")
    for row in [*lab.mistake_rows(), *lab.baseline_rows()]:
        assert row in page, "run python results/tables.py lab"


def test_the_clipped_loss_of_the_pointwise_runs_is_below_0(tables):
    page = (ROOT / "docs/evidence/length.md").read_text(encoding="utf-8")
    steps = import_module("summaries").training_steps("arithmetic/long", "opsd-paper")
    share = sum(row["token/loss"] < 0 for row in steps) / len(steps)
    assert f"falls below 0 in {share:.0%} of them" in page.replace("\n", " ").replace(" %", "%")


def test_another_verdict_is_another_row(tables, monkeypatch):
    before = tables.readme_rows()
    monkeypatch.setattr(tables.Evaluation, "shares", lambda self, samples=None: {"a": 0.5, "b": 0.5})
    assert tables.readme_rows() != before
    assert tables.readme_rows()[0].endswith("| 50.0 | 50.0 | 50.0 |")


def test_the_demos_record_has_what_the_demo_writes():
    record = json.loads((ROOT / "results/lab/demo.json").read_text(encoding="utf-8"))
    assert list(record["models"]) == ["base", "base, greedy", "OPSD", "OPASD"]
    assert all(list(model["mistakes"]) == list(MISTAKES.values()) for model in record["models"].values())
    assert HEADER[1] == "accuracy"


def test_what_the_probes_said_is_on_the_pages(tables):
    pages = [(ROOT / "docs/evidence" / name).read_text(encoding="utf-8") for name in ("probe.md", "math.md")]
    text = " ".join(" ".join(pages).split()).replace(" %", "").replace("*", "")
    for task in tables.PROBED:
        for cell in tables.probe_row(task).split(" | ")[1:]:
            assert cell.removesuffix(" |") in text, "run python results/tables.py index"


@pytest.mark.parametrize(("task", "gained"), [("arithmetic", True), ("math", False)])
def test_the_probes_advice_is_what_the_records_show(tables, task, gained):
    summary = import_module("records").read_document(f"{task}/probe/probe.json")["summary"]
    (train,) = (one["says"] for one in advise(summary, None, "none") if one["about"] == "train")
    assert train.startswith("Worth training") == gained
    name = next(name for name, sweep in tables.ROWS.items() if sweep.startswith(task))
    untrained = 100 * fmean(tables.load_evaluation(tables.ROWS[name], "base").shares().values())
    assert (tables.mean(name, "OPSD") > untrained + 5) == gained
