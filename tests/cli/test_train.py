"""`opasd train` around a stand-in for the training itself: folders, exit codes, resuming, many processes."""

import re
import signal
from pathlib import Path

import pytest

from opasd.cli.train import check_changes
from opasd.config import DataConfig, ModelConfig, RunConfig, TrainConfig
from opasd.errors import ConfigError
from opasd.run.folder import RunFolder
from tests.cli.conftest import CommandLine
from tests.processes import PATIENCE, wait_until


def test_a_run_gets_a_folder_and_is_never_overwritten(opasd: CommandLine) -> None:
    code, _, errors = opasd("train", "lab", "--name", "x", "--train.max-steps", "3")
    assert code == 0, errors
    folder = opasd.folder / "runs" / "x"
    assert (folder / "called-0").read_text().startswith("3 False")
    assert RunFolder.open(folder).config.train.max_steps == 3
    assert "never overwritten" in opasd.refuses("train", "lab", "--name", "x")
    assert opasd("train", "lab")[0] == 0
    assert any(re.fullmatch(r"lab-\d{8}-\d{6}", path.name) for path in folder.parent.iterdir())


def test_what_may_not_be_meant_is_told_before_it_runs(opasd: CommandLine) -> None:
    code, _, errors = opasd("train", "lab", "--name", "x", "--validation-data.lab", "null")
    assert code == 0
    assert "warning: no validation_data: the run will not be validated\n" in errors
    assert "warning" not in opasd("train", "lab", "--name", "y")[2]


def test_resume_takes_the_folders_configuration(opasd: CommandLine) -> None:
    opasd("train", "lab", "--name", "x", "--train.max-steps", "3")
    assert opasd("train", "--resume", "runs/x")[0] == 0
    called = opasd.folder / "runs" / "x" / "called-0"
    assert called.read_text().startswith("3 True")
    assert opasd("train", "--resume=runs/x", "--train.max-steps", "5")[0] == 0
    assert called.read_text().startswith("5 True")
    assert "it may only grow" in opasd.refuses("train", "--resume", "runs/x", "--train.max-steps", "4")
    assert "changed train.seed would mix" in opasd.refuses("train", "--resume", "runs/x", "--train.seed", "1")
    assert "leave it out" in opasd.refuses("train", "lab", "--resume", "runs/x")
    assert "no run folder" in opasd.refuses("train", "--resume", "runs/absent")
    opasd.refuses("train", "--resume")


def test_a_resumption_that_is_refused_changes_nothing(opasd: CommandLine) -> None:
    opasd("train", "lab", "--name", "x", "--train.max-steps", "3")
    folder = opasd.folder / "runs" / "x"
    assert opasd("train", "--resume", "runs/x", "--train.max-steps", "5")[0] == 0
    (folder / "metrics.jsonl").write_text('{"step": 1}\n')

    def files() -> dict[str, str]:
        return {path.name: path.read_text() for path in folder.glob("[!.]*") if "called" not in path.name}

    before = files()
    longer = ("train", "--resume", "runs/x", "--train.max-steps", "7")
    assert "no such column" in opasd.refuses(*longer, STAND_IN="mistake")
    assert files() == before
    assert RunFolder.open(folder).config.train.max_steps == 5
    assert "no such column" in opasd.refuses(*longer, STAND_IN="later mistake")  # after a step, which stays
    assert RunFolder.open(folder).config.train.max_steps == 7
    assert (folder / "environment-2.json").exists()


def test_a_finished_run_without_checkpoints_is_left_as_it_is(opasd: CommandLine) -> None:
    opasd("train", "lab", "--name", "x", "--train.max-steps", "3")
    folder = opasd.folder / "runs" / "x"
    (folder / "final").mkdir()
    (folder / "final" / "README.md").touch()
    (folder / "metrics.jsonl").write_text('{"step": 2}\n{"step": 3}\n')
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, _, errors = opasd("train", "--resume", "runs/x")
    assert (code, errors) == (0, "finished: runs/x/final\n")
    refused = opasd.refuses("train", "--resume", "runs/x", "--train.max-steps", "4")
    assert "runs/x ended at step 3 and has no checkpoint to continue; start a new run" in refused
    assert before == {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (folder / "checkpoint-3").mkdir()
    assert opasd("train", "--resume", "runs/x", "--train.max-steps", "4")[0] == 0
    assert (folder / "called-0").read_text().startswith("4 True")


@pytest.mark.parametrize("words", [("--resume", ""), ("--resume=",), ("--resume", " ")])
def test_an_empty_folder_to_resume_is_no_new_run(opasd: CommandLine, words: tuple[str, ...]) -> None:
    assert "--resume: got '" in opasd.refuses("train", "lab", *words, "--name", "e")
    assert not (opasd.folder / "runs").exists()


def test_only_a_constant_schedule_lets_steps_grow() -> None:
    old, new = (RunConfig(train=TrainConfig(max_steps=n, lr_scheduler_type="linear")) for n in (5, 6))
    with pytest.raises(ConfigError, match="linear schedule"):
        check_changes(old, new)
    check_changes(new, new)


def test_a_run_goes_on_where_model_and_data_lie_elsewhere(tmp_path: Path) -> None:
    def at(folder: Path, data: str = "train.jsonl", revision: str | None = None) -> RunConfig:
        held_out = {"x": DataConfig(source=str(folder / "test.jsonl"))}
        model = ModelConfig(name_or_path=str(folder / "model"), revision=revision)
        return RunConfig(model=model, data=DataConfig(source=str(folder / data)), validation_data=held_out)

    old, new = at(Path("/gone")), at(tmp_path)
    with pytest.raises(ConfigError, match="changed model.name_or_path, data.source, validation_data would mix"):
        check_changes(old, new)
    for name in ("model", "train.jsonl", "other.jsonl", "test.jsonl"):
        (tmp_path / name).mkdir()
    check_changes(old, new)
    with pytest.raises(ConfigError, match="changed data.source would mix"):
        check_changes(old, at(tmp_path, "other.jsonl"))
    with pytest.raises(ConfigError, match="changed model.revision would mix"):
        check_changes(old, at(tmp_path, revision="main"))
    for name, message in (("lab", "changed model.name_or_path would mix"), ("one/model", "changed model.name_or_path")):
        with pytest.raises(ConfigError, match=message):  # the embedded one and the hub's are no folder that was moved
            check_changes(RunConfig(model=ModelConfig(name_or_path=name)), RunConfig(model=new.model))
    hub = [RunConfig(model=ModelConfig(name_or_path=name)) for name in ("one/Model", "two/Model")]
    with pytest.raises(ConfigError, match="changed model.name_or_path would mix"):
        check_changes(*hub)


def test_another_file_of_the_same_name_is_not_a_moved_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of(source: Path | str) -> RunConfig:
        return RunConfig(data=DataConfig(source=str(source)))

    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "train.jsonl").write_text(folder)
    with pytest.raises(ConfigError, match=r"changed data.source would mix .* may change, and where"):
        check_changes(of(tmp_path / "a" / "train.jsonl"), of(tmp_path / "b" / "train.jsonl"))
    (tmp_path / "link").symlink_to(tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for same in ("a/train.jsonl", "link/train.jsonl", "~/a/train.jsonl"):
        check_changes(of(tmp_path / "a" / "train.jsonl"), of(same))
    for source in ("~nobody/train.jsonl", "x" * 5000, "a\0/train.jsonl"):
        with pytest.raises(ConfigError, match="changed data.source"):
            check_changes(of(tmp_path / "a" / "train.jsonl"), of(source))
    (tmp_path / "a" / "train.jsonl").rename(tmp_path / "train.jsonl")
    check_changes(of(tmp_path / "a" / "train.jsonl"), of("train.jsonl"))


def test_exit_codes_of_a_stopped_run_a_mistake_and_a_bug(opasd: CommandLine) -> None:
    with opasd.start("train", "lab", "--name", "x", STAND_IN="wait") as process:
        wait_until((opasd.folder / "runs" / "x" / "ready-0").exists, process)
        assert "in use by a live process" in opasd.refuses("train", "--resume", "runs/x")
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75
    assert "opasd train --resume runs/x" in errors
    code, _, errors = opasd("train", "lab", "--name", "y", STAND_IN="mistake")
    assert (code, "Traceback" in errors) == (2, False)
    assert "error: no such column; name another" in errors
    code, _, errors = opasd("train", "lab", "--name", "z", STAND_IN="bug")
    assert (code, "RuntimeError: a bug" in errors) == (1, True)


def test_many_processes_share_a_folder_and_stop_together(opasd: CommandLine) -> None:
    args = ["train", "lab", "--num-processes", "2", "--train.max-steps", "3", "--name", "x"]
    with opasd.forked(*args, STAND_IN="wait") as process:
        for rank in (0, 1):
            wait_until((opasd.folder / "runs" / "x" / f"ready-{rank}").exists, process)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75, errors
    assert errors.count("run folder:") == 1
    assert "Traceback" not in errors
    assert (opasd.folder / "runs" / "x" / "called-1").read_text() == "3 False true"
    assert "never overwritten" in opasd.refuses(*args)
    resume = ["train", "--resume", "runs/x"]
    assert "continue with: opasd train --resume runs/x --num-processes 2\n" in errors
    with opasd.forked(*resume, "--num-processes", "2") as process:
        _, errors = process.communicate()
    assert process.returncode == 0, errors
    assert (opasd.folder / "runs" / "x" / "called-1").read_text() == "3 True true"
    code, _, errors = opasd(*resume)  # any number of processes may go on
    assert code == 0, errors
    assert (opasd.folder / "runs" / "x" / "called-0").read_text().startswith("3 True")


def test_many_processes_of_the_users_own_launch_agree_on_a_name(opasd: CommandLine) -> None:
    launch = ("accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--main_process_port", "0")
    code, _, errors = opasd.apart("-m", "opasd.cli", "train", "lab", module=launch)
    assert code == 0, errors
    (folder,) = (opasd.folder / "runs").iterdir()
    assert {path.name for path in folder.glob("called-*")} == {"called-0", "called-1"}


def test_a_mistake_in_many_processes_is_told_once(opasd: CommandLine) -> None:
    code, _, errors = opasd.apart("train", "lab", "--num-processes", "2", "--name", "x", STAND_IN="mistake")
    assert code == 2
    assert errors.count("error: no such column") == 1
    assert "Traceback" not in errors
