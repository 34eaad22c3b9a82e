"""Random but reproducible inputs for the losses."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from opasd.config import Section
from opasd.errors import ConfigError
from opasd.losses.inputs import LayerAttention, LayerBatch
from opasd.prompts.alignment import Alignment


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
    first_token: bool = True,
) -> Alignment:
    """[problem | student_only | tail | tokens]  against  [problem | solution | teacher_only | tail | tokens].

    The problem's first and every third later position, and the tail, belong to the chat template.
    """
    student_prompt, teacher_prompt = problem + student_only + tail, problem + solution + teacher_only + tail
    prompt = [(i, i) for i in range(problem)]
    prompt += [(problem + student_only + i, problem + solution + teacher_only + i) for i in range(tail)]
    response = [(student_prompt + t, teacher_prompt + t) for t in range(tokens)]
    template = [s for s, _ in prompt if s >= problem or s % 3 == 0]
    matched = {"context": prompt, "content": prompt, "problem": prompt[:problem], "response": []}[support]
    unwanted = (template if support == "content" else []) + ([] if first_token else [0])
    counted, left_out = ([pair for pair in matched if (pair[0] in unwanted) is out] for out in (False, True))
    shared = counted if support == "problem" else counted + response
    lag = 1 if query == "predicting" else 0
    return Alignment(
        student_shared=torch.tensor([s for s, _ in shared], dtype=torch.long),
        teacher_shared=torch.tensor([t for _, t in shared], dtype=torch.long),
        in_prompt=torch.arange(len(shared)) < len(counted),
        solution=torch.arange(problem, problem + solution),
        student_query=torch.arange(tokens) + student_prompt - lag,
        teacher_query=torch.arange(tokens) + teacher_prompt - lag,
        student_length=student_prompt + tokens,
        teacher_length=teacher_prompt + tokens,
        left_out=torch.tensor(left_out, dtype=torch.long).reshape(-1, 2).T,
        template=torch.tensor([s for s, _ in matched if s in template], dtype=torch.long),
    )


@st.composite
def alignments(draw, problem: int, solution: int) -> Alignment:
    """Any alignment with a problem and a solution of at most so many tokens."""
    return make_alignment(
        problem=draw(st.integers(1, problem)),
        solution=draw(st.integers(0, solution)),
        student_only=draw(st.integers(0, 3)),
        teacher_only=draw(st.integers(0, 3)),
        tail=draw(st.integers(0, 3)),
        tokens=draw(st.integers(1, 20)),
        query=draw(st.sampled_from(["predicting", "generated"])),
        support=draw(st.sampled_from(["context", "content", "problem", "response"])),
        first_token=draw(st.booleans()),
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


def make_batch(
    alignments: Sequence[Alignment],
    *,
    packed: bool,
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    window: int | None = None,
    **shape: int,
) -> tuple[LayerBatch, LayerBatch]:
    """Rollouts in one forward, with noise around them; positions come before heads in memory, as in a model."""
    parts = [make_layers(alignment, window=window, seed=i, **shape) for i, alignment in enumerate(alignments)]
    roles = (
        [(student, a.student_query) for (student, _), a in zip(parts, alignments, strict=True)],
        [(teacher, a.teacher_query) for (_, teacher), a in zip(parts, alignments, strict=True)],
    )
    batches = []
    for role in roles:
        lengths = [layer.key_KSD.shape[1] for layer, _ in role]
        if packed:
            spans = [(0, 2 + sum(lengths[:i]), 2 + sum(lengths[: i + 1])) for i in range(len(lengths))]
        else:
            spans = [(i, 0, length) for i, length in enumerate(lengths)]
        rows, positions = 1 + max(row for row, _, _ in spans), 3 + max(end for _, _, end in spans)
        first = role[0][0]
        query, key = (torch.randn(rows, positions, x.shape[0], x.shape[2], dtype=torch.float64)
                      for x in (first.query_HTD, first.key_KSD))  # fmt: skip
        for (row, begin, end), (layer, queries) in zip(spans, role, strict=True):
            query[row, begin + queries] = layer.query_HTD.detach().transpose(0, 1)
            key[row, begin:end] = layer.key_KSD.detach().transpose(0, 1)
        query, key = (x.to(device, dtype).transpose(1, 2).requires_grad_(not batches) for x in (query, key))
        batches.append(LayerBatch(query, key, tuple(spans), first.scaling, window))
    return batches[0], batches[1]


def to_leaf(layer: LayerAttention, dtype: torch.dtype) -> LayerAttention:
    def leaf(tensor: Tensor) -> Tensor:
        return tensor.detach().clone().to(dtype).requires_grad_()

    sinks_H = None if layer.sinks_H is None else leaf(layer.sinks_H)
    return replace(layer, query_HTD=leaf(layer.query_HTD), key_KSD=leaf(layer.key_KSD), sinks_H=sinks_H)


class OnGpu(Tensor):
    """A tensor that claims to be on a GPU: tests see what `impl: auto` does there."""

    is_cuda = True


def gradients(loss: Tensor, layer: LayerAttention) -> list[Tensor]:
    leaves = [tensor for tensor in (layer.query_HTD, layer.key_KSD, layer.sinks_H) if tensor is not None]
    return list(torch.autograd.grad(loss, leaves))


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖; NaN is an error of infinity."""
    expected = expected.double()
    error = ((actual.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()
    return error if error == error else float("inf")


SETTINGS = (-3, -1, 0, 0.3, 1, 2, float("nan"), float("inf"), None, "1", "", "foo", "jsd", "project", ["jsd"])


def check_settings(call: Callable[..., object], section: type[Section], names: Sequence[str]) -> None:
    """The loss refuses the settings that the configuration refuses, with one message, and accepts the others."""
    for name in names:
        for value in SETTINGS:
            try:
                section.model_validate({name: value}, strict=True)
            except ValidationError:
                with pytest.raises(ConfigError, match=f"^{name}: got .*; use ") as caught:
                    call(**{name: value})
                assert repr(value) in str(caught.value)
            else:
                call(**{name: value})
