"""Weights spread over processes (FSDP2): two processes give what one gives, for every objective and teacher."""

import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from opasd.errors import ConfigError
from opasd.rollout.adapters import AdapterExport
from opasd.trainer.setup import check_sharding
from tests import processes
from tests.training import PROBLEMS, make_trainer, rows

LONGER = {"rollout": {"max_new_tokens": 30, "temperature": 1.0, "top_k": 0, "top_p": 1.0}, "tokens_per_microbatch": 400}
CASES = {
    "adapters, a process without a problem": {
        "train_dataset": PROBLEMS[:5],
        "optim": "adamw_torch",  # whose state a checkpoint holds
        "learning_rate": 1e-2,
    },
    "all weights, frozen teacher": {"lora": False},
    "all weights, moving average, tokens alone": {
        "lora": False,
        "method": {"objective": {"attention_weight": 0.0}, "teacher": {"update": "ema", "ema_decay": 0.5}},
    },
    "all weights, snapshots": {"lora": False, "method": {"teacher": {"update": "snapshot", "snapshot_every": 1}}},
    "attention alone, live teacher": {
        "method": {"objective": {"token_weight": 0.0}, "teacher": {"update": "live"}},
        "eval_dataset": PROBLEMS[:3],
    },
}
SCRIPT = """
import os, sys
from pathlib import Path
from tests.trainer.test_sharded import train_all
train_all(Path(sys.argv[1]), 2).accelerator.end_training()
sys.stderr.flush()
os._exit(0)  # gloo's threads may abort an interpreter that takes its time to end
"""


def train(folder, case, world, *, resume=False):
    """Train a case for three steps of four problems; each step moves the weights far enough to be seen."""
    method = LONGER | case.get("method", {}) | {"validation": {"every": 2 if "eval_dataset" in case else 0}}
    sharded = {"fsdp": True, "fsdp_config": {"transformer_layer_cls_to_wrap": ["Qwen3DecoderLayer"]}}
    settings = {"optim": "sgd", "learning_rate": 1.0} | case | {"method": method}
    trainer = make_trainer(
        folder, **settings, **(sharded if world > 1 else {}), max_steps=3, save_steps=2, max_grad_norm=0.0,
        per_device_train_batch_size=2, gradient_accumulation_steps=2 // world,
    )  # fmt: skip
    if resume and trainer.is_world_process_zero():
        for name in ("checkpoint-3", "final"):
            shutil.rmtree(folder / name)
    trainer.accelerator.wait_for_everyone()
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def shard_on_cpu():
    """Let accelerate shard: it does so on accelerators alone, but its code for them runs on a CPU as it is."""
    begin = PartialState.__init__

    def begin_as_accelerator(self, *args, **kwargs):
        first = not PartialState._shared_state
        begin(self, *args, **kwargs)
        if first:
            self.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = begin_as_accelerator


def train_all(folder, world):
    """Train all cases in this process; the first process saves the weights."""
    torch.set_num_threads(1)
    if world > 1:
        shard_on_cpu()
    for name, case in CASES.items():
        trainer = train(folder / name, case, world)
        assert any(isinstance(weight, DTensor) for weight in trainer.model.parameters()) == (world > 1)
        if case.get("lora", True):
            exported = AdapterExport(trainer.model, folder / f"exports-{trainer.args.process_index}")
            version = exported.write()
            if trainer.is_world_process_zero():
                shutil.copytree(version, folder.parent / f"adapter-{world}", dirs_exist_ok=True)
        weights = trainer.accelerator.get_state_dict(trainer.model_wrapped)
        if trainer.is_world_process_zero():
            torch.save(weights, folder / name / "weights.pt")
        if world > 1 and case.get("lora", True) and "train_dataset" in case:
            again = train(folder / name, case, world, resume=True)
            resumed = again.accelerator.get_state_dict(again.model_wrapped)
            assert all(torch.equal(resumed[key], weight) for key, weight in weights.items())
            assert [row["step"] for row in rows(folder / name)] == [1, 2, 3]
    return trainer


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder with the runs of one process (`1`) and of two (`2`)."""
    folder = tmp_path_factory.mktemp("sharded")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    launch += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", str(script), str(folder / "2")]
    run = processes.run(launch)
    assert run.returncode == 0, run.stderr[-3000:]
    threads = torch.get_num_threads()
    try:
        train_all(folder / "1", 1)
    finally:
        torch.set_num_threads(threads)
    return folder


@pytest.mark.parametrize("name", CASES)
def test_two_processes_with_shards_equal_one(trained, name):
    alone, divided = (torch.load(trained / world / name / "weights.pt") for world in ("1", "2"))
    assert alone.keys() == divided.keys()
    for key, weight in alone.items():
        torch.testing.assert_close(divided[key], weight, atol=1e-5, rtol=1e-4)
    for first, second in zip(rows(trained / "1" / name), rows(trained / "2" / name), strict=True):
        readings = ({key: value for key, value in row.items() if key != "epoch"} for row in (first, second))
        assert next(readings) == pytest.approx(next(readings), rel=1e-3, abs=1e-6)


def test_the_cases_move_the_weights(trained):
    """Otherwise equal weights would say nothing."""
    for name in CASES:
        first = torch.load(trained / "1" / name / "weights.pt")
        start = make_trainer(trained / "start", **{key: CASES[name][key] for key in CASES[name] if key == "lora"})
        begun = start.model.state_dict()
        assert max(float((first[key] - begun[key]).abs().max()) for key in first) > 1e-3


def test_an_adapter_is_written_whole(trained):
    alone, divided = (load_file(trained / f"adapter-{world}" / "adapter_model.safetensors") for world in (1, 2))
    assert alone.keys() == divided.keys()
    for key, weight in alone.items():
        torch.testing.assert_close(divided[key], weight, atol=1e-5, rtol=1e-4)


def test_sharding_that_would_be_ignored_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="fsdp: there is one process; start several with --num-processes"):
        make_trainer(tmp_path, fsdp=True)


@pytest.mark.parametrize(
    ("plugin", "stage", "message"),
    [
        (None, None, "fsdp: weights are spread over GPUs, and this run is on cpu; leave fsdp out"),
        (SimpleNamespace(fsdp_version=1), None, "use fsdp_version 2"),
        (SimpleNamespace(fsdp_version=2), 3, "deepspeed: ZeRO-3 is not supported; use FSDP2"),
    ],
)
def test_sharding_that_would_not_end_is_refused(plugin, stage, message):
    state = SimpleNamespace(fsdp_plugin=plugin, deepspeed_plugin=SimpleNamespace(zero_stage=stage))
    args = SimpleNamespace(fsdp=True, device=torch.device("cpu"))
    trainer = SimpleNamespace(accelerator=SimpleNamespace(state=state), args=args, is_deepspeed_enabled=stage)
    with pytest.raises(ConfigError, match=message):
        check_sharding(trainer)


def test_the_example_of_a_configuration_asks_for_version_2():
    path = processes.ROOT / "examples" / "clusters" / "fsdp2.yaml"
    settings = ClusterConfig.from_yaml_file(path)
    assert settings.distributed_type == DistributedType.FSDP
    assert settings.fsdp_config["fsdp_version"] == 2
