"""The kernels of a decoding step against plain PyTorch: compiled where there is a GPU, else in Triton's interpreter."""

import sys

import pytest
import torch
from peft.tuners.lora.layer import Linear
from transformers import PreTrainedModel
from transformers.integrations.liger import apply_liger_kernel

from opasd.model.lora import LoraProduct, speed_up
from opasd.rollout.transformers import decoding, fusing, slots
from opasd.rollout.transformers.decoding import make_slot_plan
from opasd.rollout.transformers.engine import TransformersEngine
from tests.models import add_lora, make_model
from tests.rollout.transformers.test_engine import RANDOM, make_prompts

kernels = pytest.importorskip("opasd.rollout.transformers.kernels", exc_type=ImportError)
GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if GPU else [torch.float32]  # the interpreter multiplies bfloat16 wrongly


def numbers(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(DEVICE, dtype)


def error(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("H", "K", "D", "V", "length"),
    [(1, 1, 16, 16, 1), (6, 2, 80, 48, 257), (14, 2, 64, 64, 300), (8, 4, 128, 128, 130)],
)
def test_attention_reads_each_row_as_far_as_it_goes(dtype, H, K, D, V, length):
    """What lies beyond is NaN, as memory may be."""
    B, seed = 3, H + length
    query = numbers(B, 1, H, D, dtype=dtype, seed=seed).transpose(1, 2)
    keys, values = numbers(B + 1, K, length, D, dtype=dtype, seed=seed + 1), numbers(B + 1, K, length, V, dtype=dtype)
    last = torch.randint(0, length, (B,), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
    last[0] = length - 1
    beyond = (torch.arange(length, device=DEVICE) > last[:, None])[:, None, :, None]
    spoiled = [torch.cat([torch.where(beyond, float("nan"), t[:B]), t[B:]])[:B] for t in (keys, values)]
    found = kernels.attend(query, *spoiled, last, 0.3)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.double(), keys[:B].double(), values[:B].double(), attn_mask=~beyond.transpose(2, 3), scale=0.3,
        enable_gqa=H != K,
    )  # fmt: skip
    assert found.shape == (B, 1, H, V)
    assert error(found.transpose(1, 2), expected) < (1e-5 if dtype == torch.float32 else 1e-2)


def test_many_chunks(monkeypatch):
    monkeypatch.setattr(kernels, "MAX_CHUNKS", 4)
    query, keys, values = numbers(2, 4, 1, 16), numbers(2, 2, 2500, 16), numbers(2, 2, 2500, 16, seed=1)
    last = torch.tensor([2499, 1100], device=DEVICE)
    mask = (torch.arange(2500, device=DEVICE) <= last[:, None])[:, None, None]
    expected = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, enable_gqa=True)
    assert error(kernels.attend(query, keys, values, last, 0.25).transpose(1, 2), expected) < 1e-5


def test_a_key_and_value_are_stored_in_place():
    key, value = numbers(3, 1, 2, 16).transpose(1, 2), numbers(3, 1, 2, 24, seed=1).transpose(1, 2)
    keys, values, last = torch.zeros(4, 2, 9, 16), torch.zeros(4, 2, 9, 24), torch.tensor([0, 8, 5])
    keys, values, last = keys.to(DEVICE), values.to(DEVICE), last.to(DEVICE)
    kernels.store(key, value, keys[:3], values[:3], last)
    for row, at in enumerate(last.tolist()):
        assert torch.equal(keys[row, :, at], key[row, :, 0])
        assert torch.equal(values[row, :, at], value[row, :, 0])
    assert int((keys != 0).any(-1).sum()) == int((values != 0).any(-1).sum()) == 6


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "features", "outputs", "rank"), [(1, 16, 16, 1), (5, 300, 70, 8), (33, 520, 129, 20)])
def test_a_lora_product_is_added(dtype, rows, features, outputs, rank):
    x, base = numbers(rows, 1, features, dtype=dtype), numbers(rows, 1, outputs, dtype=dtype, seed=1)
    down, up = numbers(rank, features, seed=2), numbers(outputs, rank, seed=3)
    expected = base.double() + 0.7 * (x.double() @ down.double().T @ up.double().T)
    found = kernels.add_lora(base.clone(), x, down, up, 0.7)
    assert found.dtype == dtype
    assert error(found, expected) < (1e-6 if dtype == torch.float32 else 4e-3)


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
        found = layer(x)
        A.zero_()
        assert torch.equal(layer(x), found)  # what a graph reads stays as it was
    assert found.shape == (rows, 1, B.shape[0])
    assert torch.equal(found, expected) if rows >= kernels.MANY_ROWS else error(found, expected) < 4e-3
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
    model, streams, own = add_lora(here("qwen3").bfloat16()), [], fusing._adapted
    monkeypatch.setattr(fusing, "_adapted", lambda *given: streams.append(torch.cuda.current_stream()) or own(*given))
    engine = TransformersEngine(model, frozenset(), decoding="slots")
    for _ in range(2):  # the second time the first step is a capture
        engine.generate(make_prompts((9, 1)), RANDOM.model_copy(update={"max_new_tokens": 24}), range(2))
    assert set(streams) == {torch.cuda.current_stream()}


# ---- in a model -----------------------------------------------------------------------------------------------------


@pytest.fixture
def _kernels_here(monkeypatch):
    for module in (fusing, slots, decoding):
        monkeypatch.setattr(module, "kernels_available", lambda _device: True)
    fusing.AGREEMENTS.clear()


def here(family: str) -> PreTrainedModel:
    return make_model(family).to(DEVICE)


def replaced(model) -> set[str]:
    with fusing.fused(model, {}):
        return {type(module).__name__ for module in model.modules() if "forward" in module.__dict__}


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
    found = TransformersEngine(model, frozenset(), decoding="slots").generate(prompts, sampling, range(2))
    assert found == expected
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
        found = TransformersEngine(model, frozenset(), decoding="slots").generate(prompts, sampling, range(2))
        assert found == expected
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
    assert speed_up(model).layers
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
