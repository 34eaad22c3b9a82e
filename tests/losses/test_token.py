"""The token loss: the definition against loops, the chunked version against the definition, values and gradients."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measure import exact_memory
from opasd.config import TokenLossConfig
from opasd.errors import ConfigError
from opasd.losses.token import OutputHead, token_loss
from opasd.losses.token_chunked import WORKSPACE_BUFFERS, WORKSPACE_BYTES, default_chunk_tokens
from tests.losses.cases import check_settings, relative_error

ROOT = Path(__file__).parents[2]
KINDS = ("forward_kl", "reverse_kl", "jsd")
CLIPS = ("none", "pointwise", "per_token")


def make_case(tokens=5, hidden=6, vocabulary=11, *, bias=False, scale=1.0, softcap=None, spread=2.0, seed=0):
    """A student that needs gradients everywhere, and a teacher with a head of its own."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape, factor=1.0):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * factor

    student_hidden = draw(tokens, hidden)
    weight = draw(vocabulary, hidden, factor=spread / hidden**0.5)
    teacher_hidden = student_hidden + 0.5 * draw(tokens, hidden)
    head = OutputHead(
        weight.requires_grad_(), draw(vocabulary).requires_grad_() if bias else None, scale=scale, softcap=softcap
    )
    teacher_head = replace(head.detach(), weight_VE=weight.detach() + 0.1 * draw(vocabulary, hidden))
    if head.bias_V is not None:
        teacher_head = replace(teacher_head, bias_V=head.bias_V.detach() + 0.1 * draw(vocabulary))
    return student_hidden.requires_grad_(), head, teacher_hidden, teacher_head


def gradients(loss, hidden, head, *, retain_graph=False):
    leaves = [tensor for tensor in (hidden, head.weight_VE, head.bias_V) if tensor is not None]
    return torch.autograd.grad(loss, leaves, retain_graph=retain_graph)


def loop_loss(hidden, head, teacher_hidden, teacher_head, *, kind, beta, temperature, clip, threshold):
    """Every token and every vocabulary entry, with Python numbers."""

    def distribution(row, head):
        logits = [sum(a * b for a, b in zip(row, w, strict=True)) for w in head.weight_VE.tolist()]
        if head.bias_V is not None:
            logits = [z + b for z, b in zip(logits, head.bias_V.tolist(), strict=True)]
        logits = [z * head.scale for z in logits]
        if head.softcap is not None:
            logits = [head.softcap * math.tanh(z / head.softcap) for z in logits]
        weights = [math.exp(z / temperature) for z in logits]
        return [w / sum(weights) for w in weights]

    losses = []
    for student_row, teacher_row in zip(hidden.tolist(), teacher_hidden.tolist(), strict=True):
        total = 0.0
        divergence = 0.0
        for s, t in zip(distribution(student_row, head), distribution(teacher_row, teacher_head), strict=True):
            m = beta * t + (1 - beta) * s
            term = {
                "forward_kl": t * math.log(t / s),
                "reverse_kl": s * math.log(s / t),
                "jsd": beta * t * math.log(t / m) + (1 - beta) * s * math.log(s / m),
            }[kind]
            divergence += term
            total += min(term, threshold) if clip == "pointwise" else term
        losses.append((min(total, threshold) if clip == "per_token" else total, divergence))
    return losses


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_both_implementations_equal_loops(kind, clip, impl):
    case = make_case(bias=True, scale=0.7, softcap=4.0)
    output = token_loss(
        *case,
        divergence=kind,
        jsd_beta=0.3,
        temperature=1.3,
        clip=clip,
        clip_threshold=0.004,
        impl=impl,
        chunk_tokens=2,
    )
    expected = loop_loss(*case, kind=kind, beta=0.3, temperature=1.3, clip=clip, threshold=0.004)
    torch.testing.assert_close(output.loss_T.tolist(), [loss for loss, _ in expected], atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(output.divergence_T.tolist(), [d for _, d in expected], atol=1e-12, rtol=1e-10)
    assert output.loss.item() == pytest.approx(sum(loss for loss, _ in expected) / len(expected), abs=1e-12)
    assert (output.clipped_T > 0).any() == (clip != "none")


@st.composite
def cases(draw):
    case = make_case(
        tokens=draw(st.integers(1, 9)),
        hidden=draw(st.integers(1, 8)),
        vocabulary=draw(st.integers(2, 40)),
        bias=draw(st.booleans()),
        scale=draw(st.sampled_from([1.0, 0.3])),
        softcap=draw(st.sampled_from([None, 3.0])),
        spread=draw(st.sampled_from([0.1, 2.0, 12.0])),
        seed=draw(st.integers(0, 999)),
    )
    options = {
        "divergence": draw(st.sampled_from(KINDS)),
        "jsd_beta": draw(st.floats(0.05, 0.95)),
        "temperature": draw(st.sampled_from([0.5, 1.0, 1.1])),
        "clip": draw(st.sampled_from(CLIPS)),
        "clip_threshold": draw(st.sampled_from([1e-3, 0.05, 1.0])),
        "top_k": draw(st.sampled_from([None, None, 1, 3, 50])),
    }
    return case, options, draw(st.integers(1, 12))


@settings(max_examples=100)
@given(case=cases())
def test_chunked_equals_definition(case):
    tensors, options, chunk = case
    weights = torch.rand(tensors[0].shape[0], dtype=torch.float64)
    expected = token_loss(*tensors, weights_T=weights, impl="reference", **options)
    actual = token_loss(*tensors, weights_T=weights, impl="chunked", chunk_tokens=chunk, **options)
    for name in expected._fields:
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), atol=1e-10, rtol=1e-8)
    expected_gradients = gradients(1.7 * expected.loss, *tensors[:2])
    for gradient, wanted in zip(gradients(1.7 * actual.loss, *tensors[:2]), expected_gradients, strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("clip", CLIPS)
def test_a_registered_divergence_runs_in_chunks(fourth_kind, clip, top_k, caplog):
    case = make_case(bias=True, softcap=5.0)
    options = {"divergence": fourth_kind, "clip": clip, "clip_threshold": 0.004, "top_k": top_k}
    expected = token_loss(*case, impl="reference", **options)
    for impl in ("chunked", "auto"):
        actual = token_loss(*case, impl=impl, chunk_tokens=2, **options)
        for name in expected._fields:
            torch.testing.assert_close(getattr(actual, name), getattr(expected, name), atol=1e-12, rtol=1e-10)
        expected_gradients = gradients(expected.loss, *case[:2], retain_graph=True)
        for gradient, wanted in zip(gradients(actual.loss, *case[:2]), expected_gradients, strict=True):
            torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=1e-9)
    said = ["no log_terms of its own; autograd computes them" in record.getMessage() for record in caplog.records]
    assert said == ([True] if fourth_kind == "hellinger" else [])


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_the_chunked_backward(kind, clip, top_k):
    hidden, head, teacher_hidden, teacher_head = make_case(tokens=3, bias=True, softcap=5.0)

    def loss(hidden, weight, bias):
        student_head = replace(head, weight_VE=weight, bias_V=bias)
        return token_loss(
            hidden, student_head, teacher_hidden, teacher_head, divergence=kind, clip=clip, top_k=top_k, chunk_tokens=2
        ).loss

    assert torch.autograd.gradcheck(loss, (hidden, head.weight_VE, head.bias_V))


def test_closed_form_of_the_pointwise_gradient():
    """dL/dz_S = (p_S · m_U − p_T · 1[U]) / τ with U the unclipped entries and m_U the teacher's mass on them."""
    tau, threshold = 1.1, 0.02
    hidden, head, teacher_hidden, teacher_head = make_case(tokens=1, hidden=11, vocabulary=11)
    head = replace(head, weight_VE=torch.eye(11, dtype=torch.float64))  # hidden states are the logits
    output = token_loss(
        hidden, head, teacher_hidden, teacher_head, temperature=tau, clip="pointwise", clip_threshold=threshold
    )
    (gradient,) = torch.autograd.grad(output.loss, hidden)
    student = (head.logits(hidden) / tau).softmax(-1)[0].detach()
    teacher = (teacher_head.logits(teacher_hidden) / tau).softmax(-1)[0].detach()
    unclipped = teacher * (teacher / student).log() <= threshold
    assert 0 < unclipped.sum() < 11
    torch.testing.assert_close(gradient[0], (student * teacher[unclipped].sum() - teacher * unclipped) / tau)


@given(seed=st.integers(0, 99), kind=st.sampled_from(KINDS))
def test_top_k_is_a_coarser_view(seed, kind):
    """Lumping tokens together never adds divergence, more of them shows more, and all of them show everything."""
    case = make_case(vocabulary=12, seed=seed)
    values = [token_loss(*case, divergence=kind, top_k=k).divergence_T for k in (1, 3, 8, 11, 12, 99)]
    full = token_loss(*case, divergence=kind).divergence_T
    for coarse, fine in zip(values, [*values[1:], full], strict=True):
        assert (coarse <= fine + 1e-12).all()
    torch.testing.assert_close(values[-1], full)
    torch.testing.assert_close(values[-3], full)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_equal_models_have_nothing_to_learn(kind, impl):
    hidden, head, _, _ = make_case()
    output = token_loss(hidden, head, hidden, head, divergence=kind, impl=impl)
    assert output.loss.item() == 0
    assert max(gradient.abs().max() for gradient in gradients(output.loss, hidden, head)) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_vocabulary_entries_of_probability_zero(kind, impl):
    """A head may mask entries with −inf, and float32 probabilities underflow; neither makes a NaN."""
    hidden, head, teacher_hidden, teacher_head = make_case(bias=True)
    bias = head.bias_V.detach().clone()
    bias[2] = -torch.inf
    bias[3] = -1e4
    head, teacher_head = replace(head, bias_V=bias), replace(teacher_head, bias_V=bias.flip(0))
    output = token_loss(hidden, head, teacher_hidden, teacher_head, divergence=kind, impl=impl)
    assert all(part.isfinite().all() for part in output)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.loss, (hidden, head.weight_VE)))


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("masked", [False, True])
def test_entries_of_probability_zero_beside_the_top(kind, impl, masked):
    """All that is not among the teacher's k likeliest may be nothing at all."""
    hidden, head, teacher_hidden, _ = make_case(bias=True)
    bias = torch.full((11,), -torch.inf if masked else -1e4, dtype=torch.float64)
    bias[:3] = head.bias_V.detach()[:3]
    head = replace(head, bias_V=bias)
    output = token_loss(hidden, head, teacher_hidden, head, divergence=kind, top_k=5, impl=impl)
    assert all(part.isfinite().all() for part in output)
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(output.loss, (hidden, head.weight_VE)))


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("logit", [-84.0, -88.0, -92.0, -120.0, -800.0])
def test_what_is_not_among_the_top_is_floored_as_one_event(logit, kind, clip):
    """Fifty entries: each alone is below the floor of the logarithm, all together are above it or not."""
    hidden, head, teacher_hidden, teacher_head = make_case(vocabulary=53, bias=True)
    rest = (torch.arange(53) >= 3).double()
    options = {"divergence": kind, "clip": clip, "clip_threshold": 20.0, "top_k": 3}
    for student_logit, teacher_logit in ((logit, -6.0), (-6.0, logit), (logit, logit)):
        student_head = replace(head, bias_V=(student_logit * rest).requires_grad_())
        case = (hidden, student_head, teacher_hidden, replace(teacher_head, bias_V=teacher_logit * rest))
        expected = token_loss(*case, impl="reference", **options)
        actual = token_loss(*case, impl="chunked", chunk_tokens=2, **options)
        for name in expected._fields:
            torch.testing.assert_close(getattr(actual, name), getattr(expected, name), atol=1e-10, rtol=1e-8)
        both = (gradients(output.loss, hidden, student_head) for output in (actual, expected))
        for gradient, wanted in zip(*both, strict=True):
            torch.testing.assert_close(gradient, wanted, atol=1e-9, rtol=1e-7)


def three_tokens(dtype=torch.float64):
    """A teacher of (.6, .3, .1) and a student of (.5, .4, .1), in logits."""
    student, teacher = (torch.tensor([row], dtype=dtype).log() for row in ([0.5, 0.4, 0.1], [0.6, 0.3, 0.1]))
    head = OutputHead(torch.eye(3, dtype=dtype))
    return student.requires_grad_(), head, teacher, head


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_pointwise_clipping_can_step_away_from_the_teacher(impl):
    """g = p_S − p_T and g_clip = p_S m_U − p_T 1[U]; token 1 is clipped, and its teacher's probability is unlearned."""
    case = three_tokens()
    output = token_loss(*case, clip="pointwise", clip_threshold=0.05, impl=impl)
    assert output.reversed_T.tolist() == [1.0]
    assert output.clip_inner_T.tolist() == pytest.approx([-0.034])  # (.2, −.14, −.06) · (−.1, .1, 0)
    assert output.gradient_square_T.tolist() == pytest.approx([0.02])
    (gradient,) = torch.autograd.grad(output.loss, case[0])
    torch.testing.assert_close(gradient, torch.tensor([[0.2, -0.14, -0.06]], dtype=torch.float64))
    after = case[0].detach() - 0.1 * gradient
    assert token_loss(after, *case[1:]).loss > token_loss(*case).loss  # a step down the clipped loss: further away
    for options in ({"clip": "pointwise", "clip_threshold": 9.0}, {"clip": "per_token"}, {"clip": "none"}):
        assert token_loss(*case, impl=impl, **options).reversed_T.tolist() == [0.0]
    masked = token_loss(*case, clip="pointwise_masked", clip_threshold=0.05, impl=impl)
    assert (masked.loss.item(), masked.reversed_T.item(), masked.clip_inner_T.item()) == (0, 1, 0)
    assert not torch.autograd.grad(masked.loss, case[0])[0].any()


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_masked_clip_is_the_clip_without_the_reversed_tokens(kind, top_k):
    case = make_case(tokens=60, vocabulary=9, seed=5, bias=True, softcap=4.0)
    options = {"divergence": kind, "top_k": top_k, "clip_threshold": 0.01}
    weights = torch.rand(60, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = token_loss(*case, clip="pointwise", impl="reference", weights_T=weights, **options)
    kept = weights * (1 - plain.reversed_T)
    expected = token_loss(*case, clip="pointwise", impl="reference", weights_T=kept, **options)
    assert 0 < plain.reversed_T.mean() < 1
    for impl in ("reference", "chunked"):
        actual = token_loss(*case, clip="pointwise_masked", impl=impl, weights_T=weights, chunk_tokens=7, **options)
        assert actual.loss.item() == pytest.approx(expected.loss.item(), rel=1e-10)
        assert torch.equal(actual.reversed_T, plain.reversed_T)
        torch.testing.assert_close(actual.clip_inner_T, plain.clip_inner_T.clamp_min(0))
        wanted = gradients(expected.loss, *case[:2], retain_graph=True)
        for gradient, one in zip(gradients(actual.loss, *case[:2]), wanted, strict=True):
            torch.testing.assert_close(gradient, one, atol=1e-12, rtol=1e-9)
    with pytest.raises(ConfigError, match="has no kernel for clip: pointwise_masked|needs Triton"):
        token_loss(*case, clip="pointwise_masked", impl="fused", **options)


@pytest.mark.parametrize("top_k", [None, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_reversed_tokens_are_those_whose_clipped_gradient_points_away(kind, top_k):
    """Against autograd on all logits at once, for every token of a random case, without `top_k`."""
    case = make_case(tokens=60, vocabulary=9, seed=5)
    options = {"divergence": kind, "top_k": top_k, "clip_threshold": 0.01}
    expected = token_loss(*case, clip="pointwise", impl="reference", **options).reversed_T
    actual = token_loss(*case, clip="pointwise", chunk_tokens=7, **options).reversed_T
    assert torch.equal(actual, expected)
    assert 0 < actual.mean() < 1
    if top_k is None:
        square = OutputHead(torch.eye(9, dtype=torch.float64))
        student, teacher = case[1].logits(case[0]).detach().requires_grad_(), case[3].logits(case[2])
        whole, clipped = (
            torch.autograd.grad(token_loss(student, square, teacher, square, clip=clip, **options).loss, student)[0]
            for clip in ("none", "pointwise")
        )
        assert torch.equal(actual, ((whole * clipped).sum(-1) < 0).double())


def gap_case(gap, dtype, hidden_size=2):
    """The teacher is sure of token 0, the student of token 1: both have two logits that differ by `gap`."""
    head = OutputHead(torch.eye(hidden_size, dtype=dtype))
    hidden = torch.zeros(1, hidden_size, dtype=dtype)
    student, teacher = hidden.clone(), hidden.clone()
    student[0, 1], teacher[0, 0] = gap, gap
    return student.requires_grad_(), head, teacher, head


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("top_k", [None, 1])
@pytest.mark.parametrize("gap", [80.0, 100.0, 1000.0])
def test_a_student_that_is_sure_of_something_else_is_still_pulled(gap, top_k, impl, dtype):
    """KL = gap / τ and d KL / d logits = (p_S − p_T) / τ, however unlikely the teacher's token is for the student."""
    case = gap_case(gap, dtype, 3)
    output = token_loss(*case, divergence="forward_kl", temperature=1.1, top_k=top_k, impl=impl)
    assert output.loss.item() == pytest.approx(gap / 1.1, rel=1e-5)
    (gradient,) = torch.autograd.grad(output.loss, case[0])
    torch.testing.assert_close(gradient, torch.tensor([[-1, 1, 0]], dtype=dtype) / 1.1, atol=1e-6, rtol=0)
    reverse = token_loss(*case, divergence="reverse_kl", temperature=1.1, impl=impl)
    assert reverse.loss.item() == pytest.approx(gap / 1.1, rel=1e-5)


def test_settings_are_refused_as_in_a_configuration():
    case = make_case(tokens=2)
    check_settings(lambda **setting: token_loss(*case, **setting), TokenLossConfig, [*TokenLossConfig.model_fields])
    with pytest.raises(ConfigError, match="^clip: got 'foo'; use one of none, pointwise, pointwise_masked, per_token$"):
        token_loss(*case, clip="foo")
    with pytest.raises(ConfigError, match="^top_k: got 0; use a whole number above 0, or None$"):
        token_loss(*case, top_k=0)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_no_tokens(impl):
    case = make_case(tokens=0)
    output = token_loss(*case, impl=impl)
    assert output.loss.item() == 0
    assert output.loss_T.shape == (0,)
    assert all((gradient == 0).all() for gradient in gradients(output.loss, *case[:2]))


def test_nan_shows_whatever_the_clip():
    hidden, head, teacher_hidden, teacher_head = make_case()
    with torch.no_grad():
        hidden[1, 0] = math.nan
    for clip in CLIPS:
        for impl in ("reference", "chunked"):
            loss_T = token_loss(hidden, head, teacher_hidden, teacher_head, clip=clip, impl=impl).loss_T
            assert loss_T.isnan().tolist() == [False, True, False, False, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("clip", CLIPS)
def test_low_precision_is_no_further_from_the_truth_than_the_plain_computation(clip, dtype):
    hidden, head, teacher_hidden, _ = make_case(tokens=20, hidden=64, vocabulary=300)
    low = hidden.detach().to(dtype).requires_grad_()
    low_head = OutputHead(head.weight_VE.detach().to(dtype).requires_grad_())
    low_teacher = teacher_hidden.to(dtype)
    exact = low.detach().double().requires_grad_()
    exact_head = OutputHead(low_head.weight_VE.detach().double().requires_grad_())
    options = {"clip": clip, "clip_threshold": 0.02}
    truth = token_loss(exact, exact_head, low_teacher.double(), exact_head, impl="reference", **options)
    expected = [truth.loss[None], *gradients(truth.loss, exact, exact_head)]

    def errors(impl):
        output = token_loss(low, low_head, low_teacher, low_head, impl=impl, **options)
        actual = [output.loss[None], *gradients(output.loss, low, low_head)]
        return [relative_error(a, b) for a, b in zip(actual, expected, strict=True)]

    for error, plain_error in zip(errors("chunked"), errors("reference"), strict=True):
        assert error <= 1.5 * plain_error + 1e-5  # float32's errors depend on the order in which a CPU adds


def test_a_frozen_head_gets_no_gradient_and_the_teacher_never_does():
    hidden, head, teacher_hidden, teacher_head = make_case()
    teacher_hidden.requires_grad_()
    teacher_head.weight_VE.requires_grad_()
    for impl in ("reference", "chunked"):
        loss = token_loss(hidden, head.detach(), teacher_hidden, teacher_head, impl=impl).loss
        leaves = [hidden, teacher_hidden, teacher_head.weight_VE]
        student, *teacher = torch.autograd.grad(loss, leaves, allow_unused=True)
        assert student is not None
        assert teacher == [None, None]


def test_workspace_is_bounded_for_any_length():
    assert default_chunk_tokens(151_936) * 151_936 * 4 * WORKSPACE_BUFFERS <= WORKSPACE_BYTES
    assert default_chunk_tokens(10**9) == 1


MEMORY_SCRIPT = """
import os, sys, torch
from benchmarks.measure import peak_bytes
from opasd.losses.token import OutputHead, token_loss
torch.set_num_threads(1)
tokens, vocabulary, chunk = 128, 151_936, 32
for words in sys.argv[1:]:
    if child := os.fork():  # a process of its own for each, which does not import torch again
        assert os.waitpid(child, 0)[1] == 0
        continue
    dtype, divergence, clip, top_k = words.split()
    dtype = getattr(torch, dtype)
    head = OutputHead(torch.randn(vocabulary, 4).to(dtype))
    hidden = torch.randn(tokens, 4).to(dtype).requires_grad_()
    options = dict(divergence=divergence, clip=clip, top_k=int(top_k) or None, chunk_tokens=chunk)
    token_loss(hidden[:1], head, hidden[:1], head, **options).loss.backward()
    before = peak_bytes()
    token_loss(hidden, head, hidden + 1, head, **options).loss.backward()
    print((peak_bytes() - before) / (chunk * vocabulary * 4), flush=True)
    os._exit(0)
"""


def test_peak_memory_is_the_stated_workspace():
    """Measured in buffers of [chunk, V] float32, at a vocabulary of 151,936: never [T, V] (4 chunks here)."""
    options = ["float32 jsd pointwise 20", "float32 reverse_kl pointwise 0", "bfloat16 forward_kl per_token 0"]
    command = [sys.executable, "-c", MEMORY_SCRIPT, *options]
    run = subprocess.run(command, cwd=ROOT, env=exact_memory(), capture_output=True, text=True, check=True)
    buffers = dict(zip(options, map(float, run.stdout.split()), strict=True))
    assert {words: number for words, number in buffers.items() if number > WORKSPACE_BUFFERS} == {}
    assert min(buffers.values()) > 1, "nothing was measured"
