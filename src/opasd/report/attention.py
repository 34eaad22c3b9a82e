"""Where teacher and student look along one trajectory: the record that the attention viewer shows.

The rows are computed as in the loss, with its capture, head average, alignment and projection. For each step

    teacher     A_t^T, over everything the teacher sees, including the solution
    projected   Ã_t^T, the student's target, over the shared positions
    student     A_t^S, restricted to the shared positions and renormalised

The student is shown before and after training; the teacher is the one that judged.

Shapes: T steps, S positions of the teacher's sequence, J shared positions, C steps of a chunk.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from opasd.config import AttentionLossConfig
from opasd.errors import NonFiniteError
from opasd.losses import projection
from opasd.losses.attention import LayerAttention, attention_loss, attention_rows
from opasd.losses.attention_chunked import visible
from opasd.model.scoring import Scorer
from opasd.prompts.alignment import Alignment, align
from opasd.prompts.rollout import Rollout
from opasd.report.viewer import KIND, VERSION, packed

CHUNK = 64
"""The number of steps whose attention is computed at once."""
HEADS = 4_000_000
"""Each head is kept by default up to so many weights of a layer: steps × positions × heads."""


@dataclass(frozen=True)
class Stage:
    """The student at one moment of training: `with entered(): scorer(...)`."""

    name: str
    scorer: Scorer
    entered: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class LayerRows:
    """The three attention rows of every step in one layer, and the loss's readings of them."""

    teacher_TS: Tensor
    projected_TJ: Tensor
    student_TJ: Tensor
    divergence_T: Tensor
    solution_mass_T: Tensor
    """ρ_t, of the whole reference block."""

    def mass_on(self, own_text: range, alignment: Alignment) -> Tensor:
        """Return [T], the part of ρ_t that is on the solution's own text and not on the words around it."""
        block_T = self.teacher_TS[:, alignment.solution].sum(-1)
        own_T = self.teacher_TS[:, own_text.start : own_text.stop].sum(-1)
        return torch.where(block_T > 0, self.solution_mass_T * own_T / block_T.clamp_min(1e-30), 0.0)


def layer_rows(
    student: LayerAttention, teacher: LayerAttention, alignment: Alignment, config: AttentionLossConfig
) -> LayerRows:
    """Return the rows of one layer, computed a few steps at a time."""
    on_device = alignment.to(student.query_HTD.device)
    permutation_J = None
    if config.handling == "shuffle":
        permutation_J = projection.shuffle_permutation(on_device.in_prompt, config.shuffle_seed)
    chunks: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, alignment.num_tokens, CHUNK):
        chunk = slice(start, start + CHUNK)
        student_query_C, teacher_query_C = on_device.student_query[chunk], on_device.teacher_query[chunk]
        student_CS, teacher_CS = _rows(student, student_query_C, chunk), _rows(teacher, teacher_query_C, chunk)
        seen_CJ = visible(student_query_C, on_device.student_shared, student.sliding_window)
        seen_CJ &= visible(teacher_query_C, on_device.teacher_shared, teacher.sliding_window)
        solution_C = teacher_CS[:, on_device.solution].sum(-1)
        teacher_CJ = teacher_CS[:, on_device.teacher_shared] * seen_CJ
        target_CJ = projection.target(teacher_CJ, solution_C, on_device.in_prompt, config.handling, permutation_J)
        student_CJ, _ = projection.normalise(student_CS[:, on_device.student_shared] * seen_CJ)
        chunks.append((teacher_CS.cpu(), target_CJ.cpu(), student_CJ.cpu()))
    teacher_TS, projected_TJ, student_TJ = (torch.cat(column) for column in zip(*chunks, strict=True))
    readings = attention_loss(
        student, teacher, alignment, divergence=config.divergence, jsd_beta=config.jsd_beta, handling=config.handling,
        shuffle_seed=config.shuffle_seed,
    )  # fmt: skip
    return LayerRows(teacher_TS, projected_TJ, student_TJ, readings.divergence_T.cpu(), readings.solution_mass_T.cpu())


def _check_finite(layers: Sequence[LayerAttention], stage: Stage) -> None:
    if not all(bool(part.isfinite().all()) for role in layers for part in (role.query_HTD, role.key_KSD)):
        raise NonFiniteError(
            f"NaN or infinity in the attention ({stage.name}), so there is nothing to show; give whole weights"
        )


@torch.no_grad()
def make_record(
    rollout: Rollout,
    stages: Sequence[Stage],
    teacher: Stage,
    tokenizer: PreTrainedTokenizerBase,
    config: AttentionLossConfig,
    *,
    about: dict[str, Any],
    heads: bool | None = None,
) -> dict[str, Any]:
    """Return what the viewer shows of one trajectory, with `about` added unchanged.

    `heads`: whether each head is kept beside their mean; by default where that is small."""
    alignment = align(
        rollout.pair, rollout.num_tokens, support=config.support, query=config.query, first_token=config.first_token
    )
    seen = {"teacher": (alignment.teacher_query + 1).tolist(), "shared": alignment.visible().tolist()}
    with teacher.entered():
        teacher_layers = teacher.scorer([rollout], "teacher", query=config.query)[0].layers
    assert teacher.scorer.capture is not None
    from_the_end = [teacher.scorer.capture.depth - number for number in teacher.scorer.capture.numbers]
    layers, views = {}, []
    size = rollout.num_tokens * len(rollout.teacher_ids) * teacher_layers[0].query_HTD.shape[0]
    with_heads = size <= HEADS if heads is None else heads
    for stage in stages:
        with stage.entered():
            student_layers = stage.scorer([rollout], "student", query=config.query)[0].layers
        for number, pair in zip(from_the_end, zip(student_layers, teacher_layers, strict=True), strict=True):
            _check_finite(pair, stage)
            each_head = zip(_each_head(pair[0]), _each_head(pair[1]), strict=True) if with_heads else ()
            both = [
                _packed_rows(layer_rows(student, taught, alignment, config), rollout, alignment, seen)
                for student, taught in (pair, *each_head)
            ]
            (teaching, learning), *each = both
            if number not in layers:
                layers[number] = {"layer": number, **teaching, "heads": [own for own, _ in each]}
            views.append({"stage": stage.name, "layer": number, **learning, "heads": [own for _, own in each]})
    pair = rollout.pair
    return {
        "kind": KIND,
        "version": VERSION,
        **about,
        "problem": {"id": pair.problem.id, "question": pair.problem.question, "answer": pair.problem.answer},
        "divergence": config.divergence,
        "jsd_beta": config.jsd_beta,
        "handling": config.handling,
        "query": config.query,
        "student": {"tokens": token_texts(tokenizer, rollout.student_ids), "prompt": len(pair.student_ids)},
        "teacher": {
            "tokens": token_texts(tokenizer, rollout.teacher_ids),
            "prompt": len(pair.teacher_ids),
            "solution": [pair.reference.start, pair.reference.stop],
            "text": [pair.shown.start, pair.shown.stop],
        },
        "shared": {"student": alignment.student_shared.tolist(), "teacher": alignment.teacher_shared.tolist()},
        "seen": seen,
        "layers": list(layers.values()),
        "views": views,
    }


def _each_head(role: LayerAttention) -> list[LayerAttention]:
    """Return each query head with the keys that it reads."""
    heads, shared = role.query_HTD.shape[0], role.query_HTD.shape[0] // role.key_KSD.shape[0]
    return [
        replace(
            role,
            query_HTD=role.query_HTD[n : n + 1],
            key_KSD=role.key_KSD[n // shared : n // shared + 1],
            sinks_H=None if role.sinks_H is None else role.sinks_H[n : n + 1],
        )
        for n in range(heads)
    ]


def _packed_rows(
    rows: LayerRows, rollout: Rollout, alignment: Alignment, seen: dict[str, list[int]]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the teacher's part of a record, and the student's."""
    teaching = {
        "teacher": _pack(rows.teacher_TS, seen["teacher"]),
        "projected": _pack(rows.projected_TJ, seen["shared"]),
        "rho": _short(rows.solution_mass_T),
    }
    if rollout.pair.shown:
        teaching["rho_text"] = _short(rows.mass_on(rollout.pair.shown, alignment))
    return teaching, {"student": _pack(rows.student_TJ, seen["shared"]), "divergence": _short(rows.divergence_T)}


def token_texts(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """Return the text of each token; if several tokens make up a character, the first of them has it all."""
    anchor = list(tokenizer("a", add_special_tokens=False)["input_ids"])[-1:]  # pyright: ignore[reportArgumentType]

    def text_of(group: Sequence[int]) -> str:
        # Without a token before it, a tokenizer that marks words would drop a leading space.
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        whole, before = (str(tokenizer.decode(part, **options)) for part in ([*anchor, *group], anchor))
        return whole[len(before) :]

    texts: list[str] = []
    while (start := len(texts)) < len(ids):
        sizes = (n for n in range(1, 9) if start + n <= len(ids) and "\ufffd" not in text_of(ids[start : start + n]))
        size = next(sizes, 1)
        texts += [text_of(ids[start : start + size]), *[""] * (size - 1)]
    return texts


def _rows(role: LayerAttention, query_C: Tensor, chunk: slice) -> Tensor:
    return attention_rows(replace(role, query_HTD=role.query_HTD[:, chunk]), query_C).float()


def _pack(rows_TX: Tensor, lengths: Sequence[int]) -> dict[str, Any]:
    """Pack the visible beginning of each step's row."""
    return packed([row[:length].double().numpy() for row, length in zip(rows_TX, lengths, strict=True)])


def _short(values_T: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values_T.tolist()]
