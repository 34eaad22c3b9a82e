"""The attention loss's kernels against the definition in float64: in Triton's interpreter here, on a GPU in full."""

import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opasd.errors import ConfigError
from opasd.losses import fused
from opasd.losses.attention import LayerAttention, LayerBatch, attention_loss, attention_losses
from opasd.losses.attention_chunked import AttentionComparison
from opasd.losses.divergence import DIVERGENCES
from tests.losses.cases import (
    OnGpu,
    alignments,
    gradients,
    make_alignment,
    make_batch,
    make_layers,
    relative_error,
    to_leaf,
)

pytest.importorskip("triton")
from opasd.losses.fused import attention as kernels
from opasd.losses.fused import attention_plan

KINDS = ("forward_kl", "reverse_kl", "jsd")
HANDLINGS = ("project", "redistribute", "shuffle")
interpreter = pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter's own tests; see those marked gpu")
SMALL = kernels.Tiling(
    kernels.Tile(16, 16), kernels.Tile(16, 16, HEADS=2), kernels.Tile(16, 16), kernels.Tile(16, 16, HEADS=2), 32, 64
)


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch):
    """Small tiles, and in bfloat16 the arithmetic of the hardware."""
    if torch.cuda.is_available():
        yield
        return
    monkeypatch.setattr(kernels, "tiling", lambda *_: SMALL)
    patch_bfloat16(monkeypatch)
    with np.errstate(all="ignore"):  # rows beyond the last step hold anything
        yield


def patch_bfloat16(monkeypatch):
    """Triton's interpreter multiplies bfloat16 matrices by their bit patterns, and truncates instead of rounding."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    dot, cast = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl

    def widened(handle):
        bits = handle.data.astype(np.uint32) << 16
        return TensorHandle(bits.view(np.float32), tl.float32) if handle.dtype.scalar == tl.bfloat16 else handle

    def create_dot(self, a, b, d, *precision):
        return dot(self, widened(a), widened(b), d, *precision)

    def cast_impl(self, source, target):
        if source.dtype.scalar != tl.float32 or target.scalar != tl.bfloat16:
            return cast(self, source, target)
        rounded = torch.from_numpy(np.ascontiguousarray(source.data)).to(torch.bfloat16).view(torch.int16)
        return TensorHandle(rounded.numpy().view(np.uint16).reshape(source.data.shape), tl.bfloat16)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)
    for name in ("cast_impl", "create_fp_trunc", "create_fp_ext"):
        monkeypatch.setattr(InterpreterBuilder, name, cast_impl)


def move(layer, dtype, device="cpu"):
    """As leaves of another precision."""
    sinks = None if layer.sinks_H is None else layer.sinks_H.to(device)
    return to_leaf(
        replace(layer, query_HTD=layer.query_HTD.to(device), key_KSD=layer.key_KSD.to(device), sinks_H=sinks), dtype
    )


def assert_close(actual, expected, student, exact, tolerance):
    """Readings, and gradients by their size in the whole."""
    for name in expected._fields[1:]:
        reading, wanted = getattr(actual, name).double().cpu(), getattr(expected, name).cpu()
        torch.testing.assert_close(reading, wanted, atol=tolerance, rtol=tolerance)
    expected_gradients = gradients(1.7 * expected.loss, exact)
    scale = max(gradient.abs().max() for gradient in expected_gradients).clamp_min(1e-6)
    for gradient, wanted in zip(gradients(1.7 * actual.loss, student), expected_gradients, strict=True):
        assert gradient.dtype == student.query_HTD.dtype
        torch.testing.assert_close(gradient.double() / scale, wanted / scale, atol=10 * tolerance, rtol=0)


def check(alignment, layers, dtype, tolerance, device="cpu", **options):
    """The kernels on rounded inputs against the definition on the same, in float64."""
    student, teacher = move(layers[0], dtype, device), move(layers[1], dtype, device).detach()
    exact, exact_teacher = move(student, torch.float64, device), move(teacher, torch.float64, device).detach()
    weights_T = torch.rand(alignment.num_tokens, dtype=torch.float64)
    expected = attention_loss(exact, exact_teacher, alignment, weights_T=weights_T, impl="reference", **options)
    actual = attention_loss(student, teacher, alignment, weights_T=weights_T, impl="fused", **options)
    assert_close(actual, expected, student, exact, tolerance)


@st.composite
def cases(draw):
    alignment = draw(alignments(20, 30))
    key_heads, group = draw(st.sampled_from([(1, 1), (1, 2), (2, 1), (1, 3), (1, 4)]))
    layers = make_layers(
        alignment,
        key_heads=key_heads,
        group=group,
        head_size=draw(st.sampled_from([16, 16, 48])),
        window=draw(st.sampled_from([None, None, 1, 9, 30])),
        softcap=draw(st.sampled_from([None, None, 2.0])),
        sinks=draw(st.booleans()),
        sharpness=draw(st.sampled_from([0.1, 2.0])),
        seed=draw(st.integers(0, 999)),
    )
    options = {
        "divergence": draw(st.sampled_from(KINDS)),
        "jsd_beta": draw(st.floats(0.05, 0.95)),
        "handling": draw(st.sampled_from(HANDLINGS)),
        "shuffle_seed": draw(st.integers(0, 99)),
    }
    return alignment, layers, options


@interpreter
@settings(max_examples=7, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(case=cases())
def test_values_and_gradients_equal_the_definition(case):
    alignment, layers, options = case
    check(alignment, layers, torch.float32, 2e-5, **options)


@interpreter
@pytest.mark.parametrize(("kind", "handling"), [*zip(KINDS, HANDLINGS, strict=True)])
def test_every_divergence_and_handling(kind, handling):
    alignment = make_alignment(problem=5, solution=6, student_only=1, teacher_only=2, tokens=10)
    layers = make_layers(alignment, key_heads=1, head_size=16)
    check(alignment, layers, torch.float32, 1e-5, divergence=kind, jsd_beta=0.3, handling=handling, shuffle_seed=3)


@interpreter
@pytest.mark.parametrize(
    ("dtype", "extras"), [(torch.bfloat16, {"window": 12, "softcap": 3.0, "sinks": True}), (torch.float16, {})]
)
def test_low_precision(dtype, extras):
    alignment = make_alignment(problem=12, solution=20, tokens=8)
    layers = make_layers(alignment, key_heads=1, head_size=32, **extras)
    check(alignment, layers, dtype, {torch.bfloat16: 1e-3, torch.float16: 2e-4}[dtype])


def check_batch(alignments, student, teacher, tolerance, **options):
    exact = replace(
        student,
        query_BHND=student.query_BHND.detach().double().requires_grad_(),
        key_BKND=student.key_BKND.detach().double().requires_grad_(),
    )
    exact_teacher = replace(teacher, query_BHND=teacher.query_BHND.double(), key_BKND=teacher.key_BKND.double())
    weights_T = torch.rand(sum(a.num_tokens for a in alignments), dtype=torch.float64)
    seeds = list(range(len(alignments)))
    common = {"weights_T": weights_T, "shuffle_seeds": seeds, **options}
    expected = attention_losses(exact, exact_teacher, alignments, impl="reference", **common)
    actual = attention_losses(student, teacher, alignments, impl="fused", **common)
    for reading, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(reading.double(), wanted, atol=tolerance, rtol=tolerance)
    true = torch.autograd.grad(expected.loss, [exact.query_BHND, exact.key_BKND])
    actual_gradients = torch.autograd.grad(actual.loss, [student.query_BHND, student.key_BKND])
    for a, b in zip(actual_gradients, true, strict=True):
        torch.testing.assert_close(a.double() / b.abs().max(), b / b.abs().max(), atol=10 * tolerance, rtol=0)
        assert (a[b == 0] == 0).all()


@interpreter
@pytest.mark.parametrize(("packed", "window", "handling"), [(True, None, "shuffle"), (False, 11, "redistribute")])
def test_a_forward_of_many_rollouts(packed, window, handling, monkeypatch):
    """Different lengths, one rollout without tokens, rows of several tiles, planes too large to hold together."""
    monkeypatch.setattr(attention_plan, "MOST_NUMBERS", 1000)
    monkeypatch.setattr(kernels, "tiling", lambda *_: SMALL._replace(rows=16, block=16))
    alignments = [
        make_alignment(problem=5, solution=9, tokens=3),
        make_alignment(tokens=0),
        make_alignment(problem=14, solution=3, student_only=2, tokens=18, query="generated", support="content"),
        make_alignment(problem=2, solution=0, tail=0, tokens=1),
    ]
    shape = {"key_heads": 1, "head_size": 16}
    student, teacher = make_batch(alignments, packed=packed, dtype=torch.float32, window=window, **shape)
    check_batch(alignments, student, teacher, 1e-5, handling=handling)


@interpreter
def test_each_head_by_itself():
    alignment = make_alignment(problem=5, solution=6, student_only=1, teacher_only=2, tokens=6, first_token=False)
    layers = make_layers(alignment, key_heads=1, group=3, head_size=16, window=9, sinks=True)
    check(alignment, layers, torch.float32, 1e-5, heads="each")


@interpreter
def test_strides_of_all_kinds():
    alignment = make_alignment(tokens=6)
    student, teacher = make_layers(alignment, key_heads=1, group=2, head_size=16, dtype=torch.float32)
    expected = attention_loss(student, teacher, alignment, impl="reference")
    wide = torch.randn(2, 9, 17)
    wide[:, :6, 1:] = student.query_HTD.detach()
    strange = replace(student, query_HTD=wide[:, :6, 1:].requires_grad_())
    actual = attention_loss(strange, teacher, alignment, impl="fused")
    torch.testing.assert_close(actual.loss, expected.loss)
    for gradient, wanted in zip(gradients(actual.loss, strange), gradients(expected.loss, student), strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-6, rtol=1e-4)


@interpreter
def test_no_tokens_and_no_rollouts():
    alignment = make_alignment(tokens=0)
    student, teacher = make_layers(alignment, head_size=16, dtype=torch.float32)
    output = attention_loss(student, teacher, alignment, impl="fused")
    assert output.loss.item() == 0
    assert output.divergence_T.shape == (0,)
    assert all((gradient == 0).all() for gradient in gradients(output.loss, student))
    empty = LayerBatch(torch.zeros(1, 2, 4, 16, requires_grad=True), torch.zeros(1, 2, 4, 16), (), 1.0)
    for impl in ("fused", "chunked"):
        loss = attention_losses(empty, empty, [], impl=impl).loss
        assert (torch.autograd.grad(loss, empty.query_BHND)[0] == 0).all()


@interpreter
def test_only_what_is_wanted_is_computed():
    alignment = make_alignment(tokens=3)
    student, teacher = make_layers(alignment, key_heads=1, head_size=16, dtype=torch.float32)
    full = attention_loss(student, teacher, alignment, impl="fused")
    both = gradients(full.loss, student)
    for part, gradient in enumerate(both):
        tensors = [student.query_HTD.detach(), student.key_KSD.detach()]
        tensors[part].requires_grad_()
        loss = attention_loss(LayerAttention(*tensors, student.scaling), teacher, alignment, impl="fused").loss
        assert torch.equal(torch.autograd.grad(loss, tensors[part])[0], gradient)
    assert attention_loss(student.detach(), teacher, alignment, impl="fused").loss.item() == full.loss.item()


@interpreter
@pytest.mark.parametrize("kind", ["forward_kl", "jsd"])
def test_steps_without_anything_to_compare_are_guarded(kind):
    alignment = make_alignment(support="response", tokens=3)
    student, teacher = make_layers(alignment, key_heads=1, head_size=16, dtype=torch.float32)
    output = attention_loss(student, teacher, alignment, divergence=kind, impl="fused")
    assert output.divergence_T[0] == 0
    assert all(gradient.isfinite().all() for gradient in gradients(output.loss, student))
    student, teacher = make_layers(alignment, key_heads=1, head_size=16, sinks=True, dtype=torch.float32)
    with torch.no_grad():
        student.sinks_H.fill_(100.0)
    output = attention_loss(student, teacher, alignment, divergence=kind, impl="fused")
    assert output.loss.item() == 0
    assert all((gradient == 0).all() for gradient in gradients(output.loss, student))


@interpreter
def test_nan_in_a_query_shows_in_its_own_reading():
    alignment = make_alignment(tokens=4)
    student, teacher = make_layers(alignment, key_heads=1, head_size=16, dtype=torch.float32)
    with torch.no_grad():
        student.query_HTD[0, 2, 0] = torch.nan
    divergence_T = attention_loss(student, teacher, alignment, impl="fused").divergence_T
    assert divergence_T.isnan().nonzero().flatten().tolist() == [2]


@interpreter
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda s, t, a: (to_leaf(s, torch.float64), to_leaf(t, torch.float64).detach(), a), "not all bfloat16"),
        (lambda s, t, a: (s, replace(t, softcap=3.0), a), "one role alone"),
        (
            lambda s, t, a: (
                replace(s, query_HTD=s.query_HTD[:, ::2]),
                replace(t, query_HTD=t.query_HTD[:, ::2]),
                replace(a, student_query=a.student_query[::2], teacher_query=a.teacher_query[::2]),
            ),
            "do not follow one another",
        ),
    ],
)
def test_what_has_no_kernel_is_chunked_and_said_once(change, reason, caplog):
    fused.say_once.cache_clear()
    alignment = make_alignment(tokens=6)
    student, teacher = make_layers(alignment, head_size=16, dtype=torch.float32)
    student, teacher, alignment = change(student, teacher, alignment)
    with caplog.at_level(logging.WARNING):
        actual = [attention_loss(student, teacher, alignment, impl="fused").loss for _ in range(2)]
    assert [reason in record.getMessage() for record in caplog.records] == [True]
    assert actual[0] == actual[1] == attention_loss(student, teacher, alignment, impl="chunked").loss


@interpreter
def test_without_a_gpu_auto_is_chunked_and_fused_says_what_to_do(monkeypatch):
    alignment = make_alignment(tokens=3)
    student, teacher = make_layers(alignment, head_size=16, dtype=torch.float32)
    monkeypatch.setattr(kernels, "attention_losses", None)
    assert (
        attention_loss(student, teacher, alignment).loss
        == attention_loss(student, teacher, alignment, impl="chunked").loss
    )
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(ConfigError, match="tensors are on cpu; use impl: auto"):
        attention_loss(student, teacher, alignment, impl="fused")


@interpreter
def test_a_divergence_without_a_kernel_is_chunked_or_refused(fourth_kind, caplog, monkeypatch):
    alignment = make_alignment(tokens=3)
    student, teacher = make_layers(alignment, key_heads=1, head_size=16, dtype=torch.float32)
    with pytest.raises(ConfigError, match=f"fused has no kernel for divergence: {fourth_kind}; use impl: auto"):
        attention_loss(student, teacher, alignment, divergence=fourth_kind, impl="fused")
    query = student.query_HTD.detach().as_subclass(OnGpu)
    actual = [
        attention_loss(replace(student, query_HTD=query), teacher, alignment, divergence=fourth_kind).loss
        for _ in range(2)
    ]
    assert actual[0] == actual[1] == attention_loss(student, teacher, alignment, divergence=fourth_kind).loss
    assert sum("no kernel for divergence" in record.getMessage() for record in caplog.records) == 1


@interpreter
@pytest.mark.parametrize("kernel_code", [3, None])
def test_a_kernel_that_does_not_know_a_divergence_does_not_compile(kernel_code, monkeypatch):
    alignment = make_alignment(tokens=3)
    layers = make_layers(alignment, key_heads=1, head_size=16, dtype=torch.float32)
    student, teacher = (layer.detach().batch() for layer in layers)
    formulas = replace(DIVERGENCES["jsd"], name="fourth", kernel_code=kernel_code)
    comparison = AttentionComparison(formulas, 0.5, "project")
    with pytest.raises(Exception, match="the kernels do not know this divergence"):
        kernels.attention_losses(student, teacher, [alignment], comparison, [0], None)


# ------------------------------------------------------------------------------------------------------------- GPU


def real_alignment(tokens=301, **options):
    return make_alignment(
        **{"problem": 90, "solution": 150, "student_only": 3, "teacher_only": 5, "tail": 7} | options, tokens=tokens
    )


@pytest.mark.gpu
@pytest.mark.parametrize("handling", HANDLINGS)
@pytest.mark.parametrize("kind", KINDS)
def test_gpu_every_divergence_and_handling(kind, handling):
    alignment = real_alignment()
    check(alignment, make_layers(alignment, key_heads=2, head_size=128), torch.bfloat16, 3e-3, "cuda", divergence=kind,
          jsd_beta=0.3, handling=handling)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256])
def test_gpu_head_sizes_and_precisions(head_size, dtype):
    alignment = real_alignment(query="generated", support="context")
    tolerance = {torch.bfloat16: 3e-3, torch.float16: 5e-4, torch.float32: 2e-5}[dtype]
    check(alignment, make_layers(alignment, key_heads=2, head_size=head_size), dtype, tolerance, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 8])
def test_gpu_groups_of_query_heads(group):
    alignment = real_alignment()
    layers = make_layers(alignment, key_heads=2, group=group, head_size=128)
    check(alignment, layers, torch.bfloat16, 3e-3, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("extras", [{"window": 1}, {"window": 64}, {"window": 200}, {"softcap": 3.0}, {"sinks": True},
                                    {"window": 131, "softcap": 20.0, "sinks": True}])  # fmt: skip
def test_gpu_windows_caps_and_sinks(extras, dtype):
    alignment = real_alignment()
    tolerance = {torch.bfloat16: 3e-3, torch.float32: 2e-5}[dtype]
    check(alignment, make_layers(alignment, key_heads=1, head_size=64, **extras), dtype, tolerance, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("heads", ["mean", "each"])
@pytest.mark.parametrize("support", ["content", "problem", "response"])
def test_gpu_supports(support, heads):
    alignment = real_alignment(support=support, first_token=False)
    check(alignment, make_layers(alignment, key_heads=2, head_size=128), torch.bfloat16, 3e-3, "cuda", heads=heads)


@pytest.mark.gpu
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("packed", [True, False])
def test_gpu_a_forward_of_many_rollouts(packed, window, monkeypatch):
    monkeypatch.setattr(attention_plan, "MOST_NUMBERS", 1 << 18)
    alignments = [real_alignment(tokens=tokens) for tokens in (700, 0, 1, 130, 256, 513)]
    student, teacher = make_batch(
        alignments, packed=packed, dtype=torch.bfloat16, device="cuda", head_size=128, key_heads=2, window=window
    )
    check_batch(alignments, student, teacher, 3e-3, handling="redistribute")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpu_repeats_bit_by_bit(dtype):
    alignment = real_alignment(tokens=2000)
    student, teacher = (move(x, dtype, "cuda") for x in make_layers(alignment, key_heads=4, head_size=128))
    runs = []
    for _ in range(3):
        output = attention_loss(student, teacher, alignment, impl="fused")
        runs.append([*output, *gradients(output.loss, student)])
    for run in runs[1:]:
        assert all(torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gpu_low_precision_is_no_further_from_the_truth_than_the_plain_computation(dtype, kind, record_property):
    """Plain: scores and head averages in the inputs' precision, softmax and divergence in float32."""
    alignment = real_alignment(tokens=600)
    layers = make_layers(alignment, key_heads=2, group=4, head_size=128)
    student, teacher = move(layers[0], dtype, "cuda"), move(layers[1], dtype, "cuda").detach()
    exact, exact_teacher = move(student, torch.float64, "cuda"), move(teacher, torch.float64, "cuda").detach()
    truth = attention_loss(exact, exact_teacher, alignment, divergence=kind, impl="reference").loss
    expected = [truth[None], *gradients(truth, exact)]
    on_device = alignment.to("cuda")

    def rows(layer, positions, shared):
        key = layer.key_KSD.repeat_interleave(layer.query_HTD.shape[0] // layer.key_KSD.shape[0], 0)
        score = (layer.query_HTD @ key.transpose(1, 2)) * layer.scaling
        unseen = torch.arange(key.shape[1], device="cuda") > positions[:, None]
        mass = score.masked_fill(unseen, -torch.inf).softmax(-1, dtype=torch.float32).to(dtype).mean(0)[:, shared]
        return mass.float() / mass.float().sum(-1, keepdim=True)

    def plain():
        from opasd.losses.divergence import divergence

        student_rows = rows(student, on_device.student_query, on_device.student_shared)
        teacher_rows = rows(teacher, on_device.teacher_query, on_device.teacher_shared)
        return divergence(teacher_rows, student_rows, kind).mean()

    def errors(loss):
        actual = [loss[None], *gradients(loss, student)]
        return [relative_error(a, b) for a, b in zip(actual, expected, strict=True)]

    fused = errors(attention_loss(student, teacher, alignment, divergence=kind, impl="fused").loss)
    naive = errors(plain())
    record_property("errors", [fused, naive])
    assert all(a <= b for a, b in zip(fused, naive, strict=True)), (fused, naive)


@pytest.mark.gpu
def test_gpu_memory_at_4096_steps():
    alignment = real_alignment(problem=249, solution=1024, student_only=0, teacher_only=0, tokens=4096)
    for group in (2, 4):
        student, teacher = (
            move(x, torch.bfloat16, "cuda") for x in make_layers(alignment, key_heads=8, group=group, head_size=128)
        )
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        grown = gradients(attention_loss(student, teacher, alignment, impl="fused").loss, student)
        assert torch.cuda.max_memory_allocated() - before <= 130 * 2**20
        del grown


@pytest.mark.gpu
def test_gpu_is_what_auto_takes():
    alignment = real_alignment(tokens=40)
    student, teacher = (move(x, torch.bfloat16, "cuda") for x in make_layers(alignment, head_size=64))
    auto, fused, chunked = (
        attention_loss(student, teacher, alignment, impl=impl).loss for impl in ("auto", "fused", "chunked")
    )
    assert auto == fused
    assert auto != chunked
