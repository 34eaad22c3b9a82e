"""The attention loss of many rollouts in one set of kernel launches, forward and backward.

With u = 2·D·H·(pairs of a step and a student key it sees) operations, the cost of one product of queries and keys:

    normalisers       softmax normalisers of both roles                1u student, 1u + the solution's keys teacher
    averages          head-averaged rows of both roles, float32        2u
    comparison        divergence, readings, centred slopes c           head-free, bound by memory
    query_gradients   p·c summed over keys, then dq                    1u, 2u
    key_gradients     dk                                               2u

9u and the solution's keys, against 7u of one attention layer's forward and backward: at the same speed 1.3 times its
time, or 1.35 if a quarter of the keys are the solution's. Averaging needs normalisers, c needs the average and dq needs
p·c, each complete over its own axis. Only the normalisers repeat a computation of the layer's own attention.

Memory beyond the result: c, a number for each pair (2 bytes in bfloat16), held from forward to backward; and during
the forward two planes of the same shape in float32, of at most 40 MiB each.

`opasd.losses.attention` has the formulas; the weights and 1/(H·m) are part of c here.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from opasd.losses.attention_chunked import AttentionComparison
from opasd.losses.fused import attention_backward, attention_forward, say_once
from opasd.losses.fused.attention_plan import LaunchPlan, make_launch_plan, query_ranges
from opasd.losses.fused.launch import launch
from opasd.losses.inputs import LayerBatch
from opasd.prompts.alignment import Alignment

LOG2E = 1 / math.log(2)


class Tile(NamedTuple):
    """How one kernel cuts its work: steps × keys, query heads that share a load, warps, pipeline stages."""

    BM: int
    BN: int
    num_warps: int = 4
    num_stages: int = 2
    HEADS: int = 1

    def options(self, group: int | None = None) -> dict[str, int]:
        options = self._asdict()
        heads = options.pop("HEADS")
        if group is not None:
            options["HEADS"] = math.gcd(heads, group)
        return options


class Tiling(NamedTuple):
    normalisers: Tile
    averages: Tile
    query_gradients: Tile
    key_gradients: Tile
    rows: int = 128
    """Steps of a block of the planes."""
    block: int = 1024
    """Keys of a row that are compared at once."""
    block_warps: int = 4


PAIRS = Tiling(Tile(128, 64, 8, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 3), Tile(64, 64, 4, 2, 2))
FOURS = PAIRS._replace(averages=Tile(64, 128, 8, 2, 4))
WIDE_HEADS = Tiling(Tile(128, 64, 8), Tile(64, 64), Tile(64, 32), Tile(32, 64))
FLOATS = Tiling(Tile(64, 32), Tile(64, 32), Tile(32, 32), Tile(32, 32))
WIDE_FLOATS = Tiling(Tile(64, 32, 4, 1), Tile(64, 16, 4, 1), Tile(32, 16, 8, 1), Tile(32, 32))
MUCH_SHARED_MEMORY = 200 * 2**10
"""Shared memory per block of threads that `FOURS` and `WIDE_FLOATS` need; the others need 97 KiB."""


def tiling(head_size: int, itemsize: int, group: int, device: torch.device) -> Tiling:
    """Return the fastest of eleven on an H200 for 16-bit heads of up to 128, and tiles that fit for the others."""
    if itemsize == 4:
        return FLOATS if head_size <= 128 else WIDE_FLOATS
    if head_size > 128:
        return WIDE_HEADS
    return FOURS if group % 4 == 0 and _gpu(device)[1] >= MUCH_SHARED_MEMORY else PAIRS


@functools.cache
def _gpu(device: torch.device) -> tuple[tuple[int, int], int]:
    """Return the GPU's compute capability, and the shared memory of a block of threads in bytes."""
    if device.type != "cuda":
        return (9, 0), MUCH_SHARED_MEMORY  # the interpreter has no limits
    properties = torch.cuda.get_device_properties(device)
    return (properties.major, properties.minor), properties.shared_memory_per_block_optin


def _unsupported(student: LayerBatch, teacher: LayerBatch, ranges: np.ndarray) -> str | None:
    """Return the property of the inputs that these kernels cannot handle, or None."""
    tensors = (student.query_BHND, student.key_BKND, teacher.query_BHND, teacher.key_BKND)
    head_size, dtype = student.query_BHND.shape[-1], student.query_BHND.dtype
    if dtype not in (torch.bfloat16, torch.float16, torch.float32) or any(x.dtype != dtype for x in tensors):
        return "queries and keys that are not all bfloat16, float16 or float32"
    if head_size % 16 or head_size > 256:
        return f"heads of size {head_size}"
    capability, shared_memory = _gpu(student.query_BHND.device)
    too_small = head_size > 128 and dtype == torch.float32 and shared_memory < MUCH_SHARED_MEMORY
    if capability < (8, 0) or too_small:
        return f"{dtype} heads of size {head_size} on a GPU as small or old as this"
    if student.query_BHND.shape[1] != teacher.query_BHND.shape[1] or tensors[1].shape[1] != tensors[3].shape[1]:
        return "roles with different numbers of heads"
    if (student.softcap is None) != (teacher.softcap is None) or (student.sinks_H is None) != (teacher.sinks_H is None):
        return "a softcap or sinks in one role alone"
    _, steps, position, end, teacher_position, teacher_end = ranges.T
    if (end - position != steps).any() or (teacher_end - teacher_position != steps).any():
        return "queries that do not follow one another"
    return None


def attention_losses(
    student: LayerBatch,
    teacher: LayerBatch,
    alignments: Sequence[Alignment],
    comparison: AttentionComparison,
    seeds: Sequence[int],
    weights_T: Tensor | None,
) -> tuple[Tensor, Tensor] | None:
    """Return Σ weight·ℓ over all steps of all rollouts, and the readings [7, ΣT]; None without steps or a kernel."""
    ranges = query_ranges(alignments)
    if (reason := _unsupported(student, teacher, ranges)) is not None:
        say_once(f"the attention loss has no kernel for {reason}; impl: chunked computes the loss")
    if reason is not None or not len(ranges):
        return None
    query, key = (_aligned(tensor) for tensor in (student.query_BHND, student.key_BKND))
    student, teacher = replace(student, query_BHND=query, key_BKND=key), teacher.detach()
    teacher = replace(teacher, query_BHND=_aligned(teacher.query_BHND), key_BKND=_aligned(teacher.key_BKND))
    tiles = tiling(query.shape[-1], query.element_size(), query.shape[1] // key.shape[1], query.device)
    # A gradient is as dense as its tensor can be: `zeros_like` gives it these strides.
    gradient_strides = [torch.empty_like(tensor, device="meta").stride() for tensor in (query, key)]
    shuffle_seeds = seeds if comparison.handling == "shuffle" else None
    plan = make_launch_plan(
        student, teacher, gradient_strides, alignments, ranges, weights_T, shuffle_seeds,
        tiles.rows, tiles.key_gradients.BN,
    )  # fmt: skip
    setting = _Setting(plan, tiles, student.scaling, student.softcap, comparison)
    with torch.cuda.device_of(query):
        return _FusedAttentionLoss.apply(query, key, student.sinks_H, teacher, setting)


def _aligned(tensor: Tensor) -> Tensor:
    """Return the tensor with contiguous vectors, at offsets from which the kernels may read 16 numbers at once."""
    *outer, last = tensor.stride()
    return tensor if last == 1 and not any(stride % 16 for stride in outer) else tensor.contiguous()


class _Setting(NamedTuple):
    """Everything beside the tensors that one set of launches needs."""

    plan: LaunchPlan
    tiles: Tiling
    scaling: float
    softcap: float | None
    comparison: AttentionComparison


def _constants(setting: _Setting, query: Tensor, key: Tensor) -> dict[str, Any]:
    """Return the constants that every kernel with a matrix product is compiled for."""
    head_size, plan = query.shape[-1], setting.plan
    return {
        "CAPPED": setting.softcap is not None,
        "WINDOWED": plan.windowed,
        "GROUP": query.shape[1] // key.shape[1],
        "D": head_size,
        "DP": 1 << (head_size - 1).bit_length(),
        "ROWS": plan.rows,
        "PRECISION": "tf32x3" if query.dtype == torch.float32 else "ieee",
    }


def _scales(scaling: float, softcap: float | None) -> tuple[float, float]:
    """Return the numbers that turn a product of query and key into a base-2 logit: see `logits` of the kernels."""
    if softcap is None:
        return scaling * LOG2E, 0.0
    return 2 * LOG2E * scaling / softcap, softcap * LOG2E


class _FusedAttentionLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, sinks: Tensor | None, teacher: LayerBatch, setting: _Setting
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the readings; keep the student's normalisers and c, which is empty without a gradient."""
        plan, tiles, device, num_heads = setting.plan, setting.tiles, query.device, query.shape[1]
        constants, group = _constants(setting, query, key), num_heads // key.shape[1]
        lse_S, lse_T, share = torch.empty(3, num_heads, plan.num_rows, dtype=torch.float32, device=device).unbind()
        inputs = (query, key, teacher.query_BHND, teacher.key_BKND)
        strides = [stride for tensor in inputs for stride in tensor.stride()[1:3]]
        (scale_S, cap_S), (scale_T, cap_T) = (_scales(s.scaling, s.softcap) for s in (setting, teacher))
        scales = (scale_S, scale_T, cap_S, cap_T)
        both_sinks = [share if tensor is None else tensor.contiguous() for tensor in (sinks, teacher.sinks_H)]
        per_block = plan.rows // tiles.normalisers.BM
        launch(
            attention_forward.normalisers, (num_heads, 2 * per_block * plan.num_blocks),
            *inputs, *both_sinks, plan.sequences, plan.longest_blocks, plan.solution, lse_S, lse_T, share,
            *strides, plan.num_rows, *plan.windows, *scales,
            SINK=sinks is not None, **constants, **tiles.normalisers.options(),
        )  # fmt: skip

        readings = torch.empty(7, plan.num_rows, dtype=torch.float32, device=device)
        plane_dtype = torch.bfloat16 if query.dtype == torch.bfloat16 else torch.float32
        unit, gradient = plan.rows**2, any(ctx.needs_input_grad[:3])
        centred = torch.empty(plan.plane_units * unit if gradient else 0, dtype=plane_dtype, device=device)
        most = max(chunk.plane_units for chunk in plan.chunks)
        plane_S, plane_T = torch.empty(2, most * unit, dtype=torch.float32, device=device).unbind()
        roles = (
            (False, inputs[:2], lse_S, plane_S, (scale_S, cap_S)),
            (True, inputs[2:], lse_T, plane_T, (scale_T, cap_T)),
        )
        for chunk in plan.chunks:
            columns = -(-chunk.columns // tiles.averages.BN)
            for teaches, role, lse, plane, (scale, cap) in roles:
                launch(
                    attention_forward.averages, (columns, plan.rows // tiles.averages.BM * chunk.num_blocks),
                    *role, plan.sequences, plan.blocks, plan.links, lse, plane, *role[0].stride()[1:3],
                    *role[1].stride()[1:3], chunk.first_block, chunk.plane_begin, plan.num_rows, num_heads,
                    plan.windows[0], scale, cap, TEACHER=teaches, **constants, **tiles.averages.options(group),
                )  # fmt: skip
            launch(
                attention_forward.comparison, (plan.rows * chunk.num_blocks,),
                plane_S, plane_T, centred, plan.sequences, plan.blocks, plan.links, plan.permuted, share,
                plan.weights, readings, chunk.first_block, chunk.plane_begin, plan.num_rows, num_heads, *plan.windows,
                setting.comparison.jsd_beta,
                KIND=setting.comparison.formulas.kernel_code, WINDOWED=plan.windowed, GRADIENT=gradient,
                HANDLING=attention_forward.HANDLINGS[setting.comparison.handling],
                HEADS=1 << (num_heads - 1).bit_length(), ROWS=plan.rows, BLOCK=tiles.block, num_warps=tiles.block_warps,
            )  # fmt: skip
        ctx.save_for_backward(query, key, sinks, lse_S, centred)
        ctx.setting = setting
        ctx.mark_non_differentiable(readings)
        return torch.dot(plan.weights, readings[0]), readings

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, sinks, lse, centred = ctx.saved_tensors
        setting, upstream = ctx.setting, grad_outputs[0].to(torch.float32)
        plan, tiles, group = setting.plan, setting.tiles, query.shape[1] // key.shape[1]
        wants_query, wants_key, wants_sinks, *_ = ctx.needs_input_grad
        grad_query = torch.zeros_like(query) if wants_query else None
        grad_key = torch.zeros_like(key) if wants_key else None
        pull = torch.empty_like(lse)
        strides = (*query.stride()[1:3], *key.stride()[1:3])
        scales = (*_scales(setting.scaling, setting.softcap), setting.scaling)
        constants = _constants(setting, query, key) | {
            # bfloat16 has the range of a gradient; float16 has not, so there the product takes float32, as TF32.
            "LOW": query.dtype == torch.bfloat16,
            "GRADIENT_PRECISION": "tf32" if query.dtype == torch.float16 else "tf32x3",
        }
        out = query if grad_query is None else grad_query
        per_block = plan.rows // tiles.query_gradients.BM
        with torch.cuda.device_of(query):
            launch(
                attention_backward.query_gradients, (query.shape[1], per_block * plan.num_blocks),
                query, key, centred, plan.sequences, plan.longest_blocks, lse, pull, upstream, out,
                *strides, *out.stride()[1:3], plan.num_rows, plan.windows[0], *scales,
                WANTED=grad_query is not None, **constants, **tiles.query_gradients.options(),
            )  # fmt: skip
            if grad_key is not None:
                launch(
                    attention_backward.key_gradients, (key.shape[1], plan.num_key_tiles),
                    query, key, centred, plan.sequences, plan.key_tiles, lse, pull, upstream, grad_key,
                    *strides, *grad_key.stride()[1:3], plan.num_rows, plan.windows[0], *scales,
                    **constants, **tiles.key_gradients.options(group),
                )  # fmt: skip
        grad_sinks = None
        if wants_sinks and sinks is not None:
            sink_H1 = sinks.to(torch.float32)[:, None] * LOG2E
            grad_sinks = (-(torch.exp2(sink_H1 - lse) * pull).sum(1) * upstream).to(sinks.dtype)
        return grad_query, grad_key, grad_sinks, None, None
