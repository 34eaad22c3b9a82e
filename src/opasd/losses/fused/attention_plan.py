"""Where the data of a batch of rollouts lies: tables made on the host, sent to the device in one copy.

`attention_tables.py` says what a plane is; planes are measured in units of `rows × rows` numbers here.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from opasd.losses import projection
from opasd.losses.inputs import LayerBatch
from opasd.prompts.alignment import Alignment

NO_WINDOW = 1 << 30
MOST_NUMBERS = 10 << 20
"""Numbers of an averaged plane that are held at a time: 40 MiB for each role."""


class HostAlignment(NamedTuple):
    """An alignment with at least one step, in arrays on the host."""

    index: int
    """The number of its sequence in the forward."""
    steps: int
    student_position: int
    """The position of the first query; `student_end` comes after the last."""
    student_end: int
    teacher_position: int
    teacher_end: int
    student_shared: np.ndarray
    """Shared positions that some query sees."""
    teacher_shared: np.ndarray
    in_prompt: np.ndarray
    solution: np.ndarray
    consecutive: bool
    """Whether both roles' queries follow one another."""

    @classmethod
    def read(cls, index: int, alignment: Alignment) -> "HostAlignment":
        student_query, teacher_query = alignment.student_query.cpu().numpy(), alignment.teacher_query.cpu().numpy()
        student_shared, solution = alignment.student_shared.cpu().numpy(), alignment.solution.cpu().numpy()
        steps, student_position, teacher_position = len(student_query), int(student_query[0]), int(teacher_query[0])
        student_end, teacher_end = int(student_query[-1]) + 1, int(teacher_query[-1]) + 1
        reach = int(np.searchsorted(student_shared, student_end))
        return cls(
            index,
            steps,
            student_position,
            student_end,
            teacher_position,
            teacher_end,
            student_shared[:reach],
            alignment.teacher_shared.cpu().numpy()[:reach],
            alignment.in_prompt.cpu().numpy()[:reach],
            solution[: int(np.searchsorted(solution, teacher_end))],
            student_end - student_position == steps == teacher_end - teacher_position,
        )


def read(alignments: Sequence[Alignment]) -> list[HostAlignment]:
    """The alignments that have steps."""
    return [HostAlignment.read(i, alignment) for i, alignment in enumerate(alignments) if alignment.num_tokens]


class PlaneChunk(NamedTuple):
    """Consecutive blocks of which the averaged rows are held together."""

    first_block: int
    num_blocks: int
    plane_begin: int
    plane_units: int
    columns: int


class LaunchPlan(NamedTuple):
    """Tables on the device, and the numbers that the host needs to launch kernels."""

    sequences: Tensor
    blocks: Tensor
    """(sequence, block of its steps), in the order of the planes."""
    longest_blocks: Tensor
    """The same, longest rows first: the device is evenly busy until the end."""
    key_tiles: Tensor
    """(sequence, tile of its keys), those that most steps see first."""
    links: Tensor
    """For each student key 2·(its position at the teacher) + (whether in the prompt), or −1."""
    solution: Tensor
    """For each teacher key whether it belongs to the solution."""
    permuted: Tensor
    """For each student key in the prompt the one of which it gets the share; empty unless shuffled."""
    weights: Tensor
    chunks: list[PlaneChunk]
    num_rows: int
    num_blocks: int
    num_key_tiles: int
    plane_units: int
    windows: tuple[int, int]
    rows: int

    @property
    def windowed(self) -> bool:
        return min(self.windows) < NO_WINDOW


class _Layout(NamedTuple):
    """How blocks of steps and tiles of keys are numbered, and where each rollout's part of a table begins."""

    steps: np.ndarray
    width: np.ndarray
    """Of each rollout's first block in a plane."""
    block_owner: np.ndarray
    block: np.ndarray
    block_widths: np.ndarray
    plane_ends: np.ndarray
    tile_owner: np.ndarray
    tile: np.ndarray
    first_plane: np.ndarray
    first_row: np.ndarray
    first_link: np.ndarray
    first_flag: np.ndarray
    num_links: int
    num_flags: int

    @classmethod
    def of(cls, rollouts: Sequence[HostAlignment], windows: tuple[int, int], rows: int, key_tile: int) -> "_Layout":
        steps, position, end, teacher_end = np.array(
            [(item.steps, item.student_position, item.student_end, item.teacher_end) for item in rollouts], np.int64
        ).T
        num_blocks = -(-steps // rows)
        block_owner, block = _numbered(num_blocks)
        if min(windows) < NO_WINDOW:
            width = -(-(np.minimum(windows[0], end) + 2 * rows - 2) // rows)
            block_widths = width[block_owner]
        else:
            width = -(-(position + rows) // rows)
            block_widths = width[block_owner] + block
        plane_ends = np.cumsum(block_widths)
        tile_owner, tile = _numbered(-(-end // key_tile))
        first_seen = np.maximum(tile * key_tile - position[tile_owner], 0)
        last_seen = np.minimum((tile + 1) * key_tile - 1 + windows[0] - position[tile_owner], steps[tile_owner])
        order = np.argsort(first_seen - last_seen, kind="stable")
        first_block, first_row, first_link, first_flag = (
            np.cumsum(counts) - counts for counts in (num_blocks, steps, end, teacher_end)
        )
        return cls(
            steps,
            width,
            block_owner,
            block,
            block_widths,
            plane_ends,
            tile_owner[order],
            tile[order],
            (plane_ends - block_widths)[first_block],
            first_row,
            first_link,
            first_flag,
            int(end.sum()),
            int(teacher_end.sum()),
        )


def make_launch_plan(
    student: LayerBatch,
    teacher: LayerBatch,
    gradient_strides: tuple[tuple[int, ...], tuple[int, ...]],
    rollouts: Sequence[HostAlignment],
    weights: Tensor | None,
    seeds: Sequence[int] | None,
    rows: int,
    key_tile: int,
) -> LaunchPlan:
    """`weights` of all steps, concatenated, by default 1/T; `seeds` of all rollouts if attention is shuffled."""
    windows = (
        _window(student.sliding_window, max(rollout.student_end for rollout in rollouts)),
        _window(teacher.sliding_window, max(rollout.teacher_end for rollout in rollouts)),
    )
    layout = _Layout.of(rollouts, windows, rows, key_tile)
    num_rows, num_blocks, num_tiles = int(layout.steps.sum()), len(layout.block), len(layout.tile)
    on_host = weights is None or weights.device.type == "cpu"
    sizes_64 = [16 * len(rollouts), 2 * num_blocks, 2 * num_blocks, 2 * num_tiles]
    shuffled = layout.num_links if seeds is not None else 0
    sizes_32 = [layout.num_links, layout.num_flags, shuffled, num_rows if on_host else 0]
    device = student.query_BHND.device
    buffer = torch.empty(sum(sizes_64) + -(-sum(sizes_32) // 2), dtype=torch.int64, pin_memory=device.type == "cuda")
    host = buffer.numpy()
    sequences, blocks, longest, tiles = _split(host, sizes_64)
    links, flags, permuted, host_weights = _split(host[sum(sizes_64) :].view(np.int32), sizes_32)

    _fill_sequences(sequences.reshape(-1, 16), student, teacher, gradient_strides, rollouts, layout)
    blocks[::2], blocks[1::2] = layout.block_owner, layout.block
    order = np.argsort(-layout.block_widths, kind="stable")
    longest[::2], longest[1::2] = layout.block_owner[order], layout.block[order]
    tiles[::2], tiles[1::2] = layout.tile_owner, layout.tile
    _fill_keys(links, flags, permuted, rollouts, layout, seeds)
    if weights is None:
        host_weights.view(np.float32)[:] = np.repeat(1 / layout.steps, layout.steps)
    elif on_host:
        host_weights.view(np.float32)[:] = weights.numpy()

    sent = buffer.to(device, non_blocking=True)
    *tables_64, rest = sent.split([*sizes_64, len(buffer) - sum(sizes_64)])
    *tables_32, sent_weights, _ = rest.view(torch.int32).split([*sizes_32, 2 * len(rest) - sum(sizes_32)])
    return LaunchPlan(
        *tables_64,
        *tables_32,
        weights=sent_weights.view(torch.float32) if weights is None or on_host else weights.to(torch.float32),
        chunks=_chunks(layout.block_widths, layout.plane_ends, rows),
        num_rows=num_rows,
        num_blocks=num_blocks,
        num_key_tiles=num_tiles,
        plane_units=int(layout.plane_ends[-1]),
        windows=windows,
        rows=rows,
    )  # fmt: skip


def _fill_sequences(
    table: np.ndarray,
    student: LayerBatch,
    teacher: LayerBatch,
    gradient_strides: tuple[tuple[int, ...], tuple[int, ...]],
    rollouts: Sequence[HostAlignment],
    layout: _Layout,
) -> None:
    """The table of sequences; `attention_tables.py` names its columns."""
    student_strides = student.query_BHND.stride(), student.key_BKND.stride()
    teacher_strides = teacher.query_BHND.stride(), teacher.key_BKND.stride()
    for number, rollout in enumerate(rollouts):
        begin, stop = (rollout.solution[0], rollout.solution[-1] + 1) if len(rollout.solution) else (0, 0)
        table[number] = (
            *_offsets(student, rollout.index, rollout.student_position, *student_strides),
            *_offsets(teacher, rollout.index, rollout.teacher_position, *teacher_strides),
            *_offsets(student, rollout.index, rollout.student_position, *gradient_strides),
            rollout.student_position, rollout.teacher_position, rollout.steps,
            layout.first_row[number], layout.first_plane[number], layout.width[number],
            layout.first_link[number], layout.first_flag[number], begin, stop,
        )  # fmt: skip


def _fill_keys(
    links: np.ndarray,
    flags: np.ndarray,
    permuted: np.ndarray,
    rollouts: Sequence[HostAlignment],
    layout: _Layout,
    seeds: Sequence[int] | None,
) -> None:
    """The tables with one number per key; see `LaunchPlan`."""
    links[:] = -1
    flags[:] = 0
    for number, rollout in enumerate(rollouts):
        shared = layout.first_link[number] + rollout.student_shared
        links[shared] = 2 * rollout.teacher_shared + rollout.in_prompt
        flags[layout.first_flag[number] + rollout.solution] = 1
        if seeds is not None:
            in_prompt = torch.from_numpy(rollout.in_prompt)
            source = projection.shuffle_permutation(in_prompt, seeds[rollout.index]).numpy()
            permuted[shared] = rollout.student_shared[source]


def _split(whole: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    ends = list(accumulate(sizes))
    return [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _window(window: int | None, longest: int) -> int:
    """NO_WINDOW if the window is as wide as every sequence."""
    return NO_WINDOW if window is None or window >= longest else window


def _numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 0 0 1 1 …, and 0 1 2 0 1 …: the owner of each counted thing, and its number there."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _offsets(
    role: LayerBatch, index: int, position: int, query_strides: Sequence[int], key_strides: Sequence[int]
) -> tuple[int, int]:
    """The offsets of the first step's query and of the first key, in units of 16 elements."""
    row, begin, _ = role.spans[index]
    query = 0 if role.only_queries else begin + position
    query, key = row * query_strides[0] + query * query_strides[2], row * key_strides[0] + begin * key_strides[2]
    return query // 16, key // 16


def _chunks(widths: np.ndarray, ends: np.ndarray, rows: int) -> list[PlaneChunk]:
    """Cut the blocks where the next one would no longer fit."""
    most = max(MOST_NUMBERS // rows**2, int(widths.max()))
    chunks: list[PlaneChunk] = []
    first = begin = 0
    while first < len(widths):
        stop = int(np.searchsorted(ends, begin + most, side="right"))
        units = int(ends[stop - 1]) - begin
        chunks.append(PlaneChunk(first, stop - first, begin, units, int(widths[first:stop].max()) * rows))
        first, begin = stop, begin + units
    return chunks
