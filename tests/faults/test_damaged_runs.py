"""A run whose files were damaged: the newest whole checkpoint is used, and nothing goes on wrongly."""

import json
import shutil
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

from opasd.cli import main
from opasd.errors import ConfigError
from opasd.run.folder import RunFolder
from opasd.run.manifest import checkpoints, write_manifest
from opasd.run.records import Records
from tests.faults.damage import CHECKPOINT_DAMAGE, UNFIT
from tests.training import PROBLEMS, make_model, make_trainer, rows

VALIDATED = {"validation": {"every": 2, "sampling": {"max_new_tokens": 2}}}
RUN: dict[str, Any] = {
    "max_steps": 3,
    "save_steps": 1,
    "per_device_train_batch_size": 1,
    "method": VALIDATED,
    "eval_dataset": PROBLEMS[:2],
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    make_trainer(folder, **RUN).train()
    return folder


def same_result(first, second):
    one, other = (load_file(folder / "final" / "adapter_model.safetensors") for folder in (first, second))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert rows(first) == rows(second)
    assert rows(first, "samples.jsonl") == rows(second, "samples.jsonl")


@pytest.mark.parametrize(("file", "damage"), CHECKPOINT_DAMAGE.values(), ids=CHECKPOINT_DAMAGE)
def test_the_last_good_checkpoint_is_used(whole, tmp_path, file, damage, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    damage(run / "checkpoint-3" / file)
    make_trainer(run, **RUN).train(True)
    said = capsys.readouterr().err
    assert "checkpoint-3 is damaged: " in said
    assert "the run continues from checkpoint-2\n" in said
    same_result(run, whole)
    assert {path.name for path in run.glob("aside-*")} == {"aside-checkpoint-3"}
    assert not list(run.glob(".*"))


@pytest.mark.parametrize(("file", "content", "said"), UNFIT.values(), ids=UNFIT)
def test_a_checkpoint_whose_manifest_fits_is_still_checked(whole, tmp_path, file, content, said):
    """Someone may have written files and manifest anew; one message, and no error in the middle of a step."""
    run = tmp_path / "run"
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("checkpoint-3", "final"))
    content(run / "checkpoint-2" / file)
    write_manifest(run / "checkpoint-2", None)
    with pytest.raises(ConfigError, match=said) as caught:
        make_trainer(run, **RUN).train(True)
    assert "\n" not in str(caught.value)


def test_a_run_without_a_whole_checkpoint_is_refused_and_not_changed(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for checkpoint in checkpoints(run):
        (checkpoint / "optimizer.pt").write_bytes(b"")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=r"checkpoint-3 is damaged: optimizer.pt is cut; delete it"):
        make_trainer(run, **RUN).train(True)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_checkpoints_of_a_version_without_manifests_resume(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoint-3")
    for manifest in run.rglob("manifest.json"):
        manifest.unlink()
    environment = json.loads((run / "environment.json").read_text())
    environment.pop("run")
    (run / "environment.json").write_text(json.dumps(environment))
    make_trainer(run, **RUN).train(True)
    assert "checkpoint-2 has no manifest.json, so whether its files have changed cannot be told" in _said(capsys)
    same_result(run, whole)


def test_a_checkpoint_without_its_manifest_is_used_when_it_is_named(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "checkpoint-2" / "manifest.json").unlink()
    make_trainer(run, **RUN).train(str(run / "checkpoint-2"))
    assert "checkpoint-2 has no manifest.json, so whether its files have changed cannot be told" in _said(capsys)
    same_result(run, whole)


def _said(capsys):
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("lost", ["all", "some"])
def test_lost_metrics_are_taken_from_the_checkpoint(whole, tmp_path, lost, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    metrics = Records(run / "metrics.jsonl")
    if lost == "all":
        metrics.path.unlink()
    else:
        metrics.replace([row for row in metrics if row["step"] != 2])
    make_trainer(run, **RUN).train(True)
    assert f"metrics.jsonl lacked {5 if lost == 'all' else 2} rows; they were taken from" in capsys.readouterr().err
    assert rows(run) == rows(whole)
    rows_of_others = [{"step": 3, "grad_norm": 1.0}, {"step": 3, "grad_norm": "x", "loss": "x", "validation/x": "x"}]
    metrics.append(*rows_of_others)  # the card is of what is left
    (run / "samples.jsonl").unlink()
    make_trainer(run, **RUN).train(True)
    assert "samples.jsonl is missing: the samples of earlier steps are lost" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "name: x\n", "model: {}\n", "# nothing\n"])
def test_a_configuration_without_its_fields_does_not_mean_the_defaults(whole, tmp_path, text, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match="config.yaml is damaged: it has no"):
        RunFolder.open(run)
    assert main(["train", "--resume", str(run)]) == 2
    if "model" not in text:
        assert main(["evaluate", str(run), "--benchmarks", "lab", "--output", str(tmp_path / "out")]) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lora", [{"lora_r": 3}, {"lora_target_modules": ["q_proj"]}])
def test_a_checkpoint_of_another_model_is_refused(whole, tmp_path, lora):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.rmtree(run / "checkpoint-3")
    changed = LoraConfig(r=lora.get("lora_r", 4), target_modules=lora.get("lora_target_modules", ["q_proj", "k_proj"]))
    trainer = make_trainer(run, lora=False, model=get_peft_model(make_model(), changed), **RUN)
    with pytest.raises(ConfigError, match=r"checkpoint-2 has other weights than this run trains, such as .*: put its"):
        trainer.train(True)


def test_a_run_killed_after_its_first_validation_has_that_row_once(tmp_path):
    method = {"validation": {"every": 2, "at_start": True, "sampling": {"max_new_tokens": 3}}}
    settings = {"method": method, "eval_dataset": PROBLEMS[:2], "max_steps": 1}
    killed = make_trainer(tmp_path, **settings)
    killed.evaluate({"mine": PROBLEMS[:2]})
    before = len(rows(tmp_path))
    killed.roll_out = lambda pairs: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        killed.train()
    assert [row["step"] for row in rows(tmp_path)] == [0] * (before + 1)
    make_trainer(tmp_path, **settings).train()
    assert [row["step"] for row in rows(tmp_path)] == [0] * (before + 1) + [1, 1]  # the last step is validated too


def test_the_result_appears_whole(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, max_steps=1, save_steps=1)
    seen = []

    def dies(path, *rest):
        seen.append({entry.name for entry in tmp_path.iterdir()})
        raise KeyboardInterrupt

    monkeypatch.setattr("opasd.trainer.result.write_manifest", dies)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert "final" not in seen[0]
    assert ".final" in seen[0]
    assert not (tmp_path / "final").exists()
    monkeypatch.undo()
    (tmp_path / ".final").mkdir()  # as a SIGKILL leaves it
    make_trainer(tmp_path, max_steps=1, save_steps=1).train(True)
    assert (tmp_path / "final" / "manifest.json").is_file()
    assert not list(tmp_path.glob(".*"))
