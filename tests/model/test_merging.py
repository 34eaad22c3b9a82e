"""Merging an adapter: onto the commit of the base that it was trained on, and all of it or nothing."""

import json
import resource
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from opasd.cli import main
from opasd.config import ModelConfig, RunConfig
from opasd.errors import ConfigError
from opasd.model import loading, merging
from opasd.run.folder import RunFolder
from tests import nursery, processes
from tests.training import TOKENIZER, make_model, write_problems, write_recipe

OWN_CODE = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class OwnConfig(Qwen3Config):
    model_type = "own"

class OwnModel(Qwen3ForCausalLM):
    config_class = OwnConfig
"""


def save_commit(hub: Path, name: str, commit: str, ref: str, shift: float) -> Path:
    """A model as the hub's cache holds it; `shift` tells its weights from another commit's."""
    cached = hub / f"models--{name.replace('/', '--')}"
    (cached / "refs").mkdir(parents=True, exist_ok=True)
    (cached / "refs" / ref).write_text(commit)
    model = make_model()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.add_(shift * torch.randn_like(layer.mlp.down_proj.weight))
    model.save_pretrained(cached / "snapshots" / commit)
    TOKENIZER.save_pretrained(cached / "snapshots" / commit)
    return cached / "snapshots" / commit


SCRIPT = """
import json, os
from pathlib import Path

from huggingface_hub import constants
constants.HF_HUB_CACHE = os.environ["HF_HUB_CACHE"]  # as read at the import, which in a fork was earlier

import torch
from peft import AutoPeftModelForCausalLM, PeftModel
from transformers import AutoModelForCausalLM

from opasd.model import loading
from opasd.cli import main
from opasd.evaluation.targets import resolve

run, ids = Path("runs/rev"), torch.tensor([[4, 5, 6, 7]])
flags = ["--model.name-or-path", "org/tiny", "--model.revision", "v1", "--name", "rev"]
codes = [main(["train", "tiny.yaml", *flags]), main(["train", "--resume", str(run), "--train.max-steps", "2"])]
codes += [main(["merge", str(run / "final"), "merged"]), main(["merge", str(run / "checkpoint-1"), "merged-1"])]
(Path("moved") / "final").mkdir(parents=True)
for file in (run / "final").iterdir():
    (Path("moved") / "final" / file.name).write_bytes(file.read_bytes())
codes += [main(["merge", "moved/final", "merged-moved"])]
(evaluated,) = resolve([str(run / "final")])


def on(base, adapter):
    return PeftModel.from_pretrained(base, str(adapter))


def logits(model):
    with torch.no_grad():
        return model.eval()(ids).logits


load = AutoModelForCausalLM.from_pretrained
right = logits(on(load("org/tiny", revision="v1"), run / "final"))
models = {
    "main": on(load("org/tiny"), run / "final"),
    "merged": load("merged"),
    "moved": load("merged-moved"),
    "checkpoint": load("merged-1"),
    "peft": AutoPeftModelForCausalLM.from_pretrained(str(run / "final")),
    "evaluated": on(loading.load_model(evaluated.model), evaluated.adapter),
}
off = {name: (logits(model) - right).abs().max().item() for name, model in models.items()}
first = logits(on(load("org/tiny", revision="v1"), run / "checkpoint-1"))
off["checkpoint"] = (logits(models["checkpoint"]) - first).abs().max().item()
revision = json.loads((run / "final" / "adapter_config.json").read_text())["revision"]
Path("report.json").write_text(json.dumps({"codes": codes, "off": off, "revision": revision}))
"""


def test_the_commit_of_the_base_is_kept(tmp_path):
    hub = tmp_path / "hub"
    save_commit(hub, "org/tiny", "a" * 40, "main", 0.3)
    save_commit(hub, "org/tiny", "b" * 40, "v1", 0.0)
    write_problems(tmp_path)
    write_recipe(tmp_path, model="org/tiny", max_steps=1, save_steps=1)
    cache = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_CACHE": str(hub), "HF_HUB_OFFLINE": "1"}
    done = nursery.run("-c", SCRIPT, cwd=tmp_path, env=processes.environment(**cache))
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["codes"] == [0] * 5, done.stderr
    assert report["off"].pop("main") > 0.01
    assert max(report["off"].values()) < 1e-4, report["off"]
    assert report["revision"] == "v1"
    began = json.loads((tmp_path / "runs" / "rev" / "model.json").read_text())
    assert began == {"name_or_path": "org/tiny", "revision": "v1", "commit": "b" * 40}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder with an adapter of a model whose code comes with it."""
    folder = tmp_path_factory.mktemp("own")
    make_model().save_pretrained(folder / "model")
    TOKENIZER.save_pretrained(folder / "model")
    (folder / "model" / "own.py").write_text(OWN_CODE)
    described = folder / "model" / "config.json"
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}}
    described.write_text(json.dumps(json.loads(described.read_text()) | own))
    values = {"name_or_path": str(folder / "model"), "trust_remote_code": True, "lora_r": 4, "dtype": "bfloat16"}
    config = RunConfig(model=ModelConfig.model_validate(values), output_dir=str(folder / "runs"))
    made = RunFolder.create(config, "own").path
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(folder / "modules"))
        adapted = loading.adapt(loading.load_model(config.model), config.model, checkpointing=False)
        adapted.save_pretrained(str(made / "final"))
        yield made


def test_a_base_with_code_of_its_own_needs_the_callers_trust(run, tmp_path):
    with pytest.raises(ConfigError, match="needs code that comes with it; if you trust that code, add --model.trust"):
        merging.merge(run / "final", tmp_path / "merged")
    merging.merge(run / "final", tmp_path / "merged", trust_remote_code=True)
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", trust_remote_code=True)
    assert type(merged).__name__ == "OwnModel"
    ids = torch.tensor([[4, 5, 6]])
    with torch.no_grad():  # an adapter that was not trained changes nothing
        torch.testing.assert_close(merged(ids).logits.float(), make_model()(ids).logits, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("where", ["new", "there"])
@pytest.mark.parametrize("limit", [200, 20_000])
def test_a_full_disk_is_told_and_leaves_nothing_in_the_way(run, tmp_path, where, limit):
    """A limit on a file's size is the full disk that can be had here."""
    out = tmp_path / "out"
    if where == "there":
        out.mkdir()
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises(ConfigError, match="out could not be written: .*; free some space, and ") as caught:
            merging.merge(run / "final", out, trust_remote_code=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert "\n" not in str(caught.value)
    assert "--resume" not in str(caught.value)
    assert not list(tmp_path.rglob("*/*"))
    merging.merge(run / "final", out, trust_remote_code=True)
    assert (out / "model.safetensors").exists()
    assert (out / "tokenizer.json").exists()
    assert not list(out.glob(".*"))


@pytest.mark.filterwarnings("ignore::UserWarning")  # PEFT's of tied weights
def test_what_cannot_be_merged_is_refused(tmp_path):
    """An adapter on an embedding that is the output head too: merged into one weight, it would change both."""
    make_model().save_pretrained(tmp_path / "base")
    TOKENIZER.save_pretrained(tmp_path / "base")
    for name, target in (("plain", "v_proj"), ("tied", "embed_tokens")):
        base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
        adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", target], init_lora_weights=False))
        adapted.save_pretrained(str(tmp_path / name))
    merging.merge(tmp_path / "plain", tmp_path / "whole")
    with pytest.raises(ConfigError, match="tied cannot be merged: the whole model would compute something else"):
        merging.merge(tmp_path / "tied", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_killed_merge_left_is_cleared_away(run, tmp_path, capsys):
    out = tmp_path / "out"
    (out / ".new-abc").mkdir(parents=True)
    (out / ".new-abc" / "model.safetensors").write_bytes(b"half")
    assert main(["merge", str(run / "final"), str(out), "--trust-remote-code"]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert (out / "model.safetensors").stat().st_size > 4
    assert not list(out.glob(".*"))
    (out / ".new-abc").mkdir()  # killed between its last move and its end
    assert main(["merge", str(run / "final"), str(out), "--trust-remote-code"]) == 0
    assert not list(out.glob(".*"))


def test_a_folder_in_which_a_run_is_being_made_is_no_place_for_a_model(run, tmp_path):
    (tmp_path / ".new-run").mkdir()
    (tmp_path / ".new-run" / "config.yaml").write_text("x")
    (tmp_path / "older").mkdir()
    assert main(["merge", str(run / "final"), str(tmp_path), "--trust-remote-code"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {".new-run", "older"}


def test_what_is_in_the_folder_stays(run, tmp_path):
    (tmp_path / "own.txt").write_text("x")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))
    try:
        with pytest.raises(ConfigError, match="could not be written"):
            merging.merge(run / "final", tmp_path, trust_remote_code=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["own.txt"]


def test_a_folder_that_cannot_be_made(run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write .*file/out"):
        merging.merge(run / "final", tmp_path / "file" / "out", trust_remote_code=True)


@pytest.mark.parametrize("text", ["{", "[]", '{"base_model_name_or_path": 5, "peft_type": "LORA"}'])
def test_a_description_that_is_none(tmp_path, text):
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(ConfigError, match="adapter_config.json cannot be read"):
        merging.merge(tmp_path, tmp_path / "out")
