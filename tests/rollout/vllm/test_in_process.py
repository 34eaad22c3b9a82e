"""What the vLLM engines refuse, and what can be seen of them without vLLM; real vLLM is in tests/vllm."""

import ast
import json
import os
import random
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist

import opasd
from opasd.cli._preview import preview
from opasd.config import RolloutConfig, RunConfig
from opasd.errors import ConfigError
from opasd.rollout.factory import make_engine
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.vllm.in_process import process_group_kept, undisturbed
from opasd.rollout.vllm.server import ServerEngine
from opasd.trainer import session
from tests import nursery
from tests.models import add_lora
from tests.training import PROBLEMS, TOKENIZER, make_model

SERVERS = {"engine": "vllm_server", "servers": {"urls": ["http://localhost:1"]}}


def engine(model, longest=100, **settings):
    return make_engine(RolloutConfig.model_validate(settings), model, TOKENIZER, longest=longest)


def test_one_file_imports_vllm():
    """The rest must work without it."""
    importing = set()
    for path in Path(opasd.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            if any(name.split(".")[0] == "vllm" for name in names):
                importing.add(path.name)
    assert importing == {"in_process.py"}


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_one_message_says_so(tmp_path):
    model = make_model()
    model.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="pip install 'opasd\\[vllm\\]'"):
        engine(type(model).from_pretrained(tmp_path), engine="vllm")
    config = RunConfig.model_validate({"rollout": {"engine": "vllm"}, "model": {"name_or_path": "lab"}})
    assert any("pip install 'opasd[vllm]'" in error for error in preview(config, 1)["errors"])


def test_the_process_group_outlives_what_would_destroy_it(tmp_path):
    """vLLM destroys its own groups and the default one; the run still counts over its processes after that."""
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        own = dist.new_group([0])
        with process_group_kept():
            dist.destroy_process_group(own)
            dist.destroy_process_group()
        dist.all_reduce(torch.ones(1))
    finally:
        dist.destroy_process_group()
    assert not dist.is_initialized()


def test_a_run_is_saved_before_its_engine_is_closed(tmp_path, monkeypatch):
    """An engine may take along what saving needs."""
    make_model().save_pretrained(tmp_path / "model")
    TOKENIZER.save_pretrained(tmp_path / "model")
    rows = [{"problem": p.question, "solution": p.solution, "answer": p.answer} for p in PROBLEMS]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    seen = []
    monkeypatch.setattr(TransformersEngine, "close", lambda _: seen.append((tmp_path / "run/final").is_dir()))
    config = RunConfig.model_validate(
        {
            "model": {"name_or_path": str(tmp_path / "model"), "lora_r": 2},
            "data": {"source": str(tmp_path / "sums.jsonl")},
            "validation_data": {},
            "rollout": {"max_new_tokens": 2},
            "train": {
                "max_steps": 1,
                "per_device_train_batch_size": 2,
                "gradient_checkpointing": False,
                "extra": {"use_cpu": True},
            },
        }
    )
    assert session.train(config, tmp_path / "run") == "finished"
    assert seen == [True]


def test_what_each_engine_is():
    model = make_model()
    assert isinstance(engine(model), TransformersEngine)
    served = engine(add_lora(model), **SERVERS)
    assert isinstance(served, ServerEngine)
    assert served.longest == 100
    assert engine(add_lora(make_model()), longest=10**6, **SERVERS).longest == 4096  # the model's context
    assert engine(add_lora(make_model()), max_model_len=8000, **SERVERS).longest == 8000


def test_a_model_from_nowhere_cannot_be_loaded_again():
    with pytest.raises(ConfigError, match="save it with save_pretrained"):
        engine(make_model(), engine="vllm")


def test_a_server_takes_no_whole_weights():
    with pytest.raises(ConfigError, match="takes adapters only"):
        engine(make_model(), **SERVERS)
    config = RunConfig.model_validate({"rollout": SERVERS, "model": {"name_or_path": "lab", "adaptation": "full"}})
    assert any("cannot sample from model.adaptation: full" in error for error in preview(config, 1)["errors"])


@pytest.mark.parametrize("settings", [SERVERS, {"engine": "vllm"}])
def test_a_quantized_base_is_not_what_vllm_would_load(settings):
    model = make_model()
    model.config.quantization_config = {"load_in_4bit": True}
    with pytest.raises(ConfigError, match="the student's is quantized"):
        engine(model, **settings)
    config = RunConfig.model_validate({"rollout": settings, "model": {"name_or_path": "lab", "adaptation": "qlora"}})
    assert any("cannot sample from model.adaptation: qlora" in error for error in preview(config, 1)["errors"])


def test_servers_must_be_named():
    with pytest.raises(ValueError, match="needs servers.urls"):
        RolloutConfig.model_validate({"engine": "vllm_server"})


SHARING = """
import sys
import torch.distributed as dist
import opasd.rollout.vllm.in_process as module
from opasd.config import SamplingConfig
from tests.rollout.vllm.test_in_process import StandIn, engine, make_model
dist.init_process_group("gloo")
sys.modules["vllm"], module.find_spec = StandIn, str
made = engine(type(make_model()).from_pretrained(sys.argv[1]), engine="vllm", vllm={"tensor_parallel": 2})
rank = dist.get_rank()
for counts in ([1, 3, 0, 2], [0, 0, 0, 0]):
    prompts = [[10 * rank + n, n] for n in range(counts[rank])]
    got = made.generate(prompts, SamplingConfig(max_new_tokens=2), [7 * rank + n for n in range(counts[rank])])
    assert [c.ids for c in got] == [(10 * rank + n, 7 * rank + n) for n in range(counts[rank])], got
neighbours = rank // 2 * 2
assert StandIn.asked == [[10 * r for r in (neighbours, neighbours + 1) for n in range([1, 3, 0, 2][r])]], StandIn.asked
assert StandIn.settings["tensor_parallel_size"] == 2
assert StandIn.settings["distributed_executor_backend"] == "external_launcher"
assert not made.stops_alone
print("checked")
"""


class StandIn:
    """In the place of the module vllm: it answers a prompt with its first token and the request's seed."""

    settings: ClassVar[dict] = {}
    asked: ClassVar[list] = []
    SamplingParams = dict

    class LLM:
        def __init__(self, **settings):
            StandIn.settings = settings

        def generate(self, prompts, requests, **_):
            firsts = [prompt["prompt_token_ids"][0] for prompt in prompts]
            StandIn.asked.append([first // 10 * 10 for first in firsts])
            pairs = zip(firsts, requests, strict=True)
            outputs = (SimpleNamespace(token_ids=[first, own["seed"]], logprobs=None) for first, own in pairs)
            return [SimpleNamespace(outputs=[output]) for output in outputs]

        def collective_rpc(self, *_, **__):
            pass

        reset_prefix_cache = apply_model = collective_rpc


def test_processes_that_share_vllms_weights_ask_together(tmp_path):
    """Four processes, two copies of the weights: each pair asks for what both want, and each gets its own."""
    make_model().save_pretrained(tmp_path)
    for done in nursery.run_together(4, "-c", SHARING, str(tmp_path)):
        assert done.returncode == 0, done.stderr[-3000:]
        assert "checked" in done.stdout


def test_weights_are_shared_by_a_number_that_divides_the_processes(tmp_path):
    settings = {"engine": "vllm", "vllm": {"tensor_parallel": 2}}
    make_model().save_pretrained(tmp_path)
    message = "rollout.vllm.tensor_parallel: got 2, which does not divide the number of processes, 1; start 2"
    with pytest.raises(ConfigError, match=message):
        engine(type(make_model()).from_pretrained(tmp_path), **settings)
    config = RunConfig.model_validate({"rollout": settings, "model": {"name_or_path": "lab"}})
    found = [[error for error in preview(config, count)["errors"] if "tensor_parallel" in error] for count in (3, 4)]
    assert [len(errors) for errors in found] == [1, 0]


@pytest.mark.parametrize(
    ("processes", "timeout", "extra", "refused"),
    [(1, 1800, {}, False), (2, 1799, {}, False), (2, 1800, {}, True), (2, 1800, {"ddp_timeout": 3600}, False)],
)
def test_a_request_ends_before_other_processes_give_up(processes, timeout, extra, refused):
    servers = SERVERS | {"servers": SERVERS["servers"] | {"timeout": timeout}}
    config = RunConfig.model_validate({"rollout": servers, "train": {"extra": extra}, "model": {"name_or_path": "lab"}})
    errors = [error for error in preview(config, processes)["errors"] if "servers.timeout" in error]
    assert len(errors) == refused
    assert all("lower it, or raise train.extra.ddp_timeout" in error for error in errors)


def test_which_precision_decides():
    served = engine(add_lora(make_model()), vllm={"dtype": "bfloat16"}, **SERVERS)
    assert served.half_precision
    assert not engine(add_lora(make_model()), **SERVERS).half_precision
    assert not engine(make_model()).half_precision


def test_what_is_disturbed_is_put_back(monkeypatch):
    monkeypatch.setenv("OPASD_KEPT", "1")
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    threads = torch.set_num_threads
    with undisturbed():
        torch.manual_seed(99)
        random.seed(99)
        np.random.seed(99)  # noqa: NPY002
        torch.set_num_threads = print
        os.environ |= {"OPASD_ADDED": "1", "OPASD_KEPT": "2", "VLLM_OPASD": "1"}
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.random.get_state()[1].tolist() == before[2]  # noqa: NPY002
    assert torch.set_num_threads is threads
    assert "OPASD_ADDED" not in os.environ
    assert os.environ["OPASD_KEPT"] == "1"
    assert os.environ.pop("VLLM_OPASD") == "1"
