"""Where teacher and student look along one trajectory: the record that the attention viewer shows.

The rows are those of the loss: the product's own capture, head average, alignment and projection. For each step

    teacher     A_t^T, over everything the teacher sees, the solution among it
    projected   Ã_t^T, what the student is taught, over the shared positions
    student     A_t^S, restricted to the shared positions and renormalised

The student is shown as it was before training and as it is after; the teacher is the one that judged.

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
from opasd.losses import projection
from opasd.losses.attention import LayerAttention, attention_loss, attention_rows
from opasd.model.scoring import Scorer
from opasd.prompts.alignment import Alignment, align
from opasd.prompts.rollout import Rollout
from opasd.report.viewer import KIND, VERSION, packed

CHUNK = 64
"""Steps whose attention is held at a time."""


@dataclass(frozen=True)
class Stage:
    """The student at one moment: `with entered(): scorer(...)`."""

    name: str
    scorer: Scorer
    entered: Callable[[], AbstractContextManager[Any]] = nullcontext


@dataclass(frozen=True)
class Rows:
    """The three attention rows of every step in one layer, and what the loss reads off them."""

    teacher_TS: Tensor
    projected_TJ: Tensor
    student_TJ: Tensor
    divergence_T: Tensor
    solution_mass_T: Tensor


def rows_of(
    student: LayerAttention, teacher: LayerAttention, alignment: Alignment, config: AttentionLossConfig, seed: int = 0
) -> Rows:
    """The rows of one layer, a few steps at a time."""
    device = student.query_HTD.device
    alignment = alignment.to(device)
    permutation_J = projection.shuffle_permutation(alignment.in_prompt, seed) if config.handling == "shuffle" else None
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for start in range(0, alignment.num_tokens, CHUNK):
        chunk = slice(start, start + CHUNK)
        teacher_CS = _rows(teacher, alignment.teacher_query, chunk)
        student_CS = _rows(student, alignment.student_query, chunk)
        seen_CJ = _seen(alignment.student_query[chunk], alignment.student_shared, student.sliding_window)
        seen_CJ &= _seen(alignment.teacher_query[chunk], alignment.teacher_shared, teacher.sliding_window)
        solution_C = teacher_CS[:, alignment.solution].sum(-1)
        shared_CJ = teacher_CS[:, alignment.teacher_shared] * seen_CJ
        target_CJ = projection.target(shared_CJ, solution_C, alignment.in_prompt, config.handling, permutation_J)
        mine_CJ, _ = projection.normalise(student_CS[:, alignment.student_shared] * seen_CJ)
        parts.append((teacher_CS.cpu(), target_CJ.cpu(), mine_CJ.cpu()))
    teacher_TS, projected_TJ, student_TJ = (torch.cat(column) for column in zip(*parts, strict=True))
    readings = attention_loss(
        student, teacher, alignment.to("cpu"), divergence=config.divergence, jsd_beta=config.jsd_beta,
        handling=config.handling, shuffle_seed=seed,
    )  # fmt: skip
    return Rows(teacher_TS, projected_TJ, student_TJ, readings.divergence_T.cpu(), readings.solution_mass_T.cpu())


@torch.no_grad()
def record(
    rollout: Rollout,
    stages: Sequence[Stage],
    teacher: Stage,
    tokenizer: PreTrainedTokenizerBase,
    config: AttentionLossConfig,
    *,
    about: dict[str, Any],
) -> dict[str, Any]:
    """What the viewer shows of one trajectory; `about` is added as it is."""
    alignment = align(rollout.pair, rollout.num_tokens, support=config.support, query=config.query)
    with teacher.entered():
        judged = teacher.scorer([rollout], "teacher", query=config.query)[0].layers
    views, shared_rows = [], {}
    for stage in stages:
        with stage.entered():
            scored = stage.scorer([rollout], "student", query=config.query)[0].layers
        for depth, (mine, theirs) in enumerate(zip(scored, judged, strict=True)):
            found = rows_of(mine, theirs, alignment, config, config.shuffle_seed)
            layer = len(scored) - depth
            if layer not in shared_rows:
                seen_S = (alignment.teacher_query + 1).tolist()
                seen_J = alignment.visible().tolist()
                shared_rows[layer] = {
                    "layer": layer,
                    "teacher": _pack(found.teacher_TS, seen_S),
                    "projected": _pack(found.projected_TJ, seen_J),
                    "rho": _short(found.solution_mass_T),
                }
            views.append(
                {
                    "stage": stage.name,
                    "layer": layer,
                    "student": _pack(found.student_TJ, alignment.visible().tolist()),
                    "divergence": _short(found.divergence_T),
                }
            )
    pair = rollout.pair
    return {
        "kind": KIND,
        "version": VERSION,
        **about,
        "problem": {"id": pair.problem.id, "question": pair.problem.question, "answer": pair.problem.answer},
        "divergence": config.divergence,
        "handling": config.handling,
        "query": config.query,
        "student": {"tokens": pieces(tokenizer, rollout.student_ids), "prompt": len(pair.student_ids)},
        "teacher": {
            "tokens": pieces(tokenizer, rollout.teacher_ids),
            "prompt": len(pair.teacher_ids),
            "solution": [pair.reference.start, pair.reference.stop],
        },
        "shared": {
            "student": alignment.student_shared.tolist(),
            "teacher": alignment.teacher_shared.tolist(),
        },
        "seen": {"teacher": (alignment.teacher_query + 1).tolist(), "shared": alignment.visible().tolist()},
        "layers": list(shared_rows.values()),
        "views": views,
    }


def pieces(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[str]:
    """The text of each token; of a character that several tokens make up, all on the first of them."""
    anchor = list(tokenizer("a", add_special_tokens=False)["input_ids"])[-1:]  # pyright: ignore[reportArgumentType]

    def text_of(group: Sequence[int]) -> str:
        # After another token, or a tokenizer that marks words would drop a leading space.
        options = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        whole, before = (str(tokenizer.decode(part, **options)) for part in ([*anchor, *group], anchor))
        return whole[len(before) :]

    found: list[str] = []
    place = 0
    while place < len(ids):
        size = next(
            (n for n in range(1, 9) if place + n <= len(ids) and "\ufffd" not in text_of(ids[place : place + n])), 1
        )
        found += [text_of(ids[place : place + size]), *[""] * (size - 1)]
        place += size
    return found


def _rows(role: LayerAttention, query_T: Tensor, chunk: slice) -> Tensor:
    return attention_rows(replace(role, query_HTD=role.query_HTD[:, chunk]), query_T[chunk]).float()


def _seen(query_C: Tensor, position_J: Tensor, window: int | None) -> Tensor:
    distance_CJ = query_C[:, None] - position_J
    return (distance_CJ >= 0) & (distance_CJ < (window or torch.iinfo(torch.long).max))


def _pack(rows_TX: Tensor, seen: Sequence[int]) -> dict[str, Any]:
    """Each step's visible entries."""
    return packed([row[:count].double().numpy() for row, count in zip(rows_TX, seen, strict=True)])


def _short(values_T: Tensor) -> list[float]:
    return [float(f"{value:.5g}") for value in values_T.tolist()]
