"""Fused models: the same tokens, adapters rounded as in training, and everything as it was afterwards."""

import sys

import pytest
import torch
from peft.tuners.lora.layer import Linear
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel

from opasd.model.lora import LoraProduct, speed_up
from opasd.rollout.transformers import decoding, fusing, slots, trial
from opasd.rollout.transformers.engine import TransformersEngine
from opasd.rollout.transformers.trial import make_slot_plan
from tests.models import add_lora, make_model
from tests.rollout.transformers.test_engine import RANDOM, make_prompts
from tests.rollout.transformers.test_kernels import DEVICE, error, kernels, numbers


@pytest.fixture
def _kernels_here(monkeypatch):
    for module in (fusing, slots, decoding, trial):
        monkeypatch.setattr(module, "kernels_available", lambda _device: True)
    fusing.AGREEMENTS.clear()


def here(family: str) -> PreTrainedModel:
    return make_model(family).to(DEVICE)


def replaced(model) -> set[str]:
    with fusing.fused(model, {}):
        return {type(module).__name__ for module in model.modules() if "forward" in module.__dict__}


@pytest.mark.parametrize("rows", [128, 129, pytest.param(40, marks=pytest.mark.gpu)])
def test_a_layer_in_half_precision_is_rounded_as_in_training(rows):
    model = add_lora(here("qwen3").bfloat16())
    layer = next(module for module in model.modules() if type(module) is Linear)
    A, B = (factor["default"].float().weight.data for factor in (layer.lora_A, layer.lora_B))
    A.copy_(numbers(*A.shape, seed=1))
    B.copy_(numbers(*B.shape, seed=2))
    x, scaling, rounded = numbers(rows, 1, A.shape[1], dtype=torch.bfloat16), layer.scaling["default"], {}
    a, b = A.bfloat16(), (B * scaling).bfloat16()
    expected = LoraProduct.apply(x, layer.base_layer.weight, layer.base_layer.bias, A, B, scaling, a, b)
    with torch.no_grad(), fusing.fused(model, rounded):
        output = layer(x)
        A.zero_()
        assert torch.equal(layer(x), output)  # what a graph reads stays as it was
    assert output.shape == (rows, 1, B.shape[0])
    assert torch.equal(output, expected) if rows >= kernels.MANY_ROWS else error(output, expected) < 4e-3
    assert len(rounded) == sum(type(module) is Linear for module in model.modules())


def test_a_rank_that_is_too_large_costs_no_memory(monkeypatch):
    model, rounded = add_lora(here("qwen3").bfloat16()), {}
    monkeypatch.setattr(kernels, "MAX_RANK", 3)
    with fusing.fused(model, rounded):
        assert not any(type(module) is Linear and "forward" in module.__dict__ for module in model.modules())
    assert rounded == {}


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernels_here")
def test_adapters_are_rounded_where_steps_without_a_graph_read_them(monkeypatch):
    """A capture that fails leaves them behind, and a stream of its own would be one nobody waits for."""
    model, streams = add_lora(here("qwen3").bfloat16()), []

    def noted(*args):
        streams.append(torch.cuda.current_stream())
        return fusing.fused(*args)

    monkeypatch.setattr(decoding, "fused", noted)
    engine = TransformersEngine(model, frozenset(), decoding="slots")
    for _ in range(2):  # the second time the first step is a capture
        engine.generate(make_prompts((9, 1)), RANDOM.model_copy(update={"max_new_tokens": 24}), range(2))
    assert set(streams) == {torch.cuda.current_stream()}


@pytest.mark.usefixtures("_kernels_here")
@pytest.mark.parametrize(
    ("family", "norm", "adapted"),
    [
        ("qwen3", "Qwen3RMSNorm", True),
        pytest.param("qwen3", "Qwen3RMSNorm", False, marks=pytest.mark.gpu),
        pytest.param("qwen2", "Qwen2RMSNorm", True, marks=pytest.mark.gpu),
    ],
)
def test_fused_models_give_the_same_tokens(family, norm, adapted):
    model, prompts = here(family), make_prompts((9, 1))
    model = add_lora(model) if adapted else model
    assert replaced(model) == ({norm, "Linear"} if adapted else {norm})
    sampling = RANDOM.model_copy(update={"max_new_tokens": 2})
    expected = TransformersEngine(model, frozenset(), decoding="padded").generate(prompts, sampling, range(2))
    completions = TransformersEngine(model, frozenset(), decoding="slots").generate(prompts, sampling, range(2))
    assert completions == expected
    assert fusing.AGREEMENTS
    assert all(fusing.AGREEMENTS.values())
    assert not any("forward" in module.__dict__ for module in model.modules())


@pytest.mark.gpu
@pytest.mark.usefixtures("_kernels_here")
def test_models_under_liger_give_the_same_tokens():
    """Its norms are replaced for a decoding step like the model's own, and come back; its rotary embedding stays."""
    pytest.importorskip("liger_kernel")
    model, prompts = add_lora(here("qwen3")), make_prompts((9, 1))
    sampling = RANDOM.model_copy(update={"max_new_tokens": 8})
    expected = TransformersEngine(model, frozenset(), decoding="padded").generate(prompts, sampling, range(2))
    namespace = vars(sys.modules[type(model.base_model.model).__module__])
    own = dict(namespace)
    try:
        apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
        before = {module: module.forward for module in model.modules() if "forward" in module.__dict__}
        assert before
        completions = TransformersEngine(model, frozenset(), decoding="slots").generate(prompts, sampling, range(2))
        assert completions == expected
        assert any(fusing.AGREEMENTS.values())
        assert {module: module.forward for module in model.modules() if "forward" in module.__dict__} == before
    finally:
        namespace.update(own)


@pytest.mark.usefixtures("_kernels_here")
def test_another_forward_stays_and_ligers_does_not():
    model = here("qwen3")
    norms = [module for module in model.modules() if type(module).__name__ == "Qwen3RMSNorm"]

    def other(x, norm=norms[0]):
        return type(norm).forward(norm, x)

    def ligers(x, norm=norms[1]):
        return type(norm).forward(norm, x)

    ligers.__module__ = "liger_kernel.transformers.rms_norm"
    norms[0].forward, norms[1].forward = other, ligers
    with fusing.fused(model, {}):
        assert norms[0].forward is other
        assert norms[1].forward is not ligers
    assert norms[1].forward is ligers
    assert "forward" not in norms[2].__dict__


@pytest.mark.usefixtures("_kernels_here")
def test_a_norm_of_another_kind_stays():
    """Gemma's scales by 1 + weight."""
    assert replaced(here("gemma3")) == set()


@pytest.mark.usefixtures("_kernels_here")
def test_adapters_under_training_are_fused_too():
    model = add_lora(here("qwen3"))
    assert speed_up(model)
    assert "FusedLinear" in replaced(model)


@pytest.mark.usefixtures("_kernels_here")
def test_an_adapter_that_is_not_plain_lora_stays():
    for model in (add_lora(here("qwen3")), add_lora(here("qwen3"))):
        assert "Linear" in replaced(model)
        with model.disable_adapter():
            assert "Linear" not in replaced(model)
    model.merge_adapter()
    assert "Linear" not in replaced(model)


@pytest.mark.usefixtures("_kernels_here")
def test_a_wrong_kernel_is_not_used(monkeypatch):
    """The trial finds it, and the model's own operations are used instead."""
    monkeypatch.setattr(kernels, "add_lora", lambda result, *_: result)
    plan = make_slot_plan(add_lora(here("qwen3")).get_base_model())
    assert not isinstance(plan, str)
    assert not plan.fuse
