"""The demo, small: real training on the embedded model, and what it leaves."""

import json

from opasd.cli import demo
from opasd.cli.demo import METHODS, compare
from opasd.model import merging
from opasd.recipes import load_recipe

SMALL = """
data: {sample: 32}
train: {per_device_train_batch_size: 4}
rollout: {max_new_tokens: 48}
validation: {sampling: {max_new_tokens: 48}}
validation_data: {lab: {sample: 4}}
"""


def test_the_demo_trains_compares_and_writes(tmp_path, tmp_path_factory, capsys, monkeypatch):
    recipes = tmp_path_factory.mktemp("recipes")
    for recipe in METHODS.values():
        (recipes / f"{recipe}.yaml").write_text(f"extends: {recipe}{SMALL}")
    small = {name: str(recipes / f"{recipe}.yaml") for name, recipe in METHODS.items()}
    monkeypatch.setattr("opasd.cli.demo.METHODS", small)
    models = compare(tmp_path, changes={"max_steps": 1}, problems=12, seed=1)
    assert [model.name for model in models] == ["base", "OPSD", "OPASD"]
    table = capsys.readouterr().out.splitlines()
    assert table[0].split()[:3] == ["accuracy", "against", "base"]
    assert [line.split()[0] for line in table[1:]] == ["base", "OPSD", "OPASD"]
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["problems"] == 12
    assert len(results["models"]["OPASD"]["correct"]) == 12
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="plot"') >= 8
    for part in ("lab test against first", 'id="viewer"', "attention-alignment", "sample-data"):
        assert part in page
    assert (tmp_path / "figures" / "rollout-accuracy.svg").exists()
    assert (tmp_path / "opasd" / "config.yaml").exists()
    assert "attention/divergence" in (tmp_path / "opasd" / "metrics.jsonl").read_text()
    assert "attention/divergence" not in (tmp_path / "opsd" / "metrics.jsonl").read_text()
    # The adapter names its base in a way that holds on another machine.
    assert (
        json.loads((tmp_path / "opasd" / "final" / "adapter_config.json").read_text())["base_model_name_or_path"]
        == "lab"
    )
    merging.merge(tmp_path / "opasd" / "final", tmp_path / "merged")
    assert (tmp_path / "merged" / "model.safetensors").exists()


def test_quick_changes_both_recipes_alike_and_the_long_demo_none(tmp_path, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(demo, "compare", lambda folder, **options: asked.append(options))
    monkeypatch.chdir(tmp_path)
    for words in ([], ["--quick"], ["--quick", "--steps", "2", "--problems", "9"]):
        assert demo.run(words) == 0
    assert asked[0] == {"seed": 42, "changes": {}, "problems": 1200, "remark": ""}
    assert asked[1] == {"seed": 42, "changes": demo.QUICK, "problems": 300, "remark": demo.FIRST_LOOK}
    assert asked[2] == {"seed": 42, "changes": demo.QUICK | {"max_steps": 2}, "problems": 9, "remark": demo.FIRST_LOOK}
    assert capsys.readouterr().out.count("A first look") == 2
    for recipe in METHODS.values():
        long = demo._config(recipe, tmp_path, 42, {}).train
        assert long == load_recipe(recipe).config().train.model_copy(update={"seed": 42, "save_steps": 40})
        assert demo._config(recipe, tmp_path, 42, demo.QUICK).train.max_steps == 10
