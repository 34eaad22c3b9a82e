"""The commands of a run: they give the planned configuration, quoted for a shell and for Slurm."""

import subprocess
import sys
from pathlib import Path

import pytest

from opasd.cli.train import parser
from opasd.errors import ConfigError
from opasd.recipes.fields import value_of
from opasd.run.folder import check_name
from opasd.sweep.commands import as_shell, divided
from opasd.sweep.job import Job, differing_settings
from opasd.sweep.slurm import as_slurm
from opasd.sweep.spec import Changes, load_sweep, sweep_names
from tests.sweep.sweeps import sweep


@pytest.mark.parametrize("name", sweep_names())
def test_the_commands_of_packaged_sweeps_give_the_planned_configurations(name: str, tmp_path: Path) -> None:
    packaged = load_sweep([name])
    assert packaged.description
    for run in packaged.runs:
        check_name(run.name)
        assert run.evaluate is not None
        if not run.evaluate_only:
            _, _, config = parser().parse(Job(run, tmp_path).command("train")[1:])
            assert (config.name, config.output_dir) == (run.name, str(tmp_path))
            assert not differing_settings(config, run.config)


def test_several_processes_take_as_many_problems_in_a_step() -> None:
    cases = {"opasd-qwen3-4b": "train.gradient_accumulation_steps", "lab": "train.per_device_train_batch_size"}
    for name, field in cases.items():
        run = load_sweep([name]).runs[0]
        four = divided(run, 4)
        assert value_of(four.config, field) * 4 == value_of(run.config, field)
        assert Job(four, Path("out"), 4).command("train")[-2:] == ["--num-processes", "4"]
        with pytest.raises(ConfigError, match="can be divided by 7"):
            divided(run, 7)
    base = load_sweep(["lab-base"]).runs[0]
    assert divided(base, 7) is base


def test_a_base_is_evaluated_by_its_name_its_revision_and_its_precision() -> None:
    run = load_sweep(["base-qwen3-1.7b"], Changes({"model.revision": "abc"}, {})).runs[0]
    evaluate = Job(run, Path("out")).command("evaluate")
    assert evaluate[1:8] == ["base", "--model", "Qwen/Qwen3-1.7B", "--revision", "abc", "--dtype", "bfloat16"]


def test_evaluations_of_a_sweep_share_samples_with_each_other_and_with_other_sweeps() -> None:
    evaluate = Job(load_sweep(["lab-base"]).runs[0], Path("out"), sources=[Path("other")]).command("evaluate")
    assert evaluate[-4:] == ["--reuse", "out", "--reuse", "other"]


def test_commands_and_scripts_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "it's a $(touch owned) folder"
    quoted_sweep = sweep("recipe: lab\ngrid: {prompts.system: [\"$(touch owned); `x` 'y'\", plain]}")
    jobs = [Job(run, folder) for run in quoted_sweep.runs]
    script = "opasd() { printf '%s\\0' \"$@\" END; }\n" + as_shell(jobs)
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    lines = [line.split("\0")[:-1] for line in done.stdout.split("END\0")]
    assert lines[0] == jobs[0].command("train")
    assert lines[3] == jobs[1].command("evaluate")
    args = ["my sweep.yaml", "--train.max-steps", "2"]
    slurm = as_slurm("mine", jobs, args, most=3, gpus=2, time="1:00:00", options=["--qos=high"])
    options = [line.removeprefix("#SBATCH ") for line in slurm.splitlines() if line.startswith("#SBATCH")]
    assert {"--array=0-1%3", "--gpus-per-task=2", "--time=1:00:00", "--qos=high"} <= set(options)
    body = slurm.replace(sys.executable, "printf '%s\\n'")
    task = {"SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_JOB_ID": "7", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["bash", "-c", body], env=task, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[3:] == [
        "my sweep.yaml", "--train.max-steps", "2", "--output", str(folder), "--only", "system-plain",
    ]  # fmt: skip
    assert not (tmp_path / "owned").exists()
    with pytest.raises(ConfigError, match="Slurm option"):
        as_slurm("mine", jobs, [], most=None, gpus=1, time="1:00:00", options=["--x\nrm"])


def test_the_evaluation_gets_the_chat_templates_variables() -> None:
    commands = {run.name: Job(run, Path("out")).command("evaluate") for run in load_sweep(["families"]).runs}
    options = {name: [arg for arg in args if arg.startswith("--template-option")] for name, args in commands.items()}
    llama = [name for name in options if "llama" in name and options[name]]
    assert llama
    assert all(options[name] == ["--template-option=date_string=26 Jul 2024"] for name in llama)
