"""`opasd plan`: what a run needs, from its configuration alone."""

import importlib
import json
from pathlib import Path

import pytest

from tests.commands import opasd

REPOSITORY = Path(__file__).parents[2]


def planned(tmp_path, *words):
    result = opasd(tmp_path, "plan", *words, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_recipe_of_the_paper_fits_an_h200(tmp_path):
    result = opasd(tmp_path, "plan", "opasd-qwen3-4b")
    assert result.returncode == 0
    assert "Qwen/Qwen3-4B: 4.02 B parameters" in result.stdout
    assert "fits 131.3" in result.stdout
    assert list(tmp_path.iterdir()) == []


def test_numbers_add_up(tmp_path):
    plan = planned(tmp_path, "opasd-qwen3-8b", "--gpus", "4", "--train.gradient-accumulation-steps", "16")
    memory = plan["memory"]
    larger = max(sum(memory["rollout"].values()), sum(memory["update"].values()))
    assert memory["peak"] == pytest.approx(sum(memory["held"].values()) + larger)
    assert memory["peak"] < memory["needed"] < memory["available"]
    assert plan["tokens"]["sampled"] == 64 * 2048
    assert plan["seconds"]["run"] == pytest.approx(200 * plan["seconds"]["step"])


def test_advice_makes_the_run_fit(tmp_path):
    words = [
        "opasd-qwen3-8b",
        "--gpu",
        "rtx-5090",
        "--rollout.max-new-tokens",
        "2048",
        "--train.no-gradient-checkpointing",
    ]
    plan = planned(tmp_path, *words)
    assert not plan["memory"]["fits"]
    assert any("train.gradient_checkpointing: true" in text for text in plan["advice"])
    plan = planned(tmp_path, *words[:-1])
    assert not plan["memory"]["fits"]
    [advice] = [text for text in plan["advice"] if "tokens_per_microbatch" in text]
    tokens = advice.rsplit(" ", 1)[-1]
    assert planned(tmp_path, *words[:-1], "--tokens-per-microbatch", tokens)["memory"]["fits"]


def test_more_rollouts_at_a_time_are_advised_where_they_fit(tmp_path):
    plan = planned(tmp_path, "opasd-qwen3-4b")
    assert "rollout.max_batch: 64 fits too" in plan["advice"][0]
    faster = planned(tmp_path, "opasd-qwen3-4b", "--rollout.max-batch", "64")
    assert faster["memory"]["fits"]
    assert faster["seconds"]["rollout"] < plan["seconds"]["rollout"]


def test_long_prompts_are_for_vllm(tmp_path):
    words = ["opasd-qwen3-1.7b", "--prompt-tokens"]
    assert any("rollout.engine: vllm" in text for text in planned(tmp_path, *words, "16000")["advice"])
    assert not any("rollout.engine: vllm" in text for text in planned(tmp_path, *words, "2048")["advice"])


def test_sampling_time_is_that_of_the_record(tmp_path):
    """Decoding was fitted on these runs; a change of the formula must not lose them."""
    rows = json.loads((REPOSITORY / "benchmarks/results/plan-h200.json").read_text())["rows"]
    for row in rows:
        if row["part"] == "rollout":
            name, length = f"opasd-qwen3-{row['model']}", str(row["length"])
            words = [name, "--response-tokens", length, "--rollout.max-new-tokens", length]
            words += ["--train.gradient-accumulation-steps", str(row["rows"])]
            assert planned(tmp_path, *words)["seconds"]["rollout"] == pytest.approx(row["seconds"], rel=0.15)


def test_a_folder_and_the_embedded_model_are_planned_for(tmp_path):
    assert planned(tmp_path, "lab")["parameters"] < 5e6
    (tmp_path / "own").mkdir()
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    (tmp_path / "own/config.json").write_text(json.dumps(sizes))
    assert planned(tmp_path, "--model.name-or-path", "own")["parameters"] > 64 * 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "abacus"], "--gpu: got 'abacus'; give one of h200"),
        (["--gpus", "0"], "--gpus: got 0; give 1 or more"),
        (["--response-tokens", "-1"], "--response-tokens: got -1"),
        (["--model.name-or-path", "some/model"], "config.json of 'some/model' is not on this machine"),
    ],
)
def test_mistakes_are_explained(tmp_path, words, message):
    result = opasd(tmp_path, "plan", *words)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_a_folder_without_sizes_is_refused(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.json").write_text('{"hidden_size": "wide"}')
    result = opasd(tmp_path, "plan", "--model.name-or-path", "own")
    assert result.returncode == 2
    assert "own: its config.json has no hidden_size" in result.stderr


def test_the_documentation_has_the_table_of_the_record(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY / "benchmarks")
    table = importlib.import_module("plan").compare(str(REPOSITORY / "benchmarks/results/plan-h200.json"))
    assert table in (REPOSITORY / "docs/planning.md").read_text()
