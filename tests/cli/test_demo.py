"""The demo, small: real training on the embedded model, and what it leaves."""

import json
from pathlib import Path

import pytest
import torch

from opasd.cli import demo
from opasd.cli.demo import CHOICES, OPSD, Graded, compare
from opasd.evaluation.answers import Answer
from opasd.model import merging
from opasd.recipes import load_recipe
from opasd.run.records import Records

SMALL = """
extends: lab
data: {sample: 32}
train: {per_device_train_batch_size: 4}
rollout: {max_new_tokens: 48}
validation: {sampling: {max_new_tokens: 48}}
"""
TWO = {name: CHOICES[name] for name in ("λ 0.1", "λ balanced, attention sees the answer")}


def test_the_demo_trains_chooses_compares_and_writes(tmp_path, tmp_path_factory, capsys):
    recipe = tmp_path_factory.mktemp("recipes") / "small.yaml"
    recipe.write_text(SMALL)
    options = {"changes": {"max_steps": 1}, "problems": 12, "validation": 6, "choices": TWO, "seed": 1}
    models = compare(tmp_path, recipe=str(recipe), **options)
    names = ["base", "base, greedy", "OPSD", "OPASD"]
    assert [model.name for model in models] == names
    tables, kinds, texts = capsys.readouterr().out.split("\n\n")
    assert tables.split()[:3] == ["accuracy", "against", "base"]
    assert [line.startswith(name) for line, name in zip(tables.splitlines()[1:], names, strict=True)] == [True] * 4
    assert kinds.splitlines()[0].split("  ")[-3:] == ["forgot the rule", "wrong start count", "other mistake"]
    assert "the best on 6 validation problems (λ 0.1:" in texts
    assert "Greedy" in texts
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["problems"], set(results["validation"])) == (12, set(TWO))
    assert len(results["models"]["OPASD"]["correct"]) == 12
    for model in models:
        wrong = 100 - 100 * sum(model.correct) / 12
        assert sum(results["models"][model.name]["mistakes"].values()) == pytest.approx(wrong)
    page = (tmp_path / "report.html").read_text()
    assert page.count('class="plot"') >= 8
    for part in ("lab test against first", 'id="viewer"', "attention-alignment", "sample-data", "forgot the rule"):
        assert part in page
    assert (tmp_path / "figures" / "rollout-accuracy.svg").exists()
    assert "attention/divergence" not in (tmp_path / "opsd" / "metrics.jsonl").read_text()
    chosen = models[-1].path
    assert (
        chosen == tmp_path / f"opasd-{1 + list(TWO).index(max(results['validation'], key=results['validation'].get))}"
    )
    for folder in ("opasd-1", "opasd-2"):
        row = next(iter(Records(tmp_path / folder / "metrics.jsonl")))
        assert 0 < row["attention/needed_mass"] < 1
        assert 0 < row["attention/needed_target"] < 1
        assert 0 < row["attention/gradient_share"] < 1
    # The adapter names its base in a way that holds on another machine.
    assert json.loads((chosen / "final" / "adapter_config.json").read_text())["base_model_name_or_path"] == "lab"
    merging.merge(chosen / "final", tmp_path / "merged")
    assert (tmp_path / "merged" / "model.safetensors").exists()


def test_quick_changes_all_trainings_alike_and_the_long_demo_the_steps_alone(tmp_path, monkeypatch, capsys):
    asked, threads = [], []

    def compared(folder, **options):
        asked.append(options)
        threads.append(torch.get_num_threads())

    monkeypatch.setattr(demo, "compare", compared)
    monkeypatch.chdir(tmp_path)
    before = torch.get_num_threads()
    for words in ([], ["--quick"], ["--quick", "--steps", "2", "--problems", "9"]):
        assert demo.run(words) == 0
    assert (threads, torch.get_num_threads()) == ([1, 1, 1], before)
    one = {"λ 0.1": CHOICES["λ 0.1"]}
    assert asked[0] == {"seed": 42, "changes": demo.STEPS, "problems": 1200, "choices": CHOICES, "remark": ""}
    assert asked[1] == {
        "seed": 42, "changes": demo.QUICK, "problems": 300, "choices": one, "remark": demo.FIRST_LOOK
    }  # fmt: skip
    assert asked[2] == asked[1] | {"changes": demo.QUICK | {"max_steps": 2}, "problems": 9}
    recipe = load_recipe("lab").config()
    for settings in (OPSD, *CHOICES.values()):
        config = demo._config("lab", tmp_path, 42, demo.STEPS, settings)
        assert config.train == recipe.train.model_copy(update={"seed": 42, "max_steps": 15, "save_steps": 15})
        assert config.objective.token == recipe.objective.token
        assert demo._config("lab", tmp_path, 42, demo.QUICK, settings).train.max_steps == 10


@pytest.mark.parametrize(("greedy", "says"), [(6, True), (3, False)])
def test_what_is_sharpening_is_said(greedy, says):
    def graded(name, right):
        return Graded(name, [Answer(str(n), 0, (1,), "", "stop", n < right) for n in range(10)], Path())

    models = [graded("base", 2), graded("base, greedy", greedy), graded("OPSD", 8)]
    texts = demo._findings(models, "λ 0.1", {"λ 0.5": 40.0, "λ 0.1": 70.0}, 600)
    assert texts[0] == "OPASD has λ 0.1, the best on 600 validation problems (λ 0.5: 40.0 %; λ 0.1: 70.0 %)."
    assert ("most of OPSD's gain" in texts[1]) == says
