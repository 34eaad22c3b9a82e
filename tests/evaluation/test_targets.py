"""Which model a name stands for."""

import json
from pathlib import Path

import pytest

from opasd.config import ModelConfig
from opasd.errors import ConfigError
from opasd.evaluation.targets import resolve
from opasd.recipes import load_recipe
from opasd.run.folder import RunFolder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with runs, an adapter and a model in it."""
    monkeypatch.chdir(tmp_path)
    for name, recipe in (("a", "lab"), ("b", "lab"), ("big", "opasd-qwen3-4b")):
        config = load_recipe(recipe).config().model_copy(update={"output_dir": "runs"})
        RunFolder.create(config, name)
        (tmp_path / "runs" / name / "environment.json").unlink()  # whose runs write manifests
        adapter(tmp_path / "runs" / name / "final", config.model.name_or_path, name.encode())
    adapter(tmp_path / "adapters" / "loose", "Qwen/Qwen3-1.7B")
    merged = tmp_path / "merged"
    merged.mkdir()
    (merged / "config.json").write_text("{}")
    (merged / "model.safetensors").write_bytes(b"weights")
    return tmp_path


def adapter(folder: Path, base: str | None, weights: bytes = b"x", revision: str | None = None) -> None:
    folder.mkdir(parents=True)
    described = {"base_model_name_or_path": base, "revision": revision, "r": 4}
    (folder / "adapter_config.json").write_text(json.dumps(described))
    (folder / "adapter_model.safetensors").write_bytes(weights)


def test_a_run_an_adapter_a_model_a_hub_name_and_the_embedded_one(here):
    targets = resolve(["runs/a", "adapters/loose", "merged", "Qwen/Qwen3-1.7B", "lab"])
    assert [target.name for target in targets] == ["a", "loose", "merged", "Qwen/Qwen3-1.7B", "lab"]
    assert [target.model.name_or_path for target in targets] == [
        "lab",
        "Qwen/Qwen3-1.7B",
        "merged",
        "Qwen/Qwen3-1.7B",
        "lab",
    ]
    assert [target.adapter for target in targets] == [Path("runs/a/final"), Path("adapters/loose"), None, None, None]
    assert targets[0].run == Path("runs/a")
    assert targets[0].model.lora_r == load_recipe("lab").config().model.lora_r


def test_base_is_what_the_runs_share(here):
    targets = resolve(["runs/a", "base", "runs/b"])
    assert [target.name for target in targets] == ["a", "base", "b"]
    assert targets[1].model == targets[0].model
    assert targets[1].adapter is None
    assert resolve(["base"], ModelConfig(name_or_path="x/y"))[0].model.name_or_path == "x/y"
    with pytest.raises(ConfigError, match="base: which model"):
        resolve(["base"])
    with pytest.raises(ConfigError, match="base: which model\\? there are lab, Qwen/Qwen3-4B"):
        resolve(["base", "runs/a", "runs/big"])


def test_adapters_are_put_on_no_other_model(here):
    local = here / "models" / "Qwen3-1.7B"
    assert resolve(["adapters/loose"], ModelConfig(name_or_path=str(local)))[0].model.name_or_path == str(local)
    with pytest.raises(ConfigError, match="was trained on Qwen/Qwen3-1.7B, but --model is Qwen/Qwen3-8B"):
        resolve(["adapters/loose"], ModelConfig(name_or_path="Qwen/Qwen3-8B"))


def test_an_adapter_names_the_commit_of_its_base(here):
    adapter(here / "adapters" / "old", "Qwen/Qwen3-1.7B", revision="v1")
    (target,) = resolve(["adapters/old"])
    assert target.model == ModelConfig(name_or_path="Qwen/Qwen3-1.7B", revision="v1")
    assert target.describe()["revision"] == "v1"
    with pytest.raises(ConfigError, match=r"there are Qwen/Qwen3-1.7B at v1, Qwen/Qwen3-1.7B; give it with --model"):
        resolve(["base", "adapters/old", "adapters/loose"])
    with pytest.raises(ConfigError, match="was trained on Qwen/Qwen3-1.7B at v1; give --revision v1 too"):
        resolve(["adapters/old"], ModelConfig(name_or_path="Qwen/Qwen3-1.7B"))
    for given in (
        ModelConfig(name_or_path="Qwen/Qwen3-1.7B", revision="a commit"),
        ModelConfig(name_or_path="Qwen3-1.7B"),
    ):
        assert resolve(["adapters/old"], given)[0].model == given


def test_a_runs_adapter_is_loaded_as_the_run_loaded_its_base(here, monkeypatch):
    values = {"name_or_path": "org/own", "revision": "v2", "trust_remote_code": True}
    changed = {"output_dir": "runs", "model": ModelConfig.model_validate(values)}
    config = load_recipe("lab").config().model_copy(update=changed)
    run = RunFolder.create(config, "own").path.resolve()
    adapter(run / "final", "org/own")
    adapter(run / "other", "org/another")
    expected = ModelConfig(name_or_path="org/own", revision="v2")  # a folder gives no trust
    assert resolve(["runs/own/final"])[0].model == expected
    assert resolve(["runs/own/other"])[0].model == ModelConfig(name_or_path="org/another")
    monkeypatch.chdir(run / "final")
    assert resolve(["."])[0].model == expected
    (run / "config.yaml").write_text("another: tool's\n")
    assert resolve(["."])[0].model == ModelConfig(name_or_path="org/own")


def test_an_unfinished_run_is_its_newest_checkpoint(here):
    final = here / "runs" / "a" / "final"
    for step in (20, 100, 40):
        adapter(here / "runs" / "a" / f"checkpoint-{step}", "lab")
    (final / "README.md").touch()
    assert resolve(["runs/a"])[0].adapter == Path("runs/a/final")
    final.rename(here / "elsewhere")
    assert resolve(["runs/a"])[0].adapter == Path("runs/a/checkpoint-100")
    (here / "runs" / "b" / "final").rename(here / "else")
    with pytest.raises(ConfigError, match="has no result and no checkpoint yet"):
        resolve(["runs/b"])


def test_a_fully_trained_run_is_a_model(here):
    final = here / "runs" / "a" / "final"
    (final / "adapter_config.json").unlink()
    (final / "config.json").write_text("{}")
    (target,) = resolve(["runs/a"])
    assert (target.model.name_or_path, target.adapter, target.run) == ("runs/a/final", None, Path("runs/a"))


def test_an_adapter_of_the_embedded_model_is_known_by_its_folder_too(here):
    adapter(here / "loose-lab", "/somewhere/site-packages/opasd/lab/model")
    assert resolve(["loose-lab"])[0].model.name_or_path == "lab"


@pytest.mark.parametrize("section", ["7", "[1]", "x", "true"])
def test_a_configuration_whose_model_is_no_section(here, section):
    (here / "runs" / "a" / "config.yaml").write_text(f"model: {section}\n")
    with pytest.raises(ConfigError, match=r"config\.yaml:\n  model: got .*; this is a section"):
        resolve(["runs/a"])


def test_fingerprints_follow_the_files(here):
    first, second = (target.describe()["fingerprint"] for target in resolve(["runs/a", "runs/b"]))
    assert first != second
    (here / "runs" / "a" / "final" / "adapter_model.safetensors").write_bytes(b"b")
    assert resolve(["runs/a"])[0].describe()["fingerprint"] == second
    (here / "runs" / "a" / "final" / "adapter_config.json").write_text('{"r": 4, "lora_alpha": 9}')
    assert resolve(["runs/a"])[0].describe()["fingerprint"] != second


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "generation_config.json"])
def test_fingerprints_follow_how_a_model_is_asked(here, name):
    before = resolve(["merged"])[0].describe()["fingerprint"]
    (here / "merged" / name).write_text("{}")
    assert resolve(["merged"])[0].describe()["fingerprint"] != before


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["runs/c"], "no model, adapter or run 'runs/c'"),
        (["runs/bigg"], "did you mean runs/big"),
        (["absent"], "give base, lab, a folder, or a hub model"),
        (["adapters"], "is no run .config.yaml., no adapter"),
        (["merged/config.json"], "is a file"),
        (["runs/a", "runs/a"], "the same target twice"),
        (["lab", "lab"], "the same target twice"),
    ],
)
def test_what_is_not_there_is_told(here, names, words):
    with pytest.raises(ConfigError, match=words):
        resolve(names)


def test_an_adapter_without_weights_is_told(here):
    (here / "runs" / "a" / "final" / "adapter_model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"runs/a/final has no weights \(adapter_model.safetensors\)"):
        resolve(["runs/a"])


def test_names_are_kept_apart(here):
    adapter(here / "other" / "a", "lab")
    assert [target.name for target in resolve(["runs/a", "other/a"])] == ["runs/a", "other/a"]


def test_a_nameless_base_is_told(here):
    adapter(here / "nameless", None)
    with pytest.raises(ConfigError, match="does not name the base model; give it with --model"):
        resolve(["nameless"])
    assert resolve(["nameless"], ModelConfig(name_or_path="x/y"))[0].model.name_or_path == "x/y"
