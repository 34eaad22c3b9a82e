"""The ready configurations of examples/clusters: each is read by what it is for, and its scripts do what they say."""

import json
import os
import re
import shlex
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import DistributedType

from opasd.cli.train import parser
from tests.processes import PATIENCE, ROOT, wait_until

CLUSTERS = ROOT / "examples" / "clusters"
COMMANDS = dict(
    re.findall(r"^\| ([^|]+) \| [^|]+ \| `([^`]+)` \|$", (CLUSTERS / "README.md").read_text(), re.MULTILINE)
)
SCRIPTS = sorted(path.name for path in CLUSTERS.glob("*.sh"))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_every_command_is_read(command, monkeypatch):
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)
    if words[0] == "accelerate":
        options = launch_command_parser().parse_args(words[2:])
        assert options.module
        assert Path(options.config_file).is_file()
        assert options.training_script == "opasd.cli"
        words = ["opasd", *options.training_script_args]
    elif words[0] == "sbatch":
        script, rest = Path(words[1]), words[3:]
        assert script.is_file()
        model = "rollout-nodes" in script.name
        assert not model or rest[0] == parser().parse([*rest[1:]])[2].model.name_or_path
        words = ["opasd", "train", *rest[model:]]
    elif words[0] == "sky":
        assert Path(words[3]).is_file()
        return
    _, _, config = parser().parse(words[2:])
    assert config.data.source == "mine.jsonl"
    per_process = config.train.per_device_train_batch_size * config.train.gradient_accumulation_steps
    processes = 16 if "/nodes.sh" in command else 8 if "clusters" in command else 1
    assert per_process * processes == 64  # the paper's problems of a step
    if deepspeed := config.train.extra.get("deepspeed"):
        assert f"zero{json.loads(Path(deepspeed).read_text())['zero_optimization']['stage']}.json" in deepspeed


def test_every_file_has_its_row():
    text = (CLUSTERS / "README.md").read_text()
    assert all(f"`{path.name}`" in text for path in CLUSTERS.iterdir() if path.name != "README.md")


@pytest.mark.parametrize(
    ("name", "kind", "machines", "processes"),
    [("ddp", "MULTI_GPU", 1, 8), ("fsdp2", "FSDP", 1, 8), ("two-nodes", "FSDP", 2, 16)],
)
def test_accelerate_reads_the_configurations(name, kind, machines, processes):
    settings = ClusterConfig.from_yaml_file(CLUSTERS / f"{name}.yaml")
    assert settings.distributed_type == DistributedType[kind]
    assert (settings.num_machines, settings.num_processes) == (machines, processes)
    if kind == "FSDP":
        assert settings.fsdp_config["fsdp_version"] == 2


STAND_INS = {
    "scontrol": 'if [ "$1" = show ]; then printf "a\\nb\\n"; else echo "$*" >> requeued; fi',
    "squeue": "cat state",
    "srun": 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"',
    "vllm": "echo $* >> servers; exec sleep 1000",
    "accelerate": 'exec opasd "$@"',
    "opasd": 'trap "exit 75" TERM; for word; do echo "$word"; done > words.new; mv words.new words; '
    "while :; do sleep 0.02; done",
}


@pytest.fixture
def place(tmp_path):
    (tmp_path / "bin").mkdir()
    for name, body in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_that_is_told_to_stop_goes_back_into_the_queue(place, script, state):
    """If its job runs; one that is being cancelled does not."""
    (place / "state").write_text(state)
    (place / "runs" / "old").mkdir(parents=True)
    (place / "runs" / "old" / "config.yaml").touch()
    own = {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "x",
           "SLURM_NODEID": "0", "SLURM_GPUS_ON_NODE": "8"}  # fmt: skip
    rest = ["base", "recipe"] if script.startswith("rollout") else ["recipe"]
    for name, expected in (("new", ["recipe", "--name", "new"]), ("old", ["--resume", "runs/old"])):
        (place / "words").unlink(missing_ok=True)
        command = ["bash", str(CLUSTERS / script), name, *rest]
        with subprocess.Popen(command, cwd=place, env=own, start_new_session=True) as process:
            wait_until((place / "words").exists, process)
            words = (place / "words").read_text().splitlines()
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 75
            with suppress(ProcessLookupError):  # what Slurm does at the end: the servers' node is its own
                os.killpg(process.pid, signal.SIGKILL)
        place_of = words.index("train") + 1
        assert words[place_of : place_of + len(expected)] == expected
        if "--main_process_ip" in words:
            assert words[words.index("--main_process_ip") + 1] == "a"
    requeued = (place / "requeued").read_text().split() if (place / "requeued").exists() else []
    assert requeued == (["requeue", "7"] * 2 if state == "RUNNING" else [])


def test_the_file_for_skypilot(place):
    task = yaml.safe_load((CLUSTERS / "sky.yaml").read_text())
    assert set(task) == {"name", "resources", "workdir", "envs", "file_mounts", "setup", "run"}
    assert set(task["resources"]) <= {"accelerators", "use_spot", "disk_size"}
    assert {mount["mode"] for mount in task["file_mounts"].values()} == {"MOUNT_CACHED"}  # others cannot rename folders
    script = task["run"].replace("/runs", str(place / "bucket"))
    (place / "bin" / "opasd").write_text('#!/bin/bash\necho "$*" >> said\n')
    own = {**task["envs"], "PATH": f"{place / 'bin'}:/usr/bin:/bin", "SKYPILOT_NUM_GPUS_PER_NODE": "8"}
    for _ in range(2):
        subprocess.run(["bash", "-eu", "-c", script], cwd=place, env=own, check=True)
        (place / "bucket" / "first").mkdir(parents=True, exist_ok=True)
        (place / "bucket" / "first" / "config.yaml").touch()
    new, resumed = (place / "said").read_text().splitlines()
    _, _, config = parser().parse(new.split()[1:])
    assert (config.name, config.output_dir) == ("first", str(place / "bucket"))
    assert config.train.gradient_accumulation_steps == 8
    assert resumed == f"train --resume {place / 'bucket' / 'first'} --num-processes 8"
