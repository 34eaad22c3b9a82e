"""The attention loss: the definition against loops, the chunked version against the definition, with gradients."""

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
from opasd.config import AttentionLossConfig
from opasd.errors import ConfigError
from opasd.losses.attention import attention_loss, attention_losses, attention_rows
from opasd.losses.divergence import divergence
from opasd.losses.projection import shuffle_permutation, target
from tests.losses.cases import (
    alignments,
    check_settings,
    gradients,
    make_alignment,
    make_batch,
    make_layers,
    relative_error,
    to_leaf,
)

ROOT = Path(__file__).parents[2]
KINDS = ("forward_kl", "reverse_kl", "jsd")
HANDLINGS = ("project", "redistribute", "shuffle")


def loop_heads(role, positions):
    """Every head's attention with nothing but Python numbers: rows [head][step][key]."""
    query, key = role.query_HTD.tolist(), role.key_KSD.tolist()
    group = len(query) // len(key)
    heads = []
    for head, queries in enumerate(query):
        rows = []
        for t, position in enumerate(positions.tolist()):
            row = [0.0] * len(key[0])
            first = 0 if role.sliding_window is None else max(0, position - role.sliding_window + 1)
            scores = {}
            for j in range(first, position + 1):
                score = role.scaling * sum(a * b for a, b in zip(queries[t], key[head // group][j], strict=True))
                scores[j] = score if role.softcap is None else role.softcap * math.tanh(score / role.softcap)
            extra = [] if role.sinks_H is None else [role.sinks_H[head].item()]
            total = sum(math.exp(score) for score in [*scores.values(), *extra])
            for j, score in scores.items():
                row[j] = math.exp(score) / total
            rows.append(row)
        heads.append(rows)
    return heads


def loop_mean(heads):
    return [[[sum(cell) / len(heads) for cell in zip(*rows, strict=True)] for rows in zip(*heads, strict=True)]]


def loop_loss(student, teacher, alignment, kind, beta, heads):
    """Projection and divergence of each step, entry by entry: the support is what both queries can reach.

    Returns divergences, ρ, and the shares of template tokens and of the first, each a mean over heads if they are
    compared one by one.
    """
    student_heads = loop_heads(student, alignment.student_query)
    teacher_heads = loop_heads(teacher, alignment.teacher_query)
    if heads == "mean":
        student_heads, teacher_heads = loop_mean(student_heads), loop_mean(teacher_heads)
    shared = [*zip(alignment.student_shared.tolist(), alignment.teacher_shared.tolist(), strict=True)]
    left_out = [*zip(*alignment.left_out.tolist(), strict=True)]
    window = student.sliding_window or 10**9

    def reached(t, pair):
        distances = alignment.student_query[t].item() - pair[0], alignment.teacher_query[t].item() - pair[1]
        return all(0 <= distance < window for distance in distances)

    columns = []
    for t in range(alignment.num_tokens):
        cells = []
        for student_rows, teacher_rows in zip(student_heads, teacher_heads, strict=True):
            s, u = student_rows[t], teacher_rows[t]
            pairs = [(u[b], s[a]) for a, b in shared if reached(t, (a, b))]
            solution = sum(u[i] for i in alignment.solution.tolist())
            total_t, total_s = sum(a for a, _ in pairs), sum(b for _, b in pairs)
            rows = torch.tensor([[a / total_t, b / total_s] for a, b in pairs], dtype=torch.float64).reshape(-1, 2)
            everything = {a: u[b] for a, b in shared + left_out if reached(t, (a, b))}
            whole = sum(everything.values()) or 1.0
            template = sum(everything.get(a, 0.0) for a in alignment.template.tolist())
            cells.append((
                divergence(rows[:, 0], rows[:, 1], kind, beta).item(),
                solution / (solution + total_t or 1.0),
                template / whole,
                everything.get(0, 0.0) / whole,
            ))  # fmt: skip
        columns.append([sum(cell) / len(cells) for cell in zip(*cells, strict=True)])
    return [list(column) for column in zip(*columns, strict=True)]


@pytest.mark.parametrize("heads", ["mean", "each"])
@pytest.mark.parametrize("support", [("context", True), ("content", True), ("context", False), ("problem", False)])
@pytest.mark.parametrize("extras", [{}, {"window": 5}, {"softcap": 1.5, "sinks": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_definition_equals_loops(kind, extras, support, heads):
    alignment = make_alignment(student_only=2, teacher_only=1, support=support[0], first_token=support[1])
    student, teacher = make_layers(alignment, **extras)
    output = attention_loss(student, teacher, alignment, divergence=kind, jsd_beta=0.3, heads=heads, impl="reference")
    losses, *readings = loop_loss(student, teacher, alignment, kind, 0.3, heads)
    torch.testing.assert_close(output.divergence_T.tolist(), losses, atol=1e-12, rtol=1e-10)
    names = ("solution_mass_T", "template_mass_T", "first_token_mass_T")
    for name, expected in zip(names, readings, strict=True):
        torch.testing.assert_close(getattr(output, name).tolist(), expected, atol=1e-12, rtol=1e-10)
    assert output.loss.item() == pytest.approx(sum(losses) / len(losses), abs=1e-12)


@st.composite
def cases(draw):
    alignment = draw(alignments(8, 9))
    layers = make_layers(
        alignment,
        key_heads=draw(st.sampled_from([1, 2, 3])),
        group=draw(st.sampled_from([1, 2, 4, 8])),
        head_size=draw(st.sampled_from([2, 5, 8])),
        window=draw(st.sampled_from([None, None, 1, 4, 9])),
        softcap=draw(st.sampled_from([None, None, 2.0])),
        sinks=draw(st.booleans()),
        sharpness=draw(st.sampled_from([0.1, 2.0, 20.0])),
        seed=draw(st.integers(0, 999)),
    )
    options = {
        "divergence": draw(st.sampled_from(KINDS)),
        "jsd_beta": draw(st.floats(0.05, 0.95)),
        "handling": draw(st.sampled_from(HANDLINGS)),
        "shuffle_seed": draw(st.integers(0, 99)),
        "heads": draw(st.sampled_from(["mean", "mean", "each"])),
    }
    return alignment, *layers, options, draw(st.integers(1, 25))


@settings(max_examples=100)
@given(case=cases())
def test_chunked_equals_definition(case):
    alignment, student, teacher, options, chunk = case
    weights = torch.rand(alignment.num_tokens, dtype=torch.float64)
    expected = attention_loss(student, teacher, alignment, weights_T=weights, impl="reference", **options)
    actual = attention_loss(
        student, teacher, alignment, weights_T=weights, impl="chunked", chunk_queries=chunk, **options
    )
    for name in expected._fields:
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), atol=1e-10, rtol=1e-8)
    expected_gradients = gradients(1.7 * expected.loss, student)
    scale = max(gradient.abs().max() for gradient in expected_gradients).clamp_min(1e-6)
    for gradient, wanted in zip(gradients(1.7 * actual.loss, student), expected_gradients, strict=True):
        torch.testing.assert_close(gradient / scale, wanted / scale, atol=1e-8, rtol=1e-7)


@pytest.mark.parametrize("extras", [{}, {"window": 4, "softcap": 1.0, "sinks": True}])
@pytest.mark.parametrize("handling", HANDLINGS)
def test_a_registered_divergence_runs_in_chunks(fourth_kind, handling, extras, caplog):
    alignment = make_alignment(student_only=1, teacher_only=2)
    student, teacher = make_layers(alignment, **extras)
    options = {"divergence": fourth_kind, "handling": handling}
    expected = attention_loss(student, teacher, alignment, impl="reference", **options)
    actual = attention_loss(student, teacher, alignment, impl="chunked", chunk_queries=3, **options)
    for name in expected._fields:
        torch.testing.assert_close(getattr(actual, name), getattr(expected, name), atol=1e-12, rtol=1e-10)
    for gradient, wanted in zip(gradients(actual.loss, student), gradients(expected.loss, student), strict=True):
        torch.testing.assert_close(gradient, wanted, atol=1e-12, rtol=1e-9)
    said = ["no slope of its own; autograd computes it" in record.getMessage() for record in caplog.records]
    assert said == ([True] if fourth_kind == "hellinger" else [])


@pytest.mark.parametrize("extras", [{}, {"window": 4}, {"softcap": 1.0, "sinks": True}])
@pytest.mark.parametrize("kind", KINDS)
def test_gradcheck_of_the_chunked_backward(kind, extras):
    alignment = make_alignment(problem=3, solution=2, tail=1, tokens=4, student_only=1)
    student, teacher = make_layers(alignment, head_size=3, sharpness=1.0, **extras)
    leaves = [tensor for tensor in (student.query_HTD, student.key_KSD, student.sinks_H) if tensor is not None]

    def loss(query, key, sinks=None):
        layer = replace(student, query_HTD=query, key_KSD=key, sinks_H=sinks)
        return attention_loss(layer, teacher, alignment, divergence=kind, jsd_beta=0.4, chunk_queries=3).loss

    assert torch.autograd.gradcheck(loss, leaves)


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_a_teacher_without_a_solution_teaches_nothing(impl):
    alignment = make_alignment(solution=0)
    student, _ = make_layers(alignment)
    output = attention_loss(student, student.detach(), alignment, impl=impl)
    assert output.loss.item() == 0
    assert output.solution_mass_T.abs().max() == 0
    assert output.visible_mass_T.sub(1).abs().max() < 1e-12
    assert max(gradient.abs().max() for gradient in gradients(output.loss, student)) < 1e-12


def test_visible_mass_and_rho_add_up_when_everything_shared_counts():
    alignment = make_alignment()
    output = attention_loss(*make_layers(alignment), alignment)
    torch.testing.assert_close(output.visible_mass_T, 1 - output.solution_mass_T)
    assert output.solution_mass_T.min() > 0


def test_the_target_of_the_loss_is_the_theorems_projection():
    """D_β(A_T, A_S) = C_β(ρ) + (1 − βρ) D_α(Ã_T, A_S), with ρ and D_α as the loss reports them."""
    beta, alignment = 0.35, make_alignment(tokens=1)
    student, teacher = make_layers(alignment)
    rho = attention_loss(student, teacher, alignment).solution_mass_T.item()
    alpha = beta * (1 - rho) / (1 - beta * rho)
    reported = attention_loss(student, teacher, alignment, jsd_beta=alpha).divergence_T.item()
    full_teacher = attention_rows(teacher, alignment.teacher_query)[0]
    full_student = torch.zeros_like(full_teacher)
    full_student[alignment.teacher_shared] = attention_rows(student, alignment.student_query)[
        0, alignment.student_shared
    ].detach()
    least = (
        beta * rho * math.log(1 / beta)
        + beta * (1 - rho) * math.log((1 - rho) / (1 - beta * rho))
        - (1 - beta) * math.log(1 - beta * rho)
    )
    direct = divergence(full_teacher, full_student / full_student.sum(), "jsd", beta).item()
    assert direct == pytest.approx(least + (1 - beta * rho) * reported, abs=1e-12)


def test_heads_are_averaged_before_the_restriction():
    """Two heads with different mass on the support: renormalising each first would weigh them equally."""
    alignment = make_alignment(problem=2, solution=1, tail=0, tokens=1)
    student, _ = make_layers(alignment, key_heads=2, group=1, head_size=1)
    teacher_key = torch.tensor([[[0.0], [0.0], [9.0], [0.0]], [[2.0], [0.0], [-9.0], [0.0]]], dtype=torch.float64)
    teacher = replace(student.detach(), query_HTD=torch.ones(2, 1, 1, dtype=torch.float64), key_KSD=teacher_key)
    heads = [[math.exp(k[0]) for k in keys[:3]] for keys in teacher_key.tolist()]
    mean = [sum(head[j] / sum(head) for head in heads) / 2 for j in range(2)]
    expected = mean[0] / sum(mean)
    rows = attention_rows(teacher, alignment.teacher_query)[:, alignment.teacher_shared[:2]]
    assert target(rows, torch.zeros(1), torch.ones(2), "project")[0, 0].item() == pytest.approx(expected, abs=1e-12)
    wrong = sum(head[0] / (head[0] + head[1]) for head in heads) / 2
    assert abs(expected - wrong) > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_low_precision_is_no_further_from_the_truth_than_the_plain_computation(kind, dtype):
    alignment = make_alignment(problem=40, solution=60, tokens=50)
    student, teacher = make_layers(alignment, head_size=32, dtype=dtype)
    exact_student, exact_teacher = to_leaf(student, torch.float64), to_leaf(teacher, torch.float64).detach()
    options = {"divergence": kind, "chunk_queries": 17}
    truth = attention_loss(exact_student, exact_teacher, alignment, impl="reference", **options)
    exact = gradients(truth.loss, exact_student)

    def errors(impl):
        output = attention_loss(student, teacher, alignment, impl=impl, **options)
        actual = [output.loss[None], *gradients(output.loss, student)]
        return [relative_error(a, b) for a, b in zip(actual, [truth.loss[None], *exact], strict=True)]

    plain = errors("reference")
    for error, plain_error in zip(errors("chunked"), plain, strict=True):
        assert error <= 1.5 * plain_error + 1e-5  # float32's errors depend on the order in which a CPU adds


def test_nearly_all_attention_on_an_unshared_sink_keeps_its_precision():
    """A template token that takes all but 1e-6 of the attention is real; float32 must still match float64."""
    alignment = make_alignment(problem=5, solution=4, student_only=1, teacher_only=1, tokens=30)
    student, teacher = make_layers(alignment, sharpness=1.0)
    for layer, position in ((student, 5), (teacher, 5 + 4)):  # the positions of one role alone
        with torch.no_grad():
            layer.query_HTD[..., 0] = 8.0
            layer.key_KSD[..., 0] = 0.0
            layer.key_KSD[:, position, 0] = 5.0
    truth = attention_loss(student, teacher, alignment, impl="reference")
    assert truth.visible_mass_T.max() < 1e-4
    small, small_teacher = to_leaf(student, torch.float32), to_leaf(teacher, torch.float32).detach()
    actual = attention_loss(small, small_teacher, alignment)
    assert relative_error(actual.divergence_T, truth.divergence_T) < 1e-3
    for gradient, wanted in zip(gradients(actual.loss, small), gradients(truth.loss, student), strict=True):
        assert relative_error(gradient, wanted) < 1e-3


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_without_anything_to_compare_are_guarded(kind, impl):
    """support: response has nothing to show at the first step, and a sink may leave nothing anywhere."""
    alignment = make_alignment(support="response")
    student, teacher = make_layers(alignment)
    output = attention_loss(student, teacher, alignment, divergence=kind, impl=impl)
    assert output.divergence_T[0] == 0
    assert all(gradient.isfinite().all() for gradient in gradients(output.loss, student))
    alignment = make_alignment()
    student, teacher = make_layers(alignment, sinks=True)
    with torch.no_grad():
        student.sinks_H.fill_(100.0)
    output = attention_loss(student, teacher, alignment, divergence=kind, impl=impl)
    assert output.loss.item() == 0
    assert all((gradient == 0).all() for gradient in gradients(output.loss, student))


@pytest.mark.parametrize("impl", ["reference", "chunked"])
def test_no_tokens(impl):
    alignment = make_alignment(tokens=0)
    student, teacher = make_layers(alignment)
    output = attention_loss(student, teacher, alignment, impl=impl)
    assert output.loss.item() == 0
    assert output.divergence_T.shape == (0,)
    assert all((gradient == 0).all() for gradient in gradients(output.loss, student))


def test_a_single_shared_position_has_nothing_to_learn():
    alignment = make_alignment(problem=1, tail=0, tokens=3, support="problem")
    student, teacher = make_layers(alignment)
    output = attention_loss(student, teacher, alignment)
    assert output.loss.item() == 0
    assert max(gradient.abs().max() for gradient in gradients(output.loss, student)) < 1e-12


def test_nan_in_a_query_shows_in_the_reading():
    alignment = make_alignment()
    student, teacher = make_layers(alignment)
    with torch.no_grad():
        student.query_HTD[0, 2, 0] = math.nan
    divergence_T = attention_loss(student, teacher, alignment, chunk_queries=2).divergence_T
    assert divergence_T[2].isnan()
    assert divergence_T[:2].isfinite().all()


def test_no_gradient_is_formed_where_none_is_asked_for():
    alignment = make_alignment()
    student, teacher = make_layers(alignment)
    output = attention_loss(student.detach(), teacher, alignment)
    assert not output.loss.requires_grad
    with torch.no_grad():
        assert attention_loss(student, teacher, alignment).loss.item() == output.loss.item()


def test_teacher_gets_no_gradient():
    alignment = make_alignment()
    student, teacher = make_layers(alignment)
    teacher = to_leaf(teacher, torch.float64)
    for impl in ("reference", "chunked"):
        loss = attention_loss(student, teacher, alignment, impl=impl).loss
        actual = torch.autograd.grad(loss, [teacher.query_HTD, teacher.key_KSD], allow_unused=True)
        assert actual == (None, None)


def test_shuffle_is_seeded_and_differs_from_redistribution():
    alignment = make_alignment(problem=12)
    layers = make_layers(alignment)

    def loss(handling, seed):
        return attention_loss(*layers, alignment, handling=handling, shuffle_seed=seed).loss.item()

    assert loss("shuffle", 1) == loss("shuffle", 1)
    assert loss("shuffle", 1) != loss("shuffle", 2)
    assert loss("shuffle", 1) != loss("redistribute", 1)
    assert sorted(shuffle_permutation(alignment.in_prompt, 1).tolist()) == list(range(len(alignment.in_prompt)))


@pytest.mark.parametrize("impl", ["reference", "chunked"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_forward_of_many_rollouts_is_each_of_them(packed, impl):
    alignments = [
        make_alignment(tokens=5),
        make_alignment(tokens=0),
        make_alignment(problem=9, student_only=2, tokens=3, query="generated"),
    ]
    student, teacher = make_batch(alignments, packed=packed)
    options = {"handling": "shuffle", "divergence": "reverse_kl", "impl": impl}
    weights = torch.rand(8, dtype=torch.float64)
    actual = attention_losses(student, teacher, alignments, weights_T=weights, shuffle_seeds=[4, 5, 6], **options)
    alone = [
        attention_loss(
            student.sequence(i, slice(int(first), int(first) + steps)),
            teacher.sequence(i, slice(int(other), int(other) + steps)),
            alignments[i],
            weights_T=part,
            shuffle_seed=seed,
            **options,
        )
        for i, (first, other, steps, part, seed) in enumerate(
            [(7, 12, 5, weights[:5], 4), (0, 0, 0, weights[:0], 5), (13, 16, 3, weights[5:], 6)]
        )
    ]
    torch.testing.assert_close(actual.loss, sum(output.loss for output in alone))
    for name in actual._fields[1:]:
        expected = torch.cat([getattr(output, name) for output in alone])
        torch.testing.assert_close(getattr(actual, name), expected, atol=1e-12, rtol=1e-10)
    inputs = [student.query_BHND, student.key_BKND]
    together = torch.autograd.grad(actual.loss, inputs)
    summed = torch.autograd.grad(sum(output.loss for output in alone), inputs)
    for a, b in zip(together, summed, strict=True):
        torch.testing.assert_close(a, b)
    unweighted = attention_losses(student, teacher, alignments, **options)
    first, second = unweighted.divergence_T.split([5, 3])
    torch.testing.assert_close(unweighted.loss.detach(), first.mean() + second.mean())


def test_queries_that_do_not_follow_one_another():
    alignment = make_alignment(tokens=8)
    student, teacher = make_batch([alignment], packed=True)
    every = torch.arange(0, 8, 3)
    sparse = replace(
        alignment, student_query=alignment.student_query[every], teacher_query=alignment.teacher_query[every]
    )
    full = attention_losses(student, teacher, [alignment], impl="reference")
    actual = attention_losses(student, teacher, [sparse], impl="chunked")
    torch.testing.assert_close(actual.divergence_T, full.divergence_T[every])


def test_as_many_alignments_as_sequences():
    alignment = make_alignment(tokens=2)
    student, teacher = make_batch([alignment], packed=True)
    with pytest.raises(ValueError, match="2 alignments for 1 and 1 sequences"):
        attention_losses(student, teacher, [alignment, alignment])


def test_settings_are_refused_as_in_a_configuration():
    alignment = make_alignment(tokens=2)
    layers = make_layers(alignment)
    names = ("divergence", "jsd_beta", "heads", "handling", "impl", "chunk_queries")
    check_settings(lambda **setting: attention_loss(*layers, alignment, **setting), AttentionLossConfig, names)
    batch = make_batch([alignment], packed=True)
    check_settings(lambda **setting: attention_losses(*batch, [alignment], **setting), AttentionLossConfig, names)
    with pytest.raises(ConfigError, match="^handling: got 'foo'; use one of project, redistribute, shuffle$"):
        attention_loss(*layers, alignment, handling="foo")


MEMORY_SCRIPT = """
import os, sys, torch
from benchmarks.measure import peak_bytes
from tests.losses.cases import make_alignment, make_layers
from opasd.losses.attention import attention_loss
torch.set_num_threads(1)
for impl in ("chunked", "reference"):
    if child := os.fork():  # a process of its own for each, which does not import torch again
        assert os.waitpid(child, 0)[1] == 0
        continue
    for tokens in (8, 1500):  # the short one loads what the code needs
        alignment = make_alignment(problem=64, solution=64, tokens=tokens)
        student, teacher = make_layers(alignment, key_heads=2, group=4, head_size=16, dtype=torch.float32)
        before = peak_bytes()
        attention_loss(student, teacher, alignment, impl=impl, chunk_queries=64).loss.backward()
    print(peak_bytes() - before, flush=True)
    os._exit(0)
"""


def test_peak_memory_is_a_tenth_of_the_definitions():
    command = [sys.executable, "-c", MEMORY_SCRIPT]
    run = subprocess.run(command, cwd=ROOT, env=exact_memory(), capture_output=True, text=True, check=True)
    chunked, reference = map(int, run.stdout.split())
    assert 0 < chunked < reference / 10, run.stdout
