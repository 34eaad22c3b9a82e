"""Run by a test in a process of its own: the examples, the notebook's cells and the code of docs/extending.md."""

import json
import os
import re
import sys
import tomllib
from pathlib import Path

REPOSITORY = Path(os.environ["OPASD_REPOSITORY"])
sys.path[:0] = [str(REPOSITORY / "examples"), str(Path.cwd())]

import own_callback  # noqa: E402
import own_data  # noqa: E402
import own_divergence  # noqa: E402
import own_engine  # noqa: E402
import own_loss_term  # noqa: E402

from opasd import plugins  # noqa: E402
from opasd.run.records import Records  # noqa: E402
from tests.plugins.ways import command  # noqa: E402


def steps(run):
    return [row for row in Records(Path(run) / "metrics.jsonl") if "grad_norm" in row]


# ---- examples -------------------------------------------------------------------------------------------------------
own_data.main(steps=1)
assert len(steps("runs/own_data")) == 1
assert any("validation/validation/avg@1" in row for row in Records(Path("runs/own_data/metrics.jsonl")))
own_divergence.main(steps=1)
assert steps("runs/own_divergence")[0]["token/loss"] > 0
(row,) = steps(own_loss_term.main(steps=1).folder)
assert abs(row["term/confidence"] + row["term/confidence/entropy"]) < 1e-4
assert row["term/confidence/entropy"] > 0
assert own_engine.main(steps=1).engine.sampler.drawn == 8
assert len(steps(own_callback.main(steps=3, tokens=1).folder)) == 1
assert Path("runs/own_callback/final/README.md").exists()

# ---- the notebook ---------------------------------------------------------------------------------------------------
notebook = json.loads((REPOSITORY / "examples/first_run.ipynb").read_text())
assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
names = {}
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        assert cell["outputs"], cell["id"]
        source = "".join(cell["source"])
        exec(compile(re.sub(r"STEPS = \d+", "STEPS = 1", source), cell["id"], "exec"), names)
assert len(steps("runs/first")) == 1

# ---- the page -------------------------------------------------------------------------------------------------------
page = (REPOSITORY / "docs/extending.md").read_text()
module, in_python = page.split("\n## In Python\n")
blocks = {kind: re.findall(rf"```{kind}\n(.*?)```", module, re.DOTALL) for kind in ("python", "yaml", "toml")}
assert len(blocks["python"]) == 6
Path("own.py").write_text("\n\n".join(blocks["python"]))
Path("own.yaml").write_text(blocks["yaml"][0])
Path("sums.csv").write_text(
    "frage,weg,antwort\n" + "".join(f"was ist {a} + 1?,{a} + 1 = {a + 1},{a + 1}\n" for a in range(4))
)

# The entry point, as an installed package would declare it: every command knows the names without --plugins.
about = Path("own-1.0.dist-info")
about.mkdir()
(about / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
(declared,) = tomllib.loads(blocks["toml"][0])["project"]["entry-points"].items()
lines = "".join(f"{name} = {target}\n" for name, target in declared[1].items())
(about / "entry_points.txt").write_text(f"[{declared[0]}]\n{lines}")
assert plugins.LOADED.isdisjoint({"own"})
plugins.load_installed()
assert "own" in plugins.LOADED
assert "own_sums" in command("evaluate", "--list")

# The recipe.
small = ["--train.max-steps", "1", "--train.gradient-accumulation-steps", "2", "--validation.every", "0"]
small += ["--train.per-device-train-batch-size", "2", "--data.sample", "8"]  # the recipe's 64 problems show no more
command("train", "own.yaml", "--name", "recipe", *small)
(row,) = steps("runs/recipe")
assert row["term/small_states"] > 0
assert row["rollout/length_mean"] == 4
(code,) = re.findall(r"```python\n(.*?)```", in_python, re.DOTALL)
exec(compile(code, "extending.md", "exec"), {})
(row,) = steps("runs/python")
assert row["term/short_states"] > 0
assert "accuracy" in str(row)
sys.stdout.write("examples and docs done\n")
