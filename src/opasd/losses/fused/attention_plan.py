"""The tables that say where the data of a batch of rollouts is: made on the host, sent to the device in one copy.

`attention_tables.py` says what a plane is; planes are measured in units of `rows × rows` numbers here.
"""

from collections.abc import Sequence
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


def query_ranges(alignments: Sequence[Alignment]) -> np.ndarray:
    """Return [R, 6]: the sequence of each alignment with steps, its steps, and both roles' range of queries."""
    ranges: list[tuple[int, ...]] = []
    for index, alignment in enumerate(alignments):
        if alignment.num_tokens:
            student, teacher = alignment.student_query.cpu().numpy(), alignment.teacher_query.cpu().numpy()
            ranges.append((index, len(student), student[0], student[-1] + 1, teacher[0], teacher[-1] + 1))
    return np.array(ranges, np.int64).reshape(-1, 6)


class PlaneChunk(NamedTuple):
    """Consecutive blocks; their averaged rows are in memory together."""

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
    """For each shared student key 8·(its position at the teacher) + 4·(of the template) + 2·(compared) + (in the
    prompt), or −1."""
    solution: Tensor
    """For each teacher key whether it belongs to the solution."""
    permuted: Tensor
    """For each student key in the prompt, the key that gives it its share; empty unless shuffled."""
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


def make_launch_plan(
    student: LayerBatch,
    teacher: LayerBatch,
    gradient_strides: Sequence[Sequence[int]],
    alignments: Sequence[Alignment],
    ranges: np.ndarray,
    weights: Tensor | None,
    seeds: Sequence[int] | None,
    rows: int,
    key_tile: int,
) -> LaunchPlan:
    """Make the plan; `weights` of all steps are 1/T by default, `seeds` are given if attention is shuffled."""
    sequence, steps, position, end, teacher_position, teacher_end = ranges.T
    windows = (_window(student.sliding_window, end.max()), _window(teacher.sliding_window, teacher_end.max()))
    num_blocks = -(-steps // rows)
    owner, block = _numbered(num_blocks)
    if min(windows) < NO_WINDOW:
        width = -(-(np.minimum(windows[0], end) + 2 * rows - 2) // rows)
        widths = width[owner]
    else:
        width = -(-(position + rows) // rows)
        widths = width[owner] + block
    plane_ends = np.cumsum(widths)
    first_block, first_row, first_link, first_flag = (
        np.cumsum(counts) - counts for counts in (num_blocks, steps, end, teacher_end)
    )
    planes = (plane_ends - widths)[first_block]
    links, flags, permuted, solution = _key_tables(alignments, ranges, first_link, first_flag, seeds)
    sequences = np.column_stack([
        _offsets(student, sequence, position, student.query_BHND.stride(), student.key_BKND.stride()),
        _offsets(teacher, sequence, teacher_position, teacher.query_BHND.stride(), teacher.key_BKND.stride()),
        _offsets(student, sequence, position, *gradient_strides),
        position, teacher_position, steps, first_row, planes, width, first_link, first_flag, solution,
    ])  # fmt: skip
    blocks = np.column_stack([owner, block])
    longest_blocks = blocks[np.argsort(-widths, kind="stable")]
    key_tiles = _key_tiles(steps, position, end, windows[0], key_tile)
    device = student.query_BHND.device
    if weights is None:
        weights = torch.from_numpy(np.repeat(1 / steps, steps))
    host_weights = weights.to(torch.float32).numpy() if weights.device.type == "cpu" else np.zeros(0, np.float32)
    *tables, sent_weights = _send(
        [sequences, blocks, longest_blocks, key_tiles, links, flags, permuted, host_weights], device
    )
    return LaunchPlan(
        *tables,
        weights=sent_weights if weights.device.type == "cpu" else weights.to(torch.float32),
        chunks=_chunks(widths, plane_ends, rows),
        num_rows=int(steps.sum()),
        num_blocks=len(blocks),
        num_key_tiles=len(key_tiles),
        plane_units=int(plane_ends[-1]),
        windows=windows,
        rows=rows,
    )


def _window(window: int | None, longest: int) -> int:
    """Return the window, or NO_WINDOW if it is as wide as every sequence."""
    return NO_WINDOW if window is None or window >= longest else window


def _numbered(counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return 0 0 0 1 1 …, and 0 1 2 0 1 …: the owner of each counted thing, and its number there."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _offsets(
    role: LayerBatch,
    sequence: np.ndarray,
    position: np.ndarray,
    query_strides: Sequence[int],
    key_strides: Sequence[int],
) -> np.ndarray:
    """Return [R, 2]: offsets of each first step's query and of each first key, in units of 16 elements."""
    row, begin, _ = np.array(role.spans, np.int64)[sequence].T
    query = 0 if role.only_queries else begin + position
    offsets = row * query_strides[0] + query * query_strides[2], row * key_strides[0] + begin * key_strides[2]
    return np.column_stack(offsets) // 16


def _key_tiles(steps: np.ndarray, position: np.ndarray, end: np.ndarray, window: int, key_tile: int) -> np.ndarray:
    """Return (sequence, tile of its keys), those that most steps see first."""
    owner, tile = _numbered(-(-end // key_tile))
    first_seen = np.maximum(tile * key_tile - position[owner], 0)
    last_seen = np.minimum((tile + 1) * key_tile - 1 + window - position[owner], steps[owner])
    return np.column_stack([owner, tile])[np.argsort(first_seen - last_seen, kind="stable")]


def _key_tables(
    alignments: Sequence[Alignment],
    ranges: np.ndarray,
    first_link: np.ndarray,
    first_flag: np.ndarray,
    seeds: Sequence[int] | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return `links`, `solution` and `permuted` of the plan, a number per key; and the span [R, 2] of each solution."""
    num_links, num_flags = ranges[:, 3].sum(), ranges[:, 5].sum()
    links, flags = np.full(num_links, -1, np.int32), np.zeros(num_flags, np.int32)
    permuted = np.zeros(num_links if seeds is not None else 0, np.int32)
    spans = np.zeros((len(ranges), 2), np.int64)
    for number, (index, _, _, end, _, teacher_end) in enumerate(ranges.tolist()):
        alignment = alignments[index]
        solution = alignment.solution.cpu().numpy()
        solution = solution[: np.searchsorted(solution, teacher_end)]
        flags[first_flag[number] + solution] = 1
        if len(solution):
            spans[number] = solution[0], solution[-1] + 1
        shared = alignment.student_shared.cpu().numpy()
        shared = shared[: np.searchsorted(shared, end)]  # positions that some query sees
        in_prompt = alignment.in_prompt.cpu().numpy()[: len(shared)]
        keys = first_link[number] + shared
        links[keys] = 8 * alignment.teacher_shared.cpu().numpy()[: len(shared)] + 2 + in_prompt
        left_out, template = alignment.left_out.cpu().numpy(), alignment.template.cpu().numpy()
        links[first_link[number] + left_out[0]] = 8 * left_out[1]
        links[first_link[number] + template] |= 4
        if seeds is not None:
            permuted[keys] = shared[projection.shuffle_permutation(torch.from_numpy(in_prompt), seeds[index]).numpy()]
    return links, flags, permuted, spans


def _send(tables: Sequence[np.ndarray], device: torch.device) -> list[Tensor]:
    """Copy all tables to the device at once; those with larger numbers come first, so that each is aligned."""
    sizes = [table.nbytes for table in tables]
    buffer = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=device.type == "cuda")
    np.concatenate([table.reshape(-1).view(np.uint8) for table in tables], out=buffer.numpy())
    parts = buffer.to(device, non_blocking=True).split(sizes)
    return [part.view(torch.from_numpy(table).dtype) for part, table in zip(parts, tables, strict=True)]


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
