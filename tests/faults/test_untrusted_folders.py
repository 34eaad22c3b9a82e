"""A run's folder from someone else executes nothing: neither its model's code, nor a plugin, a grader or a pickle."""

import json
from pathlib import Path

import pytest
import torch

from opasd.config import ModelConfig, RunConfig
from opasd.errors import ConfigError
from opasd.recipes import load_recipe
from opasd.run.folder import RunFolder
from opasd.run.manifest import write_manifest
from tests.commands import opasd
from tests.training import TOKENIZER, make_model

OWN_CODE = """
from pathlib import Path
from transformers import Qwen3Config, Qwen3ForCausalLM

Path({marker!r}).touch()

class OwnConfig(Qwen3Config):
    model_type = "own"

class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A run's folder whose model brings code, whose configuration trusts it, and the file that the code would make."""
    marker, model = tmp_path / "executed", tmp_path / "model"
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    make_model().save_pretrained(model)
    TOKENIZER.save_pretrained(model)
    (model / "own.py").write_text(OWN_CODE.format(marker=str(marker)))
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    described = model / "config.json"
    described.write_text(json.dumps(json.loads(described.read_text()) | own))
    values = {"name_or_path": str(model), "trust_remote_code": True, "lora_r": 4}
    lab = load_recipe("lab").config()
    update = {"model": ModelConfig.model_validate(values), "output_dir": str(tmp_path / "runs"), "validation_data": {}}
    update["train"] = lab.train.model_copy(update={"max_steps": 1, "per_device_train_batch_size": 1})
    update["rollout"] = lab.rollout.model_copy(update={"max_new_tokens": 2})
    run = RunFolder.create(lab.model_copy(update=update), "own").path
    (run / "final").mkdir()
    adapter = {"base_model_name_or_path": str(model), "peft_type": "LORA", "r": 4, "target_modules": ["q_proj"]}
    (run / "final" / "adapter_config.json").write_text(json.dumps(adapter))
    (run / "final" / "adapter_model.safetensors").write_bytes(b"")
    write_manifest(run / "final", None)
    return run, marker


COMMANDS = {
    "evaluate a run": ["evaluate", "{run}", "--benchmarks", "lab", "--problems", "1", "--output", "out"],
    "evaluate its result": ["evaluate", "{run}/final", "--benchmarks", "lab", "--problems", "1", "--output", "out"],
    "evaluate its base": ["evaluate", "base", "{run}", "--benchmarks", "lab", "--problems", "1", "--output", "out"],
    "merge": ["merge", "{run}", "merged"],
    "attend": ["attend", "{run}"],
    "resume": ["train", "--resume", "{run}"],
    "train": ["train", "{run}/config.yaml", "--name", "new"],
    "prompt": ["prompt", "{run}"],
    "probe": ["probe", "{run}/config.yaml", "--problems", "1"],
    "validate": ["validate", "{run}/config.yaml"],
    "report": ["report", "{run}", "--output", "page"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_no_command_runs_the_models_code(hostile, tmp_path, words):
    run, marker = hostile
    done = opasd(tmp_path, *(word.format(run=run) for word in words))
    assert not marker.exists(), done.stderr
    assert "Traceback" not in done.stderr
    if words[0] != "report":
        assert done.returncode == 2, done.stdout + done.stderr
        assert "trust-remote-code" in done.stderr


@pytest.mark.parametrize("name", ["evaluate a run", "merge", "attend", "resume"])
def test_who_runs_the_command_can_trust(hostile, tmp_path, name):
    run, marker = hostile
    flag = ["--model.trust-remote-code", "true"] if name == "resume" else ["--trust-remote-code"]
    done = opasd(tmp_path, *(word.format(run=run) for word in COMMANDS[name]), *flag)
    assert marker.exists(), done.stderr  # the adapter is empty, so the command itself fails after that
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("key", ["plugins", "grader"])
def test_a_folder_names_no_module_to_import(tmp_path, key):
    (tmp_path / "own_module.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'executed')!r}).touch()\n")
    value = {"plugins": ("own_module",)} if key == "plugins" else {"grader": "own_module:grade"}
    run = RunFolder.create(RunConfig(output_dir=str(tmp_path)), "own").path
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(
        text.replace("plugins: []", "plugins: [own_module]") if key == "plugins"
        else text.replace("grader: math", f"grader: {value['grader']}")
    )  # fmt: skip
    for words in (["train", "--resume", str(run)], ["attend", str(run)], ["probe", str(run / "config.yaml")]):
        done = opasd(tmp_path, *words)
        assert done.returncode == 2, done.stderr
        assert "own_module" in done.stderr
        assert "--plugins own_module" in done.stderr
    assert not (tmp_path / "executed").exists()
    if key == "grader":
        with pytest.raises(ConfigError, match="own_module"):
            RunFolder.open(run)


def test_an_adapters_description_names_no_module_to_import(hostile, tmp_path):
    run, _ = hostile
    path = run / "final" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"megatron_config": {"a": 1}, "megatron_core": "own"}))
    write_manifest(run / "final", None)
    done = opasd(tmp_path, "evaluate", str(run), "--benchmarks", "lab", "--problems", "1", "--output", "out")
    assert done.returncode == 2
    assert "megatron_config" in done.stderr


class _Executes:
    def __init__(self, marker: Path) -> None:
        self.marker = str(marker)

    def __reduce__(self):
        return (Path.touch, (Path(self.marker),))


def test_a_pickled_adapter_is_not_executed(hostile, tmp_path):
    run, marker = hostile
    (run / "final" / "adapter_model.safetensors").unlink()
    torch.save({"weight": _Executes(marker)}, run / "final" / "adapter_model.bin")
    path = run / "final" / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"base_model_name_or_path": "lab"}))
    config = run / "config.yaml"
    config.write_text(config.read_text().replace(str(tmp_path / "model"), "lab"))
    for words in (COMMANDS["evaluate a run"], COMMANDS["merge"], COMMANDS["attend"]):
        done = opasd(tmp_path, *(word.format(run=run) for word in words))
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
    assert not marker.exists()
