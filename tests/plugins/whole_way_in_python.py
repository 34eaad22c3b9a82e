"""Run by a test in a process of its own: the whole way of an engineer through the Python API."""

import json
import sys
from pathlib import Path

import own_plugin
import yaml
from peft import LoraConfig
from transformers import TrainerCallback, TrainingArguments

from opasd import LossTerm, OPASDConfig, OPASDTrainer
from opasd.run.records import Records
from tests.plugins.ways import command


class Stopper(TrainerCallback):
    """A callback of the user's own, which ends the run after two steps."""

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2


COLUMNS = {"question": "frage", "solution": "weg", "answer": "antwort"}


def trainer(*, steps, callbacks=(), terms=True, name="python"):
    return OPASDTrainer(
        model="own_model",
        args=TrainingArguments(
            f"runs/{name}", per_device_train_batch_size=1, gradient_accumulation_steps=4, max_steps=steps, save_steps=1,
            learning_rate=1e-3, lr_scheduler_type="constant", use_cpu=True, report_to=["tensorboard"],
        ),
        config=OPASDConfig.model_validate(
            {"rollout": {"max_new_tokens": 6}, "objective": {"token": {"divergence": "hellinger"}}}
        ),
        train_dataset="sums.csv",
        columns=COLUMNS,
        peft_config=LoraConfig(r=4, target_modules=["q_proj", "v_proj"]),
        loss_terms=[LossTerm("small_states", own_plugin.small_states, weight=0.1)] if terms else [],
        grader=own_plugin.contains,
        callbacks=list(callbacks),
    )  # fmt: skip


trainer(steps=3, callbacks=[Stopper()]).train()
config = yaml.safe_load(Path("runs/python/config.yaml").read_text())
assert config["model"]["lora_target_modules"] == ["q_proj", "v_proj"]
assert config["model"]["lora_r"] == 4
assert config["train"]["gradient_accumulation_steps"] == 4
assert config["objective"]["token"]["divergence"] == "hellinger"
assert Path(config["data"]["source"]).is_absolute()
for name in ("environment.json", "data.json", "metrics.jsonl", "final/adapter_config.json", "final/README.md"):
    assert Path("runs/python", name).exists(), name
trainer(steps=3).train(resume_from_checkpoint=True)
steps = [
    row for row in map(json.loads, Path("runs/python/metrics.jsonl").read_text().splitlines()) if "grad_norm" in row
]
assert [row["step"] for row in steps] == [1, 2, 3]
assert all(row["term/small_states"] > 0 for row in steps)

assert list(Path("runs/python").rglob("events.out.tfevents.*")), "TensorBoard's file"
assert config["grader"] == "own_plugin:contains"
assert config["data"]["columns"] | COLUMNS == config["data"]["columns"]

command("evaluate", "base", "runs/python", "--benchmarks", "own_sums", "--grader", "contains", "--samples", "1",
        "--max-new-tokens", "6", "--output", "evaluations/own", "--plugins", "own_plugin")  # fmt: skip
assert json.loads(Path("evaluations/own/settings.json").read_text())["grader"] == "own_plugin:contains"
command("report", "runs/python", "--output", "page")
command("merge", "runs/python", "merged")
assert "frage" not in command("prompt", "runs/python", "--plugins", "own_plugin")

# A command continues a run whose configuration says all of it, and names what a configuration cannot say.
message = command("train", "--resume", "runs/python", "--train.max-steps", "4", "--plugins", "own_plugin", code=2)
assert "made in Python with the loss term small_states" in message, message
trainer(steps=1, terms=False, name="said").train()
command("train", "--resume", "runs/said", "--train.max-steps", "2", "--plugins", "own_plugin")
assert [row["step"] for row in Records(Path("runs/said/metrics.jsonl"))] == [1, 2]
sys.stdout.write("whole way done\n")
