"""DeepSpeed's settings, and models that ZeRO-3 divides; `test_sharded` trains with it."""

import weakref
from types import SimpleNamespace

import pytest
import torch
from transformers.integrations import deepspeed

from opasd.config import ModelConfig
from opasd.errors import ConfigError
from opasd.model.loading import load_model
from opasd.trainer import zero
from tests.training import make_model, make_trainer


def trainer(stage=2, settings=None, mismatches=()):
    config = {"zero_optimization": {"stage": stage}} | (settings or {})
    plugin = SimpleNamespace(
        zero_stage=stage, deepspeed_config=config, hf_ds_config=SimpleNamespace(mismatches=list(mismatches))
    )
    args = SimpleNamespace(deepspeed="x.json", device=torch.device("cpu"), max_grad_norm=0.1)
    accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
    return SimpleNamespace(accelerator=accelerator, args=args, is_deepspeed_enabled=True)


def check(given, **settings):
    zero.check(given, "stop", **{"quantized": False, "offload": False} | settings)
    return given.accelerator.state.deepspeed_plugin.deepspeed_config


@pytest.mark.parametrize(("said", "used"), [({}, 0.1), ({"gradient_clipping": 0.1}, 0.1)])
def test_gradients_are_clipped_as_the_arguments_say(said, used):
    """A file without a clip would train without one in silence."""
    assert check(trainer(settings=said))["gradient_clipping"] == used


def test_a_file_that_says_otherwise_is_refused():
    given = trainer(mismatches=["- ds gradient_clipping=0.5 vs hf max_grad_norm=0.1"])
    message = r"deepspeed: gradient_clipping=0\.5, but the run's max_grad_norm=0\.1; give both the same value, or"
    with pytest.raises(ConfigError, match=message):
        check(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"quantized": True}, "the base is quantized, and ZeRO-3 would divide its packed weights; use ZeRO-2"),
        ({"offload": True}, "teacher.offload: ZeRO-3 divides the teacher's weights"),
        ({}, "offload_param to nvme keeps weights in files"),
    ],
)
def test_what_zero_3_cannot_do_is_refused(settings, message):
    config = {"zero_optimization": {"stage": 3} | ({} if settings else {"offload_param": {"device": "nvme"}})}
    with pytest.raises(ConfigError, match=message):
        check(trainer(3, config), **settings)
    check(trainer(2), **settings)


def test_a_result_holds_the_weights():
    plugin = SimpleNamespace(zero_stage=3, deepspeed_config={"zero_optimization": {"stage": 3}})
    zero.settle(SimpleNamespace(deepspeed_plugin=plugin, per_device_train_batch_size=4, world_size=2))
    assert plugin.deepspeed_config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"]
    assert plugin.deepspeed_config["train_batch_size"] == 8


def test_a_model_is_loaded_whole(monkeypatch):
    """transformers would divide it at once, before it has its adapter."""

    class Settings:
        def is_zero3(self):
            return True

    settings = Settings()
    monkeypatch.setattr(deepspeed, "_hf_deepspeed_config_weak_ref", weakref.ref(settings))
    assert deepspeed.is_deepspeed_zero3_enabled()
    model = load_model(ModelConfig(name_or_path="lab"))
    assert all(weight.numel() for weight in model.parameters())
    assert deepspeed.is_deepspeed_zero3_enabled()


def test_a_model_that_was_divided_before_is_refused(tmp_path):
    model = make_model()
    next(model.parameters()).ds_tensor = torch.zeros(1)
    with pytest.raises(ConfigError, match="load the model before TrainingArguments, or give its name"):
        make_trainer(tmp_path, model=model)
