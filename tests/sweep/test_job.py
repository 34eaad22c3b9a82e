"""One run in a sweep's folder: what is done, what may be reused, and which folders are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from opasd.errors import ConfigError
from opasd.evaluation.benchmarks import load, packaged
from opasd.evaluation.profiles import PROFILES
from opasd.recipes import load_recipe
from opasd.sweep.job import Job
from opasd.sweep.results import read_run_result
from opasd.sweep.spec import Changes, load_sweep
from tests.sweep.sweeps import make_results, sweep


def test_folders_of_other_settings_are_refused(tmp_path: Path) -> None:
    (run,) = load_sweep(["lab"]).runs
    make_results(tmp_path, run, {"lab": [1]})
    Job(run, tmp_path).check()
    (other,) = load_sweep(["lab"], Changes({"train.max_steps": 7}, {})).runs
    with pytest.raises(ConfigError, match=r"other settings \(train.max_steps 40\)"):
        Job(other, tmp_path).check()
    (other,) = load_sweep(["lab"], Changes({}, {"problems": 3})).runs
    with pytest.raises(ConfigError, match=r"lab.evaluation was made with other settings"):
        Job(other, tmp_path).check()
    shutil.rmtree(tmp_path / "lab")
    with pytest.raises(ConfigError, match=r"lab.evaluation is of a run that is no longer there"):
        Job(run, tmp_path).check()
    (tmp_path / "lab-opsd").mkdir()
    with pytest.raises(ConfigError, match="is no run"):
        Job(load_sweep(["lab-opsd"]).runs[0], tmp_path).check()


@pytest.mark.parametrize("text", ['{"evaluate": 5}', '{"evaluate": {"code": []}}', "[" * 100_000, '{"results": ['])
def test_bookkeeping_and_results_that_cannot_be_read_are_made_again(tmp_path: Path, text: str) -> None:
    (run,) = load_sweep(["lab"]).runs
    make_results(tmp_path, run, {"lab": [1]})
    job = Job(run, tmp_path)
    assert job.next_stage() is None
    for path in (job.evaluation / "evaluation.json", tmp_path / "state" / "lab.json"):
        before = path.read_text()
        path.write_text(text)
        job.check()
        assert (job.next_stage(), job.mistake()) == ("evaluate", None)
        assert not read_run_result(job, ()).done
        path.write_text(before)
    job.forget_failures()
    assert job.next_stage() is None


def test_the_same_run_of_another_sweep_is_linked(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    for run in load_sweep(["lab", "lab-base"]).runs:
        make_results(first, run, {"lab": [1]})
    other = sweep("recipe: lab\nruns: [base, {name: mine}, {name: longer, set: {train.max_steps: 50}}]")
    jobs = [Job(run, second) for run in other.runs]
    matches = [job.find_in(first) for job in jobs]
    assert [path for path, _ in matches] == [None, first / "lab", None]
    assert [other and other.evaluation.name for _, other in matches] == ["lab-base.evaluation", "lab.evaluation", None]
    assert not list(second.iterdir())
    linked = [job.reuse(first) for job in jobs]
    assert linked == [[str(first / "lab-base.evaluation")], [str(first / "lab"), str(first / "lab.evaluation")], []]
    assert [job.next_stage() for job in jobs] == [None, None, "train"]
    assert load_recipe("lab").config().train.max_steps == 40


@pytest.mark.parametrize("damage", [{}, {"targets": 5}, {"benchmarks": {}}, {"targets": {"a": {}, "b": {}}}])
def test_an_evaluation_of_a_run_by_hand_counts_if_it_is_what_the_sweep_would_ask(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    evaluate = {"benchmarks": ("lab",), "problems": 3}
    (run,) = load_sweep(["lab"], Changes({}, evaluate)).runs
    make_results(tmp_path, run, {"lab": [1]})
    shutil.rmtree(tmp_path / "state")
    job = Job(run, tmp_path)
    assert job.next_stage() == "evaluate"  # nothing says how it was asked
    job.check()
    targets = {"lab": {"model": "lab", "dtype": "auto", "adapter": "x", "run": f"/elsewhere/{run.name}"}}
    benchmarks = {"lab": load(packaged()["lab"], None, 3).describe()}
    settings = {"profile": PROFILES["lab"].model_dump(mode="json"), "engine": "transformers", "group": 128}
    file = job.evaluation / "settings.json"
    file.write_text(json.dumps(settings | {"targets": targets, "benchmarks": benchmarks} | damage))
    if damage:
        assert job.next_stage() == "evaluate"
        with pytest.raises(ConfigError, match="was made with other settings"):
            job.check()
    else:
        assert job.next_stage() is None
        job.check()
        (other,) = load_sweep(["lab"], Changes({}, evaluate | {"problems": 4})).runs
        with pytest.raises(ConfigError, match=r"was made with other settings \(problems\)"):
            Job(other, tmp_path).check()
