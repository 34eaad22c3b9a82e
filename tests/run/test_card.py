"""The model card: what was measured is in it, and a hub can read it."""

import json
import re

import pytest
from huggingface_hub import ModelCard

from opasd.config import RunConfig
from opasd.run.card import model_card


def make_row(step: int, **metrics: float | None) -> dict[str, float | None]:
    return {"step": step, "grad_norm": 1.0, "loss": 1.0 / step, "tokens/generated": 100 * step, "flops/rollout": 1e9,
            "flops/student": 2e9, **metrics}  # fmt: skip


def make_config(**sections) -> RunConfig:
    return RunConfig.model_validate({"model": {"name_or_path": "Qwen/Qwen3-1.7B"}, "name": "my-run", **sections})


def table(card: str) -> dict[str, list[str]]:
    """The tables' rows by their first cell."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in card.splitlines() if line.startswith("|")]
    assert len({len(row) for row in rows}) == 1
    return {row[0]: row[1:] for row in rows}


def test_the_head_is_what_a_hub_reads():
    data = ModelCard(model_card(make_config(), [make_row(1)])).data.to_dict()
    assert data["base_model"] == "Qwen/Qwen3-1.7B"
    assert data["library_name"] == "peft"
    assert "opasd" in data["tags"]
    assert data["pipeline_tag"] == "text-generation"
    assert data["datasets"] == ["siyanzhao/Openthoughts_math_30k_opsd"]
    full = ModelCard(model_card(make_config(model={"adaptation": "full"}), [])).data.to_dict()
    assert full["library_name"] == "transformers"


@pytest.mark.parametrize(
    "source", ["lab", "sums.jsonl", "data/sums.jsonl", "data/sums.csv.gz", "/data/sums", "data/sums"]
)
def test_only_a_data_set_of_the_hub_is_named_as_one(source, tmp_path, monkeypatch):
    """The hub refuses a card that names what cannot be a data set there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "sums").mkdir(parents=True)
    assert "datasets" not in ModelCard(model_card(make_config(data={"source": source}), [])).data.to_dict()


@pytest.mark.parametrize("name", ["lab", "a name: # with 'odd' \"signs\"", "- x", "[y]", "1e3", "数/型"])
def test_any_name_of_a_base_survives(name):
    data = ModelCard(model_card(make_config(model={"name_or_path": name}), [])).data.to_dict()
    assert data["base_model"] == name


@pytest.mark.parametrize("folder", ["/home/someone", "~/x y", "./there", "C:\\Users\\someone"])
def test_no_path_of_the_machine(folder):
    paths = {
        "model": {"name_or_path": f"{folder}/own_model"},
        "data": {"source": f"{folder}/sums.csv"},
        "validation_data": {"held_out": {"source": f"{folder}/more.jsonl"}},
        "output_dir": f"{folder}/runs",
        "rollout": {"servers": {"adapter_dir": f"{folder}/shared"}},
        "train": {"extra": {"deepspeed": f"{folder}/zero.json", "optim": "adamw_torch"}},
        "prompts": {"instruction": "/think first, then answer"},
    }
    card = model_card(make_config(**paths), [make_row(1)])
    assert folder not in card
    assert json.dumps(folder)[1:-1] not in card
    assert "own_model after 1 steps" in card
    assert "self-distillation on sums.csv" in card
    assert "base_model" not in ModelCard(card).data.to_dict()
    for kept in ("more.jsonl", "zero.json", "adamw_torch", "/think first, then answer"):
        assert kept in card


def test_first_and_last_steps_are_averaged():
    """Over a quarter of the steps, 20 at most."""
    rows = [make_row(step, **{"rollout/accuracy": step / 10}) for step in range(1, 9)]
    cells = table(model_card(make_config(), rows))
    assert cells["loss"] == ["0.7500", f"{(1 / 7 + 1 / 8) / 2:.4f}"]
    assert cells["rollout accuracy"] == ["0.150", "0.750"]
    assert "token loss" not in cells
    many = [make_row(1, loss=float(step >= 20)) for step in range(200)]
    assert table(model_card(make_config(), many))["loss"] == ["0.0000", "1.0000"]


def test_totals():
    card = model_card(make_config(), [make_row(step) for step in range(1, 51)])
    assert "after 50 steps" in card
    assert f"Tokens generated: {100 * sum(range(1, 51)):,}." in card
    assert "Estimated operations: 1.50e+11." in card


def test_metrics_that_were_not_finite_are_left_out():
    """Records hold null for them."""
    rows = [make_row(1, loss=None), make_row(2), make_row(3), {"step": 3, "validation/a/avg@1": None}]
    assert table(model_card(make_config(), rows))["loss"] == ["0.5000", "0.3333"]
    assert "loss" not in table(model_card(make_config(), [make_row(1, loss=None)]))


def test_a_run_without_steps():
    card = model_card(make_config(), [])
    assert "after 0 steps" in card
    assert "Tokens generated: 0." in card


def test_validation_rows():
    rows = [{"step": 0, "validation/aime/avg@4": 0.25, "validation/aime/length_mean": 812.0}, make_row(1),
            {"step": 25, "validation/aime/avg@4": 0.3125}]  # fmt: skip
    card = model_card(make_config(), rows)
    assert "| 0 | aime/avg@4 | 0.25 |" in card
    assert "| 0 | aime/length_mean | 812 |" in card
    assert "| 25 | aime/avg@4 | 0.3125 |" in card
    assert "## Validation" not in model_card(make_config(), [make_row(1)])


@pytest.mark.parametrize(
    ("weights", "method"),
    [((1, 0.5), "OPASD"), ((1, 0), "OPSD"), ((0, 1), "attention-level")],
)
def test_the_method_is_named(weights, method):
    config = make_config(objective={"token_weight": weights[0], "attention_weight": weights[1]})
    assert re.search(rf"steps of {method}\b.* self-distillation", model_card(config, []))


def test_the_configuration_can_be_read_back():
    config = make_config(prompts={"instruction": "```\nnot the end\n```"}, train={"max_steps": 7})
    card = model_card(config, [make_row(1)])
    fenced = card.split("```json\n")[1].rpartition("\n```\n")[0]
    assert RunConfig.model_validate(json.loads(fenced)) == config
    assert card.count("\n```") == 2  # JSON keeps a line break escaped: nothing inside ends the block
