"""The parts that the kernels of the attention loss share: the tables they read, the planes, tiles of queries and keys.

A *sequence* is one rollout; its rows are its steps. Every kernel reads queries and keys where they lie, through the
offsets in the table of sequences. The planes hold one number per step and student key, without heads, ragged: steps
come in blocks of ROWS, and a block is as wide as its last step sees, rounded up to ROWS keys. Under a sliding window it
is as wide as the window, and begins at the first key that its first step sees. No kernel adds to what another program
writes: results repeat bit by bit.

Shapes: BM steps and BN keys of a tile, D head size, DP the same as a power of two, GROUP query heads per key head.
"""

import triton
import triton.language as tl

# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

COLUMNS = tl.constexpr(16)
"""Columns of the table of sequences: offsets of the first step's query and of the first key, positions, sizes."""
STUDENT_QUERY, STUDENT_KEY, TEACHER_QUERY, TEACHER_KEY, GRAD_QUERY, GRAD_KEY = (tl.constexpr(i) for i in range(6))
STUDENT_POSITION, TEACHER_POSITION, STEPS, FIRST_ROW = (tl.constexpr(i) for i in range(6, 10))
PLANE, WIDTH, LINKS, FLAGS, SOLUTION_BEGIN, SOLUTION_END = (tl.constexpr(i) for i in range(10, 16))

LOG2E = tl.constexpr(1.4426950408889634)


# Numbers that differ from batch to batch must not compile a kernel again.
COUNTS = ["num_rows", "num_heads", "first_block", "plane_begin", "window", "window_s", "window_t"]
STATISTICS = [
    "LSE", "LSE_S", "LSE_T", "SHARE", "PULL", "SOLUTION", "LINKED", "PERMUTED", "WEIGHT", "READINGS", "UPSTREAM",
    "SINKS_S", "SINKS_T",
]  # fmt: skip


@triton.jit
def field(SEQUENCES, sequence, COLUMN: tl.constexpr):
    return tl.load(SEQUENCES + sequence * COLUMNS + COLUMN)


@triton.jit
def offset_of(SEQUENCES, sequence, COLUMN: tl.constexpr):
    """Offsets are stored in units of 16, so that the compiler knows how wide it may read."""
    return field(SEQUENCES, sequence, COLUMN) * 16


@triton.jit
def number(SEQUENCES, sequence, COLUMN: tl.constexpr):
    return field(SEQUENCES, sequence, COLUMN).to(tl.int32)


@triton.jit
def vectors(X, index, stride, inside, D: tl.constexpr, DP: tl.constexpr, MASKED: tl.constexpr):
    """[index, DP] vectors of size D, zero where not inside."""
    d = tl.arange(0, DP)
    pointers = X + index[:, None] * stride + d[None, :]
    if MASKED:
        if D == DP:
            return tl.load(pointers, mask=inside[:, None], other=0.0)
        else:
            return tl.load(pointers, mask=inside[:, None] & (d < D)[None, :], other=0.0)
    else:
        if D == DP:
            return tl.load(pointers)
        else:
            return tl.load(pointers, mask=(d < D)[None, :], other=0.0)


@triton.jit
def logits(product, scale, cap, CAPPED: tl.constexpr):
    """Base-2 logits of q·k. Capped: cap·tanh(product·scale/2), with scale and cap prepared by the caller."""
    if CAPPED:
        return cap * (1.0 - 2.0 / (1.0 + tl.exp2(product * scale)))
    else:
        return product * scale


@triton.jit
def sees(position, key, window, WINDOWED: tl.constexpr):
    distance = position - key
    if WINDOWED:
        return (distance >= 0) & (distance < window)
    else:
        return distance >= 0


@triton.jit
def spans(first, last, window, WINDOWED: tl.constexpr, BN: tl.constexpr):
    """Queries at first … last: some see the keys in [low, high), all see the whole tiles in [full_low, full_high)."""
    high = last + 1
    low = first * 0
    full_low = low
    if WINDOWED:
        low = tl.maximum(first - window + 1, 0) // BN * BN
        full_low = tl.minimum(tl.cdiv(tl.maximum(last - window + 1, 0), BN), tl.cdiv(high, BN)) * BN
    full_high = tl.maximum(full_low, (first + 1) // BN * BN)
    return low, full_low, full_high, high


@triton.jit
def block_at(plane, width, position, block, window, WINDOWED: tl.constexpr, ROWS: tl.constexpr):
    """Where a block of steps lies in a plane: its offset, the width of a row, and the key of its first column."""
    if WINDOWED:
        start = tl.maximum(position + block * ROWS - window + 1, 0) // ROWS * ROWS
        offset = (plane + block * width) * (ROWS * ROWS)
    else:
        start = block * 0
        offset = (plane + block * width + block * (block - 1) // 2) * (ROWS * ROWS)
        width += block
    return offset, width * ROWS, start


@triton.jit
def block_of(SEQUENCES, sequence, block, window, WINDOWED: tl.constexpr, ROWS: tl.constexpr):
    plane, width = field(SEQUENCES, sequence, PLANE), number(SEQUENCES, sequence, WIDTH)
    position = number(SEQUENCES, sequence, STUDENT_POSITION)
    return block_at(plane, width, position, block, window, WINDOWED, ROWS)
