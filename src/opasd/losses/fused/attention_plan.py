"""Where everything of a batch of rollouts lies: tables made on the host, sent to the device in one copy.

`attention_tables` says what a plane is; planes are measured in units of `rows × rows` numbers here.
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
"""Of one averaged plane that is held at a time: 40 MiB for each role."""


class Rollout(NamedTuple):
    """An alignment with at least one step, as the host reads it."""

    index: int
    steps: int
    position: int
    """Of the first query, and one after the last in `end`."""
    end: int
    other_position: int
    other_end: int
    student_shared: np.ndarray
    """Shared positions that some query sees, then the same at the teacher."""
    teacher_shared: np.ndarray
    in_prompt: np.ndarray
    solution: np.ndarray
    consecutive: bool

    @classmethod
    def read(cls, index: int, alignment: Alignment) -> "Rollout":
        query, other = alignment.student_query.cpu().numpy(), alignment.teacher_query.cpu().numpy()
        end, other_end = int(query[-1]) + 1, int(other[-1]) + 1
        shared, solution = alignment.student_shared.cpu().numpy(), alignment.solution.cpu().numpy()
        reach = int(np.searchsorted(shared, end))
        steps = len(query)
        return cls(
            index,
            steps,
            int(query[0]),
            end,
            int(other[0]),
            other_end,
            shared[:reach],
            alignment.teacher_shared.cpu().numpy()[:reach],
            alignment.in_prompt.cpu().numpy()[:reach],
            solution[: int(np.searchsorted(solution, other_end))],
            end - int(query[0]) == steps == other_end - int(other[0]),
        )


def read(alignments: Sequence[Alignment]) -> list[Rollout]:
    """The rollouts that have steps."""
    return [Rollout.read(i, alignment) for i, alignment in enumerate(alignments) if len(alignment.student_query)]


class Chunk(NamedTuple):
    """Consecutive blocks whose averaged rows are held together."""

    first_block: int
    num_blocks: int
    plane_begin: int
    plane_units: int
    columns: int


class Plan(NamedTuple):
    """Tables on the device, and what the host must know to launch."""

    sequences: Tensor
    blocks: Tensor
    """(sequence, block of its steps), in the order of the planes."""
    longest_blocks: Tensor
    """The same, those that see most first: the device is evenly busy at the end too."""
    key_tiles: Tensor
    """(sequence, tile of its keys), those that most steps see first."""
    links: Tensor
    """For each student key 2·(its position at the teacher) + (whether in the prompt), or −1."""
    solution: Tensor
    """For each teacher key whether it is the solution's."""
    permuted: Tensor
    """For each student key in the prompt the one whose share it gets; empty unless shuffled."""
    weights: Tensor
    chunks: list[Chunk]
    num_rows: int
    num_blocks: int
    num_key_tiles: int
    plane_units: int
    windows: tuple[int, int]
    rows: int

    @property
    def windowed(self) -> bool:
        return min(self.windows) < NO_WINDOW


def make_plan(
    student: LayerBatch,
    teacher: LayerBatch,
    gradient_strides: tuple[tuple[int, ...], tuple[int, ...]],
    rollouts: Sequence[Rollout],
    weights: Tensor | None,
    seeds: Sequence[int] | None,
    rows: int,
    key_tile: int,
) -> Plan:
    """`weights` of all steps in one row, 1/T without; `seeds` of all rollouts where attention is shuffled."""
    windows = (
        _window(student.sliding_window, max(rollout.end for rollout in rollouts)),
        _window(teacher.sliding_window, max(rollout.other_end for rollout in rollouts)),
    )
    steps, position, end, other_end = (
        np.array([rollout[field] for rollout in rollouts], np.int64) for field in (1, 2, 3, 5)
    )
    num_blocks, num_tiles = -(-steps // rows), -(-end // key_tile)
    sequence, block = _numbered(num_blocks)
    if min(windows) < NO_WINDOW:
        width = -(-(np.minimum(windows[0], end) + 2 * rows - 2) // rows)
        widths = width[sequence]
    else:
        width = -(-(position + rows) // rows)
        widths = width[sequence] + block
    plane_ends = np.cumsum(widths)
    tile_sequence, tile = _numbered(num_tiles)
    first_seen = np.maximum(tile * key_tile - position[tile_sequence], 0)
    last_seen = np.minimum((tile + 1) * key_tile - 1 + windows[0] - position[tile_sequence], steps[tile_sequence])
    first_block, first_row, first_link, first_flag = (
        np.cumsum(counts) - counts for counts in (num_blocks, steps, end, other_end)
    )
    planes = (plane_ends - widths)[first_block]

    num_rows, num_links, num_flags = int(steps.sum()), int(end.sum()), int(other_end.sum())
    own_weights = weights is None or weights.device.type == "cpu"
    long = [16 * len(rollouts), 2 * len(block), 2 * len(block), 2 * len(tile)]
    short = [num_links, num_flags, num_links if seeds is not None else 0, num_rows if own_weights else 0]
    device = student.query_BHND.device
    buffer = torch.empty(sum(long) + -(-sum(short) // 2), dtype=torch.int64, pin_memory=device.type == "cuda")
    host = buffer.numpy()
    sequences, blocks, longest, tiles = _split(host, long)
    links, flags, permuted, host_weights = _split(host[sum(long) :].view(np.int32), short)

    table = sequences.reshape(-1, 16)
    for number, rollout in enumerate(rollouts):
        begin, stop = (rollout.solution[0], rollout.solution[-1] + 1) if len(rollout.solution) else (0, 0)
        table[number] = (
            *_offsets(student, rollout.index, rollout.position, student.query_BHND.stride(), student.key_BKND.stride()),
            *_offsets(
                teacher, rollout.index, rollout.other_position, teacher.query_BHND.stride(), teacher.key_BKND.stride()
            ),
            *_offsets(student, rollout.index, rollout.position, *gradient_strides),
            rollout.position, rollout.other_position, rollout.steps, first_row[number], planes[number], width[number],
            first_link[number], first_flag[number], begin, stop,
        )  # fmt: skip
    blocks[::2], blocks[1::2] = sequence, block
    order = np.argsort(-widths, kind="stable")
    longest[::2], longest[1::2] = sequence[order], block[order]
    order = np.argsort(first_seen - last_seen, kind="stable")
    tiles[::2], tiles[1::2] = tile_sequence[order], tile[order]
    links[:] = -1
    flags[:] = 0
    for number, rollout in enumerate(rollouts):
        mine = first_link[number] + rollout.student_shared
        links[mine] = 2 * rollout.teacher_shared + rollout.in_prompt
        flags[first_flag[number] + rollout.solution] = 1
        if seeds is not None:
            in_prompt = torch.from_numpy(rollout.in_prompt)
            source = projection.shuffle_permutation(in_prompt, seeds[rollout.index]).numpy()
            permuted[mine] = rollout.student_shared[source]
        if weights is None:
            row = first_row[number]
            host_weights[row : row + rollout.steps].view(np.float32)[:] = 1 / rollout.steps
    if weights is not None and own_weights:
        host_weights.view(np.float32)[:] = weights.numpy()

    sent = buffer.to(device, non_blocking=True)
    *long_tables, rest = sent.split([*long, len(buffer) - sum(long)])
    *short_tables, sent_weights, _ = rest.view(torch.int32).split([*short, 2 * len(rest) - sum(short)])
    return Plan(
        *long_tables,
        *short_tables,
        weights=sent_weights.view(torch.float32) if weights is None or own_weights else weights.to(torch.float32),
        chunks=_chunks(widths, plane_ends, rows),
        num_rows=num_rows,
        num_blocks=len(block),
        num_key_tiles=len(tile),
        plane_units=int(plane_ends[-1]),
        windows=windows,
        rows=rows,
    )  # fmt: skip


def _split(whole: np.ndarray, sizes: Sequence[int]) -> list[np.ndarray]:
    ends = list(accumulate(sizes))
    return [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _window(window: int | None, longest: int) -> int:
    """A window as wide as every sequence is none."""
    return NO_WINDOW if window is None or window >= longest else window


def _numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """0 0 0 1 1 …, and 0 1 2 0 1 …: whose each of the counted things is, and its number there."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _offsets(
    role: LayerBatch, index: int, position: int, query_strides: Sequence[int], key_strides: Sequence[int]
) -> tuple[int, int]:
    """Of the first step's query and the first key, in units of 16 elements."""
    row, begin, _ = role.spans[index]
    query = 0 if role.only_queries else begin + position
    query, key = row * query_strides[0] + query * query_strides[2], row * key_strides[0] + begin * key_strides[2]
    return query // 16, key // 16


def _chunks(widths: np.ndarray, ends: np.ndarray, rows: int) -> list[Chunk]:
    """Cut the blocks where the next one would not fit any more."""
    most = max(MOST_NUMBERS // rows**2, int(widths.max()))
    chunks: list[Chunk] = []
    first = begin = 0
    while first < len(widths):
        stop = int(np.searchsorted(ends, begin + most, side="right"))
        units = int(ends[stop - 1]) - begin
        chunks.append(Chunk(first, stop - first, begin, units, int(widths[first:stop].max()) * rows))
        first, begin = stop, begin + units
    return chunks
