"""A run's folder: made once, by one process, complete; refused when damaged or misnamed."""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opasd.config import ModelConfig, RunConfig, TrainConfig
from opasd.errors import ConfigError
from opasd.run.folder import RunFolder, check_disk, check_name, run_name, with_absolute_paths


def _config(folder: Path) -> RunConfig:
    return RunConfig(output_dir=str(folder))


def test_the_folder_holds_what_was_asked_and_where(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    config = RunConfig(output_dir=str(tmp_path / "runs"), model=ModelConfig(name_or_path=str(tmp_path / "model")))
    folder = RunFolder.create(config, "x", command=["opasd", "train", "--train.extra.hub_token", "s3cret"])
    assert folder.path == tmp_path / "runs" / "x"
    assert RunFolder.open(folder.path).config == folder.config == config.model_copy(update={"name": "x"})
    environment = json.loads((folder.path / "environment.json").read_text())
    assert environment["versions"]["torch"]
    assert os.uname().nodename not in environment.values()
    assert "s3cret" not in (folder.path / "environment.json").read_text()
    assert [path.name for path in folder.path.parent.iterdir()] == ["x"]
    assert folder.path.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_local_sources_are_kept_by_their_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model").mkdir()
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create(RunConfig(model=ModelConfig(name_or_path="model")), "x")
    assert folder.config.model.name_or_path == str(tmp_path / "model")


def test_an_existing_folder_or_file_is_never_overwritten(tmp_path: Path) -> None:
    RunFolder.create(_config(tmp_path), "x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("x", "empty", "file", "link"):
        with pytest.raises(ConfigError, match="never overwritten.*--resume"):
            RunFolder.create(_config(tmp_path), name)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be made"):
        RunFolder.create(_config(tmp_path / "file"), "x")


def _race(folder: str, gate: str) -> None:
    while not os.path.exists(gate):
        pass
    try:
        RunFolder.create(_config(Path(folder)), "x")
    except ConfigError as error:
        sys.exit(3 if "never overwritten" in str(error) else 4)


def test_of_racing_processes_exactly_one_makes_the_folder(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(5):
        gate = tmp_path / f"gate{attempt}"
        target = tmp_path / f"runs{attempt}"
        racers = [context.Process(target=_race, args=(str(target), str(gate))) for _ in range(2)]
        for racer in racers:
            racer.start()
        gate.touch()
        for racer in racers:
            racer.join()
        assert sorted(racer.exitcode or 0 for racer in racers) == [0, 3]
        assert RunFolder.open(target / "x").config.name == "x"
        assert len(list(target.iterdir())) == 1


def test_a_continued_run_records_both_configurations(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path), "x")
    longer = folder.config.model_copy(update={"save_samples_every": 3})
    folder.continued(folder.config)
    folder.continued(longer)
    assert RunFolder.open(folder.path).config == longer
    assert {p.name for p in folder.path.glob("*-*")} == {"environment-1.json", "environment-2.json", "config-2.yaml"}


def test_a_continued_run_can_be_continued_from_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(_config(tmp_path), "x")
    (tmp_path / "moved.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    data = folder.config.data.model_copy(update={"source": "moved.jsonl"})
    for config in (folder.continued(folder.config.model_copy(update={"data": data})), RunFolder.open(folder.path)):
        assert config.config.data.source == str(tmp_path / "moved.jsonl")


@pytest.mark.parametrize("damage", [None, "a: [", "train: {max_steps: -1}", "\0\0\0"])
def test_a_damaged_folder_is_a_clear_error(tmp_path: Path, damage: str | None) -> None:
    folder = RunFolder.create(_config(tmp_path), "x")
    (folder.path / "config.yaml").unlink()
    if damage is not None:
        (folder.path / "config.yaml").write_text(damage)
    with pytest.raises(ConfigError, match="config.yaml"):
        RunFolder.open(folder.path)
    with pytest.raises(ConfigError, match="no run folder"):
        RunFolder.open(tmp_path / "absent")


@pytest.mark.parametrize(
    "name", ["", " ", "\ud800", "..", ".", "../x", "/x", "a/b", "a\0b", "a\nb", "x" * 201, ".hidden", "a\\b"]
)
def test_names_that_are_no_folder_inside_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="name: got"):
        RunFolder.create(_config(tmp_path), name)
    assert not list(tmp_path.iterdir())


@given(st.text(max_size=250))
def test_an_accepted_name_is_one_folder_inside(name: str) -> None:
    try:
        check_name(name)
    except ConfigError:
        return
    assert Path("/runs", name).resolve().parent == Path("/runs")
    assert len(name.encode()) <= 200


def test_a_run_without_a_name_is_named_after_recipe_and_time() -> None:
    assert run_name("lab", time.gmtime(0)) == "lab-19700101-000000"
    check_name(run_name("x" * 300))


def test_too_little_disk_is_refused_before_the_start(tmp_path: Path) -> None:
    check_disk(tmp_path, 1)
    with pytest.raises(ConfigError, match=r"first checkpoint needs about 1000000000.00 GB; free some space"):
        check_disk(tmp_path, 10**18)


def test_names_of_embedded_things_are_no_paths_and_a_models_folder_is_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("lab", "arithmetic"):
        (tmp_path / name).mkdir()
    config = RunConfig.model_validate(
        {
            "model": {"name_or_path": "arithmetic"},
            "data": {"source": "arithmetic"},
            "validation_data": {"a": {"source": "lab"}},
        }
    )
    absolute = with_absolute_paths(config)
    assert absolute.model.name_or_path == str(tmp_path / "arithmetic")
    assert (absolute.data.source, absolute.validation_data["a"].source) == ("arithmetic", "lab")
    lab = config.model_copy(update={"model": config.model.model_copy(update={"name_or_path": "lab"})})
    assert with_absolute_paths(lab).model.name_or_path == "lab"


@pytest.mark.parametrize(
    ("began", "count", "divided"), [(4, 1, (2, 12)), (1, 2, (1, 3)), (4, 4, (2, 3)), (4, 3, (2, 4)), (1, 4, None)]
)
def test_another_number_of_processes_shares_the_same_step(
    tmp_path: Path, began: int, count: int, divided: tuple[int, int] | None
) -> None:
    """24 problems a step with four processes, 6 with one."""
    train = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 3}
    folder = RunFolder.create(_config(tmp_path).model_copy(update={"train": TrainConfig.model_validate(train)}), "x")
    (folder.path / "environment.json").write_text(f'{{"processes": {began}}}')
    if divided is None:
        with pytest.raises(ConfigError, match=f"has {began * 6} problems a step, which {count} processes cannot share"):
            folder.shared_by(folder.config, count)
        return
    shared = folder.shared_by(folder.config, count).train
    assert (shared.per_device_train_batch_size, shared.gradient_accumulation_steps) == divided
    for damage in ("{", "[]", "{}"):
        (folder.path / "environment.json").write_text(damage)
        assert folder.shared_by(folder.config, count) == folder.config


def test_the_record_of_a_run_that_did_not_continue_is_removed(tmp_path: Path) -> None:
    folder = RunFolder.create(_config(tmp_path), "x")
    files = {path.name for path in folder.path.iterdir()}
    folder.continued(folder.config.model_copy(update={"save_samples_every": 3})).undo_continued()
    assert {path.name for path in folder.path.iterdir()} == files
    assert RunFolder.open(folder.path).config == folder.config
    folder.undo_continued()
