"""Where both roles look while they train: attention on what a step needs, and ρ in two.

    needed_mass          the student's attention on the text that a step copies, of that on the shared positions
    needed_target        the same of the teacher's, after projection: what the student learns
    reference_text_mass  the part of ρ on the reference's own text (solution, answer or pointers)
    reference_words_mass its part on the words around it

What a step needs is known for tasks made by code. A few rollouts of a step are read, and a few positions of each, so
this costs next to nothing.

Shapes: H heads, N steps, S positions, J shared positions.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from opasd.data.made import TASKS, needed_spans, task_of
from opasd.losses import projection
from opasd.losses.attention import attention_heads, attention_rows
from opasd.losses.attention_chunked import seen_by_both
from opasd.losses.inputs import LayerAttention, ScoreBatch
from opasd.prompts.alignment import Alignment
from opasd.prompts.needs import NeededStep, needed_steps
from opasd.prompts.rollout import Rollout

ROLLOUTS, STEPS = 8, 64
"""Rollouts of a step that are read on a process, and positions of each."""
RATIOS = {
    "attention/reference_text_mass": ("looked/text", "looked/steps"),
    "attention/reference_words_mass": ("looked/words", "looked/steps"),
    "attention/needed_mass": ("looked/student", "looked/needs"),
    "attention/needed_target": ("looked/projected", "looked/needs"),
}
"""Metrics as quotients of sums."""


def decoder(tokenizer: Any) -> Callable[[list[int]], str]:
    """Return token ids to text, every token of it."""
    return lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


@torch.no_grad()
def look_sums(
    rollouts: Sequence[Rollout],
    student: ScoreBatch,
    teacher: ScoreBatch,
    alignments: Sequence[Alignment],
    decode: Callable[[list[int]], str],
) -> dict[str, float]:
    """Return the sums of RATIOS over these rollouts' steps, as means over the layers; waits for the device once."""
    counts, totals = Counter[str](rollouts=0), dict[str, Tensor]()
    for index, (rollout, alignment) in enumerate(zip(rollouts, alignments, strict=True)):
        if not rollout.num_tokens:
            continue
        pair = rollout.for_attention.pair
        layers = list(zip(student[index].layers, teacher[index].layers, strict=True))
        alignment = alignment.to(layers[0][0].query_HTD.device)
        stride = -(-rollout.num_tokens // STEPS)
        token_N = torch.arange(0, rollout.num_tokens, stride, device=alignment.student_query.device)
        rho = torch.stack([rho_parts(*layer, alignment, pair.shown, token_N).sum(-1) for layer in layers]).mean(0)
        counts.update(rollouts=1, steps=len(token_N))
        found: dict[str, Tensor] = dict(zip(("text", "words"), rho.double(), strict=True))
        if (task := task_of(pair.problem)) in TASKS:
            needs = needed_spans(task, pair.problem, decode(list(rollout.completion_ids))) or []
            if steps := needed_steps(pair, rollout.completion_ids, needs, decode)[:STEPS]:
                masses = [needed_masses(*layer, alignment, steps) for layer in layers]
                counts.update(needs=len(steps))
                for name in ("student", "projected"):
                    found[name] = len(steps) * torch.stack([mass[name] for mass in masses]).double().mean()
        for name, value in found.items():
            totals[name] = totals[name] + value if name in totals else value
    numbers = torch.stack(list(totals.values())).tolist() if totals else []
    sums = dict(counts) | dict(zip(totals, numbers, strict=True))
    return {f"looked/{name}": float(value) for name, value in sums.items()}


def rho_parts(
    student: LayerAttention, teacher: LayerAttention, alignment: Alignment, shown: range, token_N: Tensor
) -> Tensor:
    """Return ρ of some steps in one layer [2, N]: on the reference's own text, and on the words around it."""
    queries = alignment.student_query[token_N], alignment.teacher_query[token_N]
    shared = alignment.student_shared, alignment.teacher_shared
    seen_NJ = seen_by_both(queries, shared, (student.sliding_window, teacher.sliding_window))
    teacher_NS = attention_rows(replace(teacher, query_HTD=teacher.query_HTD[:, token_N]), queries[1])
    block_N = teacher_NS[:, alignment.solution].sum(-1)
    own_N = teacher_NS[:, shown.start : shown.stop].sum(-1)
    visible_N = (teacher_NS[:, shared[1]] * seen_NJ).sum(-1)
    return torch.stack([own_N, block_N - own_N]) / (block_N + visible_N).clamp_min(projection.LEAST_MASS)


def needed_masses(
    student: LayerAttention, teacher: LayerAttention, alignment: Alignment, steps: Sequence[NeededStep]
) -> dict[str, Tensor]:
    """Return the attention on what the steps need in one layer, as means over the steps; `…_heads` has each head's."""
    device = alignment.student_query.device
    token_N = torch.tensor([step.token for step in steps], device=device)
    queries = alignment.student_query[token_N], alignment.teacher_query[token_N]
    shared = alignment.student_shared, alignment.teacher_shared
    seen_NJ = seen_by_both(queries, shared, (student.sliding_window, teacher.sliding_window))
    copied_NJ, statement_NJ = (inside([getattr(step, name) for step in steps], shared[0]) for name in _NEEDED)
    student_HNS, teacher_HNS = (
        attention_heads(replace(role, query_HTD=role.query_HTD[:, token_N]), query_N)
        for role, query_N in zip((student, teacher), queries, strict=True)
    )
    student_HNJ, teacher_HNJ = student_HNS[..., shared[0]] * seen_NJ, teacher_HNS[..., shared[1]] * seen_NJ
    rows = {"student": student_HNJ.mean(0), "projected": teacher_HNJ.mean(0)}
    masses = {"teacher": (rows["projected"] * copied_NJ).sum(-1).mean()}
    for name, mass_NJ in rows.items():
        row_NJ = projection.normalise(mass_NJ)[0]
        masses[name] = (row_NJ * copied_NJ).sum(-1).mean()
        masses[f"{name}_statement"] = (row_NJ * statement_NJ).sum(-1).mean()
    for name, heads_HNJ in (("student_heads", student_HNJ), ("projected_heads", teacher_HNJ)):
        each = projection.normalise(heads_HNJ.flatten(0, 1))[0].unflatten(0, heads_HNJ.shape[:2])
        masses[name] = (each * copied_NJ).sum(-1).mean(-1)
    return masses


_NEEDED = ("copied", "statement")


def inside(ranges: Sequence[range], position_J: Tensor) -> Tensor:
    """[N, J] Whether a position is in each range."""
    first_N1, stop_N1 = (
        torch.tensor([getattr(one, end) for one in ranges], device=position_J.device)[:, None]
        for end in ("start", "stop")
    )
    return (position_J >= first_N1) & (position_J < stop_N1)
