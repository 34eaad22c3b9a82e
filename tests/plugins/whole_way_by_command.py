"""Run by a test in a process of its own, in a folder with an own model, own data and own_plugin.py."""

import json
import sys
from pathlib import Path

from tests.plugins.ways import command as opasd

OWN = ["--plugins", "own_plugin"]


def rows(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


# A recipe that needs the plugin names it; without it the message says what is missing.
Path("own.yaml").write_text(
    """
plugins: [own_plugin]
model: {name_or_path: own_model, lora_r: 4}
data: {source: sums.csv, columns: {question: frage, solution: weg, answer: antwort}}
rollout: {max_new_tokens: 6, temperature: 1.0}
teacher: {update: halfway}
objective:
  token: {divergence: hellinger}
  attention: {divergence: hellinger}
  terms: {small_states: 0.1}
grader: contains
train:
  {max_steps: 2, save_steps: 1, gradient_accumulation_steps: 4, learning_rate: 1.0e-3, report_to: [tensorboard]}
validation: {every: 2, sampling: {max_new_tokens: 6}}
validation_data: {held_out: {source: sums.csv, rows: ":4", columns: {question: frage, solution: null, answer: antwort}}}
save_samples_every: 1
output_dir: runs
name: own
"""
)
Path("lacking.yaml").write_text("objective: {token: {divergence: hellinger}}\n")
assert "plugins: [MODULE]" in opasd("validate", "lacking.yaml", code=2)
assert "no_such_module cannot be imported" in opasd("validate", "lab", "--plugins", "no_such_module", code=2)
assert "hellinger" in opasd("validate", "own.yaml")
assert "hellinger" in opasd("validate", "lacking.yaml", *OWN)
opasd("prompt", "own.yaml")

opasd("train", "own.yaml")
steps = [row for row in rows("runs/own/metrics.jsonl") if "grad_norm" in row]
assert len(steps) == 2
for row in steps:
    assert row["term/small_states"] > 0
    assert 0 < row["term/small_states/tokens"] <= 6
    total = row["token/loss"] + 0.5 * row["attention/divergence"] + 0.1 * row["term/small_states"]
    assert abs(row["loss"] - total) < 1e-4 * total, row

assert list(Path("runs/own").rglob("events.out.tfevents.*")), "TensorBoard's file"
opasd("train", "--resume", "runs/own", "--train.max-steps", "3")
assert len([row for row in rows("runs/own/metrics.jsonl") if "grad_norm" in row]) == 3

out = opasd("evaluate", "base", "runs/own", "--benchmarks", "own_sums", "--grader", "contains", "--samples", "1",
            "--max-new-tokens", "6", "--output", "evaluations/own", *OWN)  # fmt: skip
assert "own_sums" in out
settings = json.loads(Path("evaluations/own/settings.json").read_text())
assert settings["grader"] == "own_plugin:contains"
assert "own_sums" in opasd("evaluate", "--list", *OWN)
assert "module:function" in opasd(
    "evaluate", "base", "runs/own", "--benchmarks", "own_sums", "--grader", "nothing", code=2
)
opasd("report", "runs/own", "--output", "page")
assert "small_states" in Path("page/report.html").read_text()
opasd("merge", "runs/own", "merged")
opasd("train", "own.yaml", "--rollout.engine", "echo", "--name", "echo", "--train.max-steps", "1")
sys.stdout.write("whole way done\n")
