"""Random but reproducible inputs for the losses."""

from dataclasses import replace

import torch
from torch import Tensor

from opasd.alignment import Alignment
from opasd.losses.attention import LayerAttention


def make_alignment(
    *,
    problem: int = 6,
    solution: int = 5,
    student_only: int = 0,
    teacher_only: int = 0,
    tail: int = 2,
    tokens: int = 7,
    query: str = "predicting",
    support: str = "context",
) -> Alignment:
    """[problem | student_only | tail | tokens]  against  [problem | solution | teacher_only | tail | tokens]."""
    student_prompt, teacher_prompt = problem + student_only + tail, problem + solution + teacher_only + tail
    prompt = [(i, i) for i in range(problem)]
    prompt += [(problem + student_only + i, problem + solution + teacher_only + i) for i in range(tail)]
    response = [(student_prompt + t, teacher_prompt + t) for t in range(tokens)]
    counted = {"context": prompt, "problem": prompt[:problem], "response": []}[support]
    shared = counted if support == "problem" else counted + response
    lag = 1 if query == "predicting" else 0
    return Alignment(
        student_shared=torch.tensor([s for s, _ in shared], dtype=torch.long),
        teacher_shared=torch.tensor([t for _, t in shared], dtype=torch.long),
        in_prompt=torch.arange(len(shared)) < len(counted),
        solution=torch.arange(problem, problem + solution),
        student_only=torch.arange(problem, problem + student_only),
        teacher_only=torch.arange(problem + solution, problem + solution + teacher_only),
        student_query=torch.arange(tokens) + student_prompt - lag,
        teacher_query=torch.arange(tokens) + teacher_prompt - lag,
        student_length=student_prompt + tokens,
        teacher_length=teacher_prompt + tokens,
    )


def make_layers(
    alignment: Alignment,
    *,
    key_heads: int = 2,
    group: int = 2,
    head_size: int = 8,
    dtype: torch.dtype = torch.float64,
    sharpness: float = 2.0,
    window: int | None = None,
    softcap: float | None = None,
    sinks: bool = False,
    seed: int = 0,
) -> tuple[LayerAttention, LayerAttention]:
    """A student that needs gradients, and a teacher near it, as self-distillation has it."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * sharpness**0.5

    heads = key_heads * group
    student = LayerAttention(
        draw(heads, alignment.num_tokens, head_size),
        draw(key_heads, alignment.student_length, head_size),
        head_size**-0.5,
        window,
        softcap,
        draw(heads) if sinks else None,
    )
    teacher_key = draw(key_heads, alignment.teacher_length, head_size)
    teacher_key[:, alignment.teacher_shared] = (
        0.8 * student.key_KSD[:, alignment.student_shared] + 0.4 * teacher_key[:, alignment.teacher_shared]
    )
    teacher = replace(
        student, query_HTD=0.8 * student.query_HTD + 0.4 * draw(*student.query_HTD.shape), key_KSD=teacher_key
    )
    return to_leaf(student, dtype), to_leaf(teacher, dtype).detach()


def to_leaf(layer: LayerAttention, dtype: torch.dtype) -> LayerAttention:
    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().to(dtype).requires_grad_()

    sinks_H = None if layer.sinks_H is None else leaf(layer.sinks_H)
    return replace(layer, query_HTD=leaf(layer.query_HTD), key_KSD=leaf(layer.key_KSD), sinks_H=sinks_H)


def gradients(loss: Tensor, layer: LayerAttention) -> list[Tensor]:
    leaves = [tensor for tensor in (layer.query_HTD, layer.key_KSD, layer.sinks_H) if tensor is not None]
    return list(torch.autograd.grad(loss, leaves))


def relative_error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖; NaN is an error of infinity."""
    expected = expected.double()
    error = ((found.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()
    return error if error == error else float("inf")
