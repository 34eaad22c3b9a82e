import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear

from opasd.model.lora import FusedLinear, LoraProduct, speed_up
from tests.models import make_model


def adapted(**kwargs):
    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], **kwargs)
    model = get_peft_model(make_model("qwen3"), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    return model


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 5), inputs=st.integers(1, 7), outputs=st.integers(1, 6), rank=st.integers(1, 4),
    bias=st.booleans(), input_grad=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_product_and_its_gradients_are_those_of_autograd(rows, inputs, outputs, rank, bias, input_grad, seed):
    make = torch.Generator().manual_seed(seed)

    def numbers(*shape):
        return torch.randn(*shape, generator=make, dtype=torch.float64)

    x, weight, offset = numbers(2, rows, inputs), numbers(outputs, inputs), numbers(outputs) if bias else None
    a, b, scaling, upstream = numbers(rank, inputs), numbers(outputs, rank), 0.7, numbers(2, rows, outputs)
    x.requires_grad_(input_grad)
    results = []
    for fused in (True, False):
        leaves = [a.clone().requires_grad_(), b.clone().requires_grad_()]
        if fused:
            y = LoraProduct.apply(x, weight, offset, *leaves, scaling, a, b * scaling)
        else:
            y = torch.nn.functional.linear(x, weight, offset) + scaling * (x @ leaves[0].T) @ leaves[1].T
        wanted = [*leaves, x] if input_grad else leaves
        results.append((y, *torch.autograd.grad(y, wanted, upstream)))
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-11, rtol=1e-11)


def test_only_plain_layers_become_fast_ones_and_are_still_those_of_peft():
    model = adapted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    count = len(speed_up(model))
    assert count == sum(isinstance(module, FusedLinear) for module in model.modules()) > 0
    assert all(isinstance(module, Linear) for module in model.modules() if isinstance(module, FusedLinear))
    assert not speed_up(model)
    assert before.keys() == model.state_dict().keys()
    twin = copy.deepcopy(model)
    ids = torch.arange(1, 9)[None]
    torch.testing.assert_close(twin(ids).logits, model(ids).logits)


def test_on_a_cpu_the_numbers_are_those_of_peft_bit_for_bit():
    ids = torch.arange(1, 12)[None]
    model = adapted()
    expected = model(ids).logits
    speed_up(model)
    assert torch.equal(model(ids).logits, expected)


def test_weights_are_rounded_again_after_a_change_and_only_then():
    model = adapted()
    speed_up(model)
    layer = next(module for module in model.modules() if isinstance(module, FusedLinear))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight

    def rounded():
        return layer.rounded(torch.bfloat16, a, b, 2.0)

    first = rounded()
    assert rounded()[0] is first[0]
    torch.testing.assert_close(first[1], (b * 2).bfloat16())
    with torch.no_grad():
        b.mul_(3)
    torch.testing.assert_close(rounded()[1], (b * 2).bfloat16())
    before = b.data
    b.data = torch.ones_like(b)
    torch.testing.assert_close(rounded()[1], torch.full_like(b, 2.0).bfloat16())
    b.data = before
    torch.testing.assert_close(rounded()[1], (b * 2).bfloat16())


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}], ids=str)
def test_rounded_weights_follow_every_optimizer(options):
    """Fused ones write to the weights without raising autograd's version counter."""
    layer = speed_up(adapted())[0]
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    optimizer = torch.optim.AdamW([a, b], lr=0.1, **options)
    before = layer.rounded(torch.bfloat16, a, b, 2.0)
    a.grad, b.grad = torch.ones_like(a), torch.ones_like(b)
    optimizer.step()
    layer.forget_rounded()
    after = layer.rounded(torch.bfloat16, a, b, 2.0)
    torch.testing.assert_close(after, (a.detach().bfloat16(), (b.detach() * 2).bfloat16()))
    assert not torch.equal(before[0], after[0])


def test_rounded_weights_of_a_judging_teacher_may_be_differentiated_through():
    """A live teacher reads the student's own weights, in inference mode, before the student does."""
    model = adapted()
    speed_up(model)
    layer = next(module for module in model.modules() if isinstance(module, FusedLinear))
    a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
    with torch.inference_mode():
        layer.rounded(torch.bfloat16, a, b, 2.0)
    assert not any(tensor.is_inference() for tensor in layer.rounded(torch.bfloat16, a, b, 2.0))


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


@pytest.mark.parametrize("trained", [False, True])
def test_a_trained_bias_of_the_base_gets_its_gradient(trained):
    model = get_peft_model(make_model("qwen2"), LoraConfig(r=2, target_modules=["q_proj"])).bfloat16()
    speed_up(model)
    layer = next(module for module in model.modules() if isinstance(module, FusedLinear))
    layer.base_layer.bias.requires_grad_(trained)
    x = torch.zeros(1, 2, layer.in_features, dtype=torch.bfloat16).as_subclass(OnGpu)
    assert layer.fits(x) is not trained


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_on_a_gpu_the_error_is_no_larger_than_that_of_peft(dtype):
    def run(model, kind):
        model = copy.deepcopy(model).to("cuda", kind)
        for name, parameter in model.named_parameters():
            if "lora_" in name and kind != torch.float64:
                parameter.data = parameter.data.float()
        if fused:
            assert speed_up(model)
        loss = model(ids.cuda()).logits.double().square().mean()
        loss.backward()
        return torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])

    model, ids = adapted(), torch.arange(1, 60)[None] % 50
    fused = False
    exact, plain = run(model, torch.float64), run(model, dtype)
    fused = True
    assert (run(model, dtype) - exact).norm() <= 1.5 * (plain - exact).norm()
