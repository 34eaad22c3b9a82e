"""The token loss's kernels against the definition in float64: in Triton's interpreter here, at real sizes on a GPU."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from opasd.errors import ConfigError
from opasd.losses import fused
from opasd.losses.divergence import DIVERGENCES
from opasd.losses.token import OutputHead, token_loss
from opasd.losses.token_chunked import TokenComparison, TokenRole
from tests.losses.cases import OnGpu, relative_error
from tests.losses.test_token import CLIPS, KINDS, cases, gap_case, gradients, make_case

pytest.importorskip("triton")
from opasd.losses.fused import token as kernels

interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's own tests; see those marked gpu")
QWEN = 151_936


def convert(case, dtype, device="cpu"):
    """The case's tensors in another precision, as leaves again; one head for both roles if they shared it."""
    hidden, head, teacher_hidden, teacher_head = case

    def leaf(tensor):
        return None if tensor is None else tensor.detach().to(device, dtype).requires_grad_(tensor.requires_grad)

    def converted(head):
        return replace(head, weight_VE=leaf(head.weight_VE), bias_V=leaf(head.bias_V))

    student_head = converted(head)
    teacher_head = student_head.detach() if teacher_head.weight_VE is head.weight_VE else converted(teacher_head)
    return leaf(hidden), student_head, leaf(teacher_hidden), teacher_head


def share_head(case):
    hidden, head, teacher_hidden, _ = case
    return hidden, head, teacher_hidden, head


def plain(hidden, head, teacher_hidden, teacher_head, *, divergence, temperature):
    """What a trainer without any of this does: low-precision logits, everything after them in float32."""
    student, teacher = (
        ((states @ head.weight_VE.T).float() / temperature).log_softmax(-1)
        for states, head in ((hidden, head), (teacher_hidden, teacher_head))
    )
    if divergence == "forward_kl":
        return (teacher.exp() * (teacher - student)).sum(-1)
    mixture = torch.logaddexp(teacher, student) - math.log(2)
    return (teacher.exp() * (teacher - mixture) + student.exp() * (student - mixture)).sum(-1) / 2


def assert_close(actual, expected, tolerance):
    """Values by their size in the whole, as a sum over a vocabulary of positive and negative terms allows."""
    for name in expected._fields[:6]:  # the kernels have no products of gradients
        reading, wanted = getattr(actual, name).double().cpu(), getattr(expected, name).cpu()
        torch.testing.assert_close(
            reading, wanted, atol=tolerance * max(1.0, wanted.abs().max().item()), rtol=tolerance
        )


@interpreter
@settings(max_examples=20)
@given(
    case=cases(),
    wide=st.sampled_from([0, 0, 0, 8_200]),
    shared=st.booleans(),
)
def test_values_and_gradients_equal_the_definition(case, wide, shared):
    tensors, options, chunk = case
    if wide:  # more than a tile, and no multiple of one
        tensors = make_case(tokens=2, hidden=3, vocabulary=wide + len(tensors[0]), bias=True)
    exact = share_head(tensors) if shared else tensors
    low = convert(exact, torch.float32)
    weights = torch.rand(low[0].shape[0], dtype=torch.float64)
    expected = token_loss(*exact, weights_T=weights, impl="reference", **options)
    actual = token_loss(*low, weights_T=weights, impl="fused", chunk_tokens=chunk, **options)
    assert_close(actual, expected, 2e-5)
    expected_gradients = gradients(1.7 * expected.loss, *exact[:2])
    for gradient, wanted in zip(gradients(1.7 * actual.loss, *low[:2]), expected_gradients, strict=True):
        torch.testing.assert_close(gradient.double(), wanted, atol=5e-5 * wanted.abs().max().item() + 1e-7, rtol=1e-3)


@interpreter
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["forward_kl", "jsd"])
def test_low_precision_is_nearer_to_the_truth_than_low_precision_logits(kind, dtype, shared):
    hidden, head, teacher_hidden, teacher_head = make_case(tokens=24, hidden=64, vocabulary=500, spread=6.0)
    teacher_hidden = hidden.detach().lerp(teacher_hidden, 0.2)
    teacher_head = replace(teacher_head, weight_VE=head.weight_VE.detach().lerp(teacher_head.weight_VE, 0.2))
    check_error((hidden, head, teacher_hidden, head if shared else teacher_head), kind, dtype)


def check_error(case, kind, dtype, device="cpu"):
    """Relative errors of D_t, d hidden, dW: of the kernels, and of the plain computation in that precision."""
    low = convert(case, dtype, device)
    exact = convert(low, torch.float64, device)
    options = {"divergence": kind, "temperature": 1.1}
    weights = torch.rand(len(low[0])).to(device)
    truth = token_loss(*exact, impl="reference", weights_T=weights, **options)
    expected = [truth.divergence_T, *gradients(truth.loss, *exact[:2])]

    def errors(divergence_T, loss):
        actual = [divergence_T, *gradients(loss, *low[:2])]
        return [relative_error(a, b) for a, b in zip(actual, expected, strict=True)]

    output = token_loss(*low, impl="fused", weights_T=weights, **options)
    other_T = plain(*low, **options)
    kernel_errors = errors(output.divergence_T, output.loss)
    plain_errors = errors(other_T, (weights * other_T).sum())
    assert all(a <= b for a, b in zip(kernel_errors, plain_errors, strict=True)), (kernel_errors, plain_errors)
    return kernel_errors, plain_errors


@interpreter
@pytest.mark.parametrize("kind", KINDS)
def test_equal_models_have_nothing_to_learn(kind):
    hidden, head, _, _ = convert(make_case(), torch.bfloat16)
    for other in (head, replace(head, weight_VE=head.weight_VE.detach().clone())):
        output = token_loss(hidden, head, hidden, other, divergence=kind, impl="fused")
        tolerance = 0 if other is head else 1e-4
        assert output.loss.abs().item() <= tolerance
        assert max(gradient.abs().max() for gradient in gradients(output.loss, hidden, head)) <= 100 * tolerance + 1e-7


@interpreter
@pytest.mark.parametrize("top_k", [None, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_vocabulary_entries_of_probability_zero(kind, top_k):
    """−∞ on a bias, and probabilities below the floor: the definition's finite numbers, the definition's gradients."""
    hidden, head, teacher_hidden, teacher_head = make_case(bias=True)
    bias = head.bias_V.detach().clone()
    bias[2] = -torch.inf
    bias[3] = -1e4
    case = hidden, replace(head, bias_V=bias), teacher_hidden, replace(teacher_head, bias_V=bias.flip(0))
    low = convert(case, torch.float32)
    expected = token_loss(*case, divergence=kind, top_k=top_k, impl="reference")
    actual = token_loss(*low, divergence=kind, top_k=top_k, impl="fused")
    assert_close(actual, expected, 1e-5)
    for gradient, wanted in zip(
        torch.autograd.grad(actual.loss, (low[0], low[1].weight_VE)),
        torch.autograd.grad(expected.loss, (hidden, head.weight_VE)),
        strict=True,
    ):
        torch.testing.assert_close(gradient.double(), wanted, atol=1e-5, rtol=1e-4)


@interpreter
@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_whose_gradient_point_wise_clipping_reverses(kind, top_k):
    case = make_case(tokens=24, hidden=16, vocabulary=16, seed=5)
    options = {"divergence": kind, "top_k": top_k, "clip": "pointwise", "clip_threshold": 0.01}
    expected = token_loss(*case, impl="reference", **options).reversed_T
    with torch.no_grad():
        without = token_loss(*convert(case, torch.float32), impl="fused", **options).reversed_T
    actual = token_loss(*convert(case, torch.float32), impl="fused", **options).reversed_T
    assert actual.tolist() == without.tolist() == expected.tolist()
    assert 0 < actual.mean() < 1


@interpreter
@pytest.mark.parametrize("top_k", [None, 1])
def test_a_student_that_is_sure_of_something_else_is_still_pulled(top_k):
    case = gap_case(100.0, torch.float32, 16)
    output = token_loss(*case, divergence="forward_kl", temperature=1.1, top_k=top_k, impl="fused")
    assert output.loss.item() == pytest.approx(100 / 1.1, rel=1e-5)
    (gradient,) = torch.autograd.grad(output.loss, case[0])
    expected = torch.zeros(1, 16)
    expected[0, :2] = torch.tensor([-1 / 1.1, 1 / 1.1])
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=0)


@interpreter
@pytest.mark.filterwarnings("ignore:All-NaN slice")  # NumPy, in the interpreter
def test_nan_shows_whatever_the_clip():
    hidden, head, teacher_hidden, teacher_head = convert(make_case(), torch.float32)
    with torch.no_grad():
        hidden[1, 0] = math.nan
    for clip in CLIPS:
        loss_T = token_loss(hidden, head, teacher_hidden, teacher_head, clip=clip, impl="fused").loss_T
        assert loss_T.isnan().tolist() == [False, True, False, False, False]


@interpreter
def test_no_tokens():
    case = convert(make_case(tokens=0), torch.float32)
    output = token_loss(*case, impl="fused")
    assert output.loss.item() == 0
    assert output.loss_T.shape == (0,)
    assert all((gradient == 0).all() for gradient in gradients(output.loss, *case[:2]))


@interpreter
def test_a_second_backward_pass_gives_the_same():
    hidden, head, *teacher = convert(make_case(), torch.float32)
    loss = token_loss(hidden, head, *teacher, impl="fused").loss
    once = torch.autograd.grad(2 * loss, hidden, retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(2 * loss, hidden)[0], once)


@interpreter
def test_without_gradients_only_the_readings_are_made():
    case = convert(make_case(), torch.float32)
    expected = token_loss(*case, impl="fused")
    with torch.no_grad():
        actual = token_loss(*case, impl="fused")
    assert all(torch.equal(a, b) for a, b in zip(actual[:6], expected[:6], strict=True))


def test_a_device_without_kernels_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    case = convert(make_case(), torch.float32)
    with pytest.raises(
        ConfigError, match="needs Triton and a CUDA device, and these tensors are on cpu; use impl: auto"
    ):
        token_loss(*case, impl="fused")
    assert token_loss(*case, impl="auto").loss.isfinite()
    monkeypatch.setattr(fused, "triton_is_installed", lambda: False)
    with pytest.raises(ConfigError, match="and Triton is not installed"):
        token_loss(*case, impl="fused")


@interpreter
def test_precisions_the_kernels_do_not_have_are_named():
    case = make_case()
    with pytest.raises(ConfigError, match="got float64"):
        token_loss(*case, impl="fused")
    low = convert(case, torch.bfloat16)
    with pytest.raises(ConfigError, match="got bfloat16, float32"):
        token_loss(low[0].float(), *low[1:], impl="fused")


@interpreter
def test_what_has_no_kernel_is_chunked_and_said_once(caplog):
    fused.say_once.cache_clear()
    hidden, *rest = convert(make_case(), torch.bfloat16)
    hidden = hidden.detach().float()
    with torch.no_grad():
        actual = [token_loss(hidden.as_subclass(OnGpu), *rest).loss for _ in range(2)]
    assert ["got bfloat16, float32" in record.getMessage() for record in caplog.records] == [True]
    assert actual[0] == actual[1] == token_loss(hidden, *rest, impl="chunked").loss


@interpreter
def test_a_divergence_without_a_kernel_is_chunked_or_refused(fourth_kind, caplog):
    hidden, *rest = (item.detach() for item in convert(make_case(), torch.float32))
    with pytest.raises(ConfigError, match=f"fused has no kernel for divergence: {fourth_kind}; use impl: auto"):
        token_loss(hidden, *rest, divergence=fourth_kind, impl="fused")
    actual = [token_loss(hidden.as_subclass(OnGpu), *rest, divergence=fourth_kind).loss for _ in range(2)]
    assert actual[0] == actual[1] == token_loss(hidden, *rest, divergence=fourth_kind, impl="chunked").loss
    assert sum("no kernel for divergence" in record.getMessage() for record in caplog.records) == 1


@interpreter
@pytest.mark.parametrize("kernel_code", [3, None])
def test_a_kernel_that_does_not_know_a_divergence_does_not_compile(kernel_code):
    hidden, head, teacher_hidden, teacher_head = (item.detach() for item in convert(make_case(), torch.float32))
    formulas = replace(DIVERGENCES["jsd"], name="fourth", kernel_code=kernel_code)
    comparison = TokenComparison(formulas, 0.5, 1.0, "none", 0.05, None)
    with pytest.raises(Exception, match="the kernels do not know this divergence"):
        kernels.compare_chunk(TokenRole(hidden, head), TokenRole(teacher_hidden, teacher_head), comparison, False)


@given(
    tokens=st.integers(0, 90_000),
    size=st.sampled_from([8, 2048, 4096]),
    vocabulary=st.integers(2, 300_000),
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    top_k=st.sampled_from([None, 20]),
)
def test_memory_is_bounded_at_any_length(tokens, size, vocabulary, dtype, top_k):
    hidden = torch.empty(tokens, size, dtype=dtype, device="meta")
    chunk = kernels.default_chunk_tokens(hidden, vocabulary, top_k)
    buffers = chunk * vocabulary * dtype.itemsize * (2 if top_k is None else 3)
    gradient = tokens * size * dtype.itemsize
    assert chunk >= 1
    assert buffers + gradient <= 2**30 or (gradient > 0.75 * 2**30 and buffers <= 2**28)


def gpu_case(tokens, hidden, vocabulary, *, bias=False, scale=1.0, softcap=None, seed=0):
    """Logits up to about 20 and a teacher not far away, as between a model and itself; made where they are used."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(*shape, factor=1.0):
        return torch.randn(*shape, generator=generator, device="cuda") * factor

    states = draw(tokens, hidden)
    head = OutputHead(
        draw(vocabulary, hidden, factor=4 / hidden**0.5).requires_grad_(),
        draw(vocabulary).requires_grad_() if bias else None,
        scale,
        softcap,
    )
    return states.clone().requires_grad_(), head, states + draw(tokens, hidden, factor=0.1), head


@pytest.mark.gpu
@pytest.mark.parametrize("top_k", [None, 20])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_gpu_values_and_gradients_equal_the_definition(kind, clip, top_k):
    check_gpu(torch.float32, 1e-4, vocabulary=32_003, divergence=kind, clip=clip, top_k=top_k)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("vocabulary", [QWEN, 50_257])
def test_gpu_heads_of_all_kinds(dtype, vocabulary):
    tolerance = {torch.bfloat16: 0.1, torch.float16: 0.02, torch.float32: 1e-4}[dtype]
    check_gpu(dtype, tolerance, vocabulary=vocabulary, bias=True, scale=0.7, softcap=30.0, shared=False)


def check_gpu(dtype, tolerance, *, vocabulary, bias=False, scale=1.0, softcap=None, shared=True, **options):
    case = gpu_case(150, 256, vocabulary, bias=bias, scale=scale, softcap=softcap)
    if not shared:
        other = replace(case[3].detach(), weight_VE=case[3].weight_VE.detach() * 1.01)
        case = (*case[:3], other)
    low = convert(case, dtype, "cuda")
    exact = convert(low, torch.float64, "cuda")
    options |= {
        "jsd_beta": 0.3,
        "temperature": 1.1,
        "clip_threshold": 0.02 if options.get("clip") != "pointwise" else 1e-4,
    }
    weights = torch.rand(150)
    weights[::7] = 0
    expected = token_loss(*exact, weights_T=weights, impl="reference", **options)
    actual = token_loss(*low, weights_T=weights, impl="fused", chunk_tokens=64, **options)
    for name in expected._fields[:6]:  # the kernels have no products of gradients
        assert relative_error(getattr(actual, name)[None], getattr(expected, name)[None]) < tolerance, name
    expected_gradients = gradients(expected.loss, *exact[:2])
    for gradient, wanted in zip(gradients(actual.loss, *low[:2]), expected_gradients, strict=True):
        assert relative_error(gradient, wanted) < tolerance


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["forward_kl", "jsd"])
def test_gpu_low_precision_is_nearer_to_the_truth_than_low_precision_logits(kind, dtype, shared, record_property):
    case = gpu_case(256, 1024, QWEN)
    if not shared:
        case = (*case[:3], replace(case[3].detach(), weight_VE=case[3].weight_VE.detach() * 1.01))
    kernel_errors, plain_errors = check_error(case, kind, dtype, "cuda")
    record_property("errors", f"fused {kernel_errors}, plain {plain_errors}")


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"divergence": "jsd", "clip": "pointwise"}, {"top_k": 20}], ids=str)
def test_gpu_repeats_bit_by_bit(options):
    case = convert(gpu_case(2_000, 1024, QWEN), torch.bfloat16, "cuda")
    results = []
    for _ in range(2):
        output = token_loss(*case, impl="fused", **options)
        readings = [reading for reading in output if reading is not None]
        results.append([*readings, *gradients(output.loss, *case[:2])])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("top_k", [None, 20])
@pytest.mark.parametrize("tokens", [1_000, 16_384])
def test_gpu_memory_is_bounded_at_any_length(tokens, top_k):
    hidden, head, teacher_hidden, _ = convert(gpu_case(tokens, 4_096, QWEN), torch.bfloat16, "cuda")
    head = head.detach()

    def step():
        loss = token_loss(hidden, head, teacher_hidden, head, clip="per_token", top_k=top_k).loss
        return torch.autograd.grad(loss, hidden)

    step()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    assert torch.cuda.max_memory_allocated() - before <= 2**30


@pytest.mark.gpu
def test_gpu_is_what_auto_takes():
    case = convert(gpu_case(40, 64, 1_000), torch.bfloat16, "cuda")
    assert torch.equal(token_loss(*case).loss, token_loss(*case, impl="fused").loss)
    assert not torch.equal(token_loss(*case).loss, token_loss(*case, impl="chunked").loss)
    assert token_loss(case[0].float(), *case[1:]).loss.isfinite()  # mixed precisions: chunked
