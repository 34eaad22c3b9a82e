"""What the vLLM engines refuse, and what can be seen of them without vLLM; real vLLM is in tests/vllm."""

import ast
import json
import os
import random
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig, get_peft_model

import opasd
from opasd.cli._preview import preview
from opasd.config import RolloutConfig, RunConfig
from opasd.errors import ConfigError
from opasd.rollout.adapters import check_whole
from opasd.rollout.factory import make_engine
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.vllm.in_process import process_group_kept, undisturbed
from opasd.rollout.vllm.server import ServerEngine
from opasd.trainer import session
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


def test_weights_of_zero_3_are_refused():
    model = get_peft_model(make_model(), LoraConfig(r=2, target_modules=["q_proj"]))
    check_whole(model)
    next(p for p in model.parameters() if p.requires_grad).ds_id = 3
    with pytest.raises(ConfigError, match="ZeRO-3"):
        check_whole(model)


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
