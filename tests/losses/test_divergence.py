"""Divergences: closed forms by hand, limits, hostile rows, derivatives against autograd; and the paper's theorem."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from opasd import choices
from opasd.errors import ConfigError
from opasd.losses.divergence import (
    DIVERGENCES,
    LOG_SMALLEST,
    SMALLEST,
    divergence,
    entropy,
    register_divergence,
)
from opasd.losses.projection import target

KINDS = ("forward_kl", "reverse_kl", "jsd")
betas = st.floats(0.01, 0.99)
sizes = st.integers(2, 12)


def simplex(size: int, *, zeros: bool = False) -> st.SearchStrategy[torch.Tensor]:
    """Distributions over many orders of magnitude, with exact zeros if `zeros`."""
    low = -40.0 if zeros else -12.0
    exponents = arrays(np.float64, size, elements=st.floats(low, 0))

    def normalise(values: np.ndarray) -> torch.Tensor:
        weights = np.where(values < -30, 0.0, np.exp(values))
        weights[0] += 1e-3 * (weights.sum() == 0)
        return torch.tensor(weights / weights.sum())

    return exponents.map(normalise)


@st.composite
def pairs(draw: st.DrawFn, *, zeros: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    size = draw(sizes)
    return draw(simplex(size, zeros=zeros)), draw(simplex(size, zeros=zeros))


def kl(p: torch.Tensor, q: torch.Tensor) -> float:
    """KL by the book, one entry at a time."""
    return sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True) if a > 0)


def brute(teacher: torch.Tensor, student: torch.Tensor, kind: str, beta: float) -> float:
    if kind == "forward_kl":
        return kl(teacher, student)
    if kind == "reverse_kl":
        return kl(student, teacher)
    mixture = beta * teacher + (1 - beta) * student
    return beta * kl(teacher, mixture) + (1 - beta) * kl(student, mixture)


@pytest.mark.parametrize("kind", KINDS)
@given(pair=pairs(), beta=betas)
def test_definition_equals_the_book(kind, pair, beta):
    teacher, student = pair
    assert divergence(teacher, student, kind, beta).item() == pytest.approx(
        brute(teacher, student, kind, beta), abs=1e-12
    )


def test_argument_order_and_weight_of_the_teacher():
    teacher, student = (torch.tensor(row, dtype=torch.float64) for row in ([0.9, 0.1], [0.5, 0.5]))
    forward = 0.9 * math.log(0.9 / 0.5) + 0.1 * math.log(0.1 / 0.5)
    assert divergence(teacher, student, "forward_kl").item() == pytest.approx(forward, rel=1e-9)
    # β → 0 and β → 1, rescaled, are the forward and the reverse KL (Section 3.4).
    assert divergence(teacher, student, "jsd", 1e-7).item() / 1e-7 == pytest.approx(forward, rel=1e-5)
    reverse = divergence(teacher, student, "reverse_kl").item()
    assert divergence(teacher, student, "jsd", 1 - 1e-7).item() / 1e-7 == pytest.approx(reverse, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
@given(size=sizes, beta=betas, seed=st.integers(0, 999))
def test_equal_rows_are_exactly_zero_with_zero_gradient(kind, dtype, size, beta, seed):
    row = torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=dtype).mul(4).softmax(-1)
    student = row.clone().requires_grad_()
    value = divergence(row, student, kind, beta)
    value.backward()
    assert value.item() == 0
    assert student.grad is not None
    assert (student.grad - student.grad.mean()).abs().max() < 1e-5  # a constant is no gradient on the simplex
    assert DIVERGENCES[kind].slope(row, row, beta).abs().max() == 0
    term, _ = DIVERGENCES[kind].log_terms(row.log(), row.log(), beta)
    assert term.abs().max() == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_hot_and_zero_entries_stay_finite(kind, dtype):
    rows = torch.tensor([[1, 0, 0], [0, 1, 0], [0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]], dtype=dtype)
    for teacher in rows:
        for row in rows:
            student = row.clone().requires_grad_()
            value = divergence(teacher, student, kind, 0.3)
            value.backward()
            assert value.isfinite()
            assert value >= 0
            assert (value == 0) == torch.equal(teacher, row)
            assert student.grad is not None
            assert student.grad.isfinite().all()
            assert DIVERGENCES[kind].slope(teacher, row, 0.3).isfinite().all()


def test_disjoint_rows():
    teacher, student = (torch.tensor(row, dtype=torch.float64) for row in ([1, 0], [0, 1]))
    assert divergence(teacher, student, "jsd", 0.5).item() == pytest.approx(math.log(2))
    assert divergence(teacher, student, "forward_kl").item() == pytest.approx(-math.log(SMALLEST))


@pytest.mark.parametrize("kind", KINDS)
@given(pair=pairs(zeros=True), beta=betas)
def test_hostile_rows_are_finite_and_never_negative(kind, pair, beta):
    teacher, student = pair
    value = divergence(teacher, student, kind, beta)
    assert value.isfinite()
    assert value >= -1e-12
    if kind == "jsd":
        assert value <= -beta * math.log(beta) - (1 - beta) * math.log(1 - beta) + 1e-12


@pytest.mark.parametrize("kind", KINDS)
@given(pair=pairs(), beta=betas)
def test_slope_is_the_derivative_up_to_a_constant(kind, pair, beta):
    teacher, student = pair
    student.requires_grad_()
    (gradient,) = torch.autograd.grad(divergence(teacher, student, kind, beta), student)
    difference = gradient - DIVERGENCES[kind].slope(teacher, student.detach(), beta)
    scale = gradient.abs().max().clamp_min(1)
    assert ((difference - difference[0]) / scale).abs().max() < 1e-9


@pytest.mark.parametrize("kind", KINDS)
@given(pair=pairs(), beta=betas)
def test_log_terms_are_the_terms_and_their_derivative(kind, pair, beta):
    teacher, student = pair
    student_log = student.log().requires_grad_()
    expected = DIVERGENCES[kind].terms(teacher, student_log.exp(), beta)
    (gradient,) = torch.autograd.grad(expected.sum(), student_log)
    of_logs = DIVERGENCES[kind].terms_of_logs(teacher.log(), student_log, beta)
    torch.testing.assert_close(of_logs, expected, atol=1e-12, rtol=1e-9)
    (gradient_of_logs,) = torch.autograd.grad(of_logs.sum(), student_log)
    torch.testing.assert_close(gradient_of_logs, gradient, atol=1e-12, rtol=1e-9)
    term, derivative = DIVERGENCES[kind].log_terms(teacher.log(), student_log.detach(), beta)
    torch.testing.assert_close(term, expected.detach(), atol=1e-12, rtol=1e-9)
    torch.testing.assert_close(derivative, gradient, atol=1e-12, rtol=1e-9)


def test_log_terms_at_the_floor():
    floor = torch.tensor([0.0, LOG_SMALLEST])
    for kind in KINDS:
        term, derivative = DIVERGENCES[kind].log_terms(floor, floor.flip(0), 0.4)
        assert term.isfinite().all()
        assert derivative.isfinite().all()


def test_what_is_no_divergence_is_refused():
    row = torch.tensor([0.5, 0.5])
    with pytest.raises(ValueError, match="between 0 and 1, got 1.5"):
        divergence(row, row, "jsd", 1.5)
    with pytest.raises(ValueError, match="divergence: got 'kl'; use one of forward_kl, reverse_kl, jsd"):
        divergence(row, row, "kl")


def test_the_table_holds_the_words_of_a_configuration():
    assert tuple(DIVERGENCES) == tuple(choices.DIVERGENCES) == KINDS
    assert [formulas.name for formulas in DIVERGENCES.values()] == [*DIVERGENCES]
    assert sorted(formulas.kernel_code for formulas in DIVERGENCES.values()) == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
@given(pair=pairs(), beta=betas)
def test_autograd_on_the_definition_replaces_the_other_formulas(kind, pair, beta):
    """A registered copy of a divergence that has nothing but its definition gives the same slopes."""
    teacher, student = pair
    known = DIVERGENCES[kind]
    try:
        copy = register_divergence("copy", known.terms)
    finally:
        del DIVERGENCES["copy"]
    torch.testing.assert_close(
        copy.log_terms(teacher.log(), student.log(), beta), known.log_terms(teacher.log(), student.log(), beta),
        atol=1e-12, rtol=1e-9,
    )  # fmt: skip
    difference = copy.slope(teacher, student, beta) - known.slope(teacher, student, beta)
    assert ((difference - difference[0]) / difference.abs().max().clamp_min(1)).abs().max() < 1e-9


def test_a_name_is_registered_once():
    with pytest.raises(ConfigError, match="already a divergence named 'jsd'"):
        register_divergence("jsd", DIVERGENCES["jsd"].terms)


def test_entropy():
    assert entropy(torch.full((4,), 0.25, dtype=torch.float64)).item() == pytest.approx(math.log(4))
    assert entropy(torch.tensor([1.0, 0.0])).item() == 0


# Theorem 1: for q on the support V,  D_β(A_T, q) = C_β(ρ) + (1 − βρ) · D_α(Ã_T, q),  α = β(1−ρ)/(1−βρ).


def least_divergence(rho: float, beta: float) -> float:
    """C_β(ρ), the part no student can remove."""
    visible = 0.0 if rho == 1 else beta * (1 - rho) * math.log((1 - rho) / (1 - beta * rho))
    return beta * rho * math.log(1 / beta) + visible - (1 - beta) * math.log(1 - beta * rho)


@st.composite
def theorem_cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, int, float]:
    size = draw(st.integers(3, 14))
    visible = draw(st.integers(1, size - 1))
    return draw(simplex(size)), draw(simplex(visible)), visible, draw(betas)


def projected(attention: torch.Tensor, visible: int) -> torch.Tensor:
    """Ã_T by the product's own projection."""
    shared, solution = attention[None, :visible], attention[visible:].sum()[None]
    return target(shared, solution, torch.ones(visible, dtype=torch.bool), "project")[0]


@given(case=theorem_cases())
def test_theorem_identity(case):
    attention, student, visible, beta = case
    rho = attention[visible:].sum().item()
    padded = torch.cat([student, torch.zeros(attention.numel() - visible)])
    alpha = beta * (1 - rho) / (1 - beta * rho)
    direct = divergence(attention, padded, "jsd", beta).item()
    through = (
        least_divergence(rho, beta)
        + (1 - beta * rho) * divergence(projected(attention, visible), student, "jsd", alpha).item()
    )
    assert direct == pytest.approx(through, abs=1e-12)


@given(case=theorem_cases(), seed=st.integers(0, 999))
def test_projection_is_the_minimiser(case, seed):
    attention, _, visible, beta = case
    hidden = torch.zeros(attention.numel() - visible)
    best = divergence(attention, torch.cat([projected(attention, visible), hidden]), "jsd", beta)
    assert best.item() == pytest.approx(least_divergence(attention[visible:].sum().item(), beta), abs=1e-12)
    generator = torch.Generator().manual_seed(seed)
    for spread in (0.01, 0.3, 3.0):
        noise = torch.randn(visible, generator=generator, dtype=torch.float64)
        competitor = (projected(attention, visible).log() + spread * noise).softmax(-1)
        assert divergence(attention, torch.cat([competitor, hidden]), "jsd", beta) >= best - 1e-13


@given(beta=betas)
def test_least_divergence_is_zero_at_zero_and_increases(beta):
    values = [least_divergence(rho, beta) for rho in torch.linspace(0, 0.999, 200, dtype=torch.float64).tolist()]
    assert values[0] == 0
    assert all(later > earlier for earlier, later in itertools.pairwise(values))
