"""Kernels of the token loss: they go over rows of logits, each row in tiles of [L lanes, W neighbours].

`token.py` beside this file says what each kernel is for. Sums are kept per lane. Logits are in base 2:
x = z / temperature · log₂ e. A head is a tuple (bias, inner, gain); `head_numbers` in `token.py` explains the last two.
"""

import triton
import triton.language as tl

from opasd.losses.fused.divergence import FLOOR, FORWARD_KL, NATS, log_terms

# A kernel's language is not quite Python:
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false, reportOperatorIssue=false
# pyright: reportPossiblyUnboundVariable=false

CLIPS = {"none": 0, "per_token": 1, "pointwise": 2}
PER_TOKEN, POINTWISE = (tl.constexpr(CLIPS[name]) for name in ("per_token", "pointwise"))
LOWEST: tl.constexpr = tl.constexpr(-1e30)
"""Replaces −∞ where the difference of two of them is taken."""
WIDTH: tl.constexpr = tl.constexpr(8)


@triton.jit
def compare_rows(
    STUDENT, DIFFERENCE, STUDENT_BIAS, TEACHER_BIAS, vocabulary, READINGS,
    student_inner, student_gain, teacher_inner, teacher_gain, slope, beta, threshold,
    KIND: tl.constexpr, CLIP: tl.constexpr, GRADIENT: tl.constexpr, CAPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """One row: readings, and with GRADIENT the gradient, which replaces the student's products."""
    row = tl.program_id(0).to(tl.int64)
    STUDENT += row * vocabulary
    DIFFERENCE += row * vocabulary
    student = (STUDENT_BIAS, student_inner, student_gain)
    teacher = (TEACHER_BIAS, teacher_inner, teacher_gain)
    tiles = tl.cdiv(vocabulary, LANES * WIDTH)
    student_lse, teacher_lse, lowest = _sums(STUDENT, DIFFERENCE, vocabulary, student, teacher, CAPS, LANES)

    # Σ_v u_v is −1 for the forward KL, unless an entry is clipped or its logarithm is at the floor.
    THREE: tl.constexpr = KIND != FORWARD_KL or CLIP == POINTWISE
    total = -1.0
    whole_total = -1.0
    if GRADIENT or CLIP == POINTWISE:  # noqa: SIM102 (decided when the kernel is compiled; the second for each row)
        if THREE or (lowest - student_lse <= FLOOR):
            total, whole_total = _slope_sums(
                STUDENT, DIFFERENCE, vocabulary, student, teacher, student_lse, teacher_lse, beta, threshold,
                KIND, CLIP, CAPS, LANES,
            )  # fmt: skip

    divergence_L = tl.zeros((LANES,), tl.float32)
    loss_L = tl.zeros((LANES,), tl.float32)
    clipped_L = tl.zeros((LANES,), tl.float32)
    entropy_L = tl.zeros((LANES,), tl.float32)
    inner_L = tl.zeros((LANES,), tl.float32)
    for step in range(tiles):
        index_LW = _index(step if THREE else tiles - 1 - step, LANES)
        student_LW, teacher_LW = _logits(STUDENT, DIFFERENCE, index_LW, vocabulary, student, teacher, CAPS)
        log_LW = student_LW - student_lse
        term_LW, slope_LW, probability_LW = log_terms(log_LW, teacher_LW - teacher_lse, beta, KIND)
        divergence_L += tl.sum(term_LW, 1)
        entropy_L -= tl.sum(probability_LW * tl.maximum(log_LW, FLOOR), 1)
        if CLIP == POINTWISE:
            over_LW = term_LW > threshold
            loss_L += tl.sum(tl.where(over_LW, threshold, term_LW), 1)
            clipped_L += tl.sum(over_LW.to(tl.float32), 1)
            whole_LW = slope_LW - probability_LW * whole_total
            slope_LW = tl.where(over_LW, 0.0, slope_LW)
            inner_L += tl.sum(whole_LW * (slope_LW - probability_LW * total), 1)
        if GRADIENT:
            grad_LW = (slope_LW - probability_LW * total) * slope
            _store_gradient(STUDENT, grad_LW, student_LW, index_LW, vocabulary, student_gain, CAPS & 1)

    sums = (divergence_L, loss_L, clipped_L, entropy_L, inner_L)
    _store_readings(READINGS, row, sums, vocabulary, threshold, CLIP)


@triton.jit
def _store_readings(READINGS, row, sums, vocabulary, threshold, CLIP: tl.constexpr):
    """A row's loss, divergence, clipped part, entropy in nats, and whether clipping turned its gradient."""
    divergence_L, loss_L, clipped_L, entropy_L, inner_L = sums
    divergence = tl.sum(divergence_L, 0)
    loss = divergence
    clipped = 0.0
    turned = 0.0
    if CLIP == PER_TOKEN:
        loss = tl.where(divergence > threshold, threshold, divergence)
        clipped = tl.where(divergence > threshold, 1.0, 0.0)
    if CLIP == POINTWISE:
        loss = tl.sum(loss_L, 0)
        clipped = tl.sum(clipped_L, 0) / vocabulary
        turned = tl.where((tl.sum(inner_L, 0) < 0) & (clipped > 0), 1.0, 0.0)
    tl.store(READINGS + row * 5, loss)
    tl.store(READINGS + row * 5 + 1, divergence)
    tl.store(READINGS + row * 5 + 2, clipped)
    tl.store(READINGS + row * 5 + 3, tl.sum(entropy_L, 0) * NATS)
    tl.store(READINGS + row * 5 + 4, turned)


@triton.jit
def _slope_sums(
    STUDENT, DIFFERENCE, vocabulary, student, teacher, student_lse, teacher_lse, beta, threshold,
    KIND: tl.constexpr, CLIP: tl.constexpr, CAPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Σ_v u_v of a row, clipped and not, from its end to its begin: the cache still holds the end."""
    total_L = tl.zeros((LANES,), tl.float32)
    cut_L = tl.zeros((LANES,), tl.float32)
    tiles = tl.cdiv(vocabulary, LANES * WIDTH)
    for step in range(tiles):
        index_LW = _index(tiles - 1 - step, LANES)
        student_LW, teacher_LW = _logits(STUDENT, DIFFERENCE, index_LW, vocabulary, student, teacher, CAPS)
        term_LW, slope_LW, _ = log_terms(student_LW - student_lse, teacher_LW - teacher_lse, beta, KIND)
        if CLIP == POINTWISE:
            # Not the whole beside the kept: at that LLVM's SLP vectoriser crashes in Triton 3.9 for sm_90.
            cut_L += tl.sum(tl.where(term_LW > threshold, slope_LW, 0.0), 1)
            slope_LW = tl.where(term_LW > threshold, 0.0, slope_LW)
        total_L += tl.sum(slope_LW, 1)
    total = tl.sum(total_L, 0)
    return total, total + tl.sum(cut_L, 0)


@triton.jit
def sum_rest(
    STUDENT, DIFFERENCE, STUDENT_BIAS, TEACHER_BIAS, vocabulary, REST,
    student_inner, student_gain, teacher_inner, teacher_gain, CAPS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Both log-sum-exps in base 2 over the entries that are not −∞, and the student's entropy among them in nats."""
    row = tl.program_id(0).to(tl.int64)
    STUDENT += row * vocabulary
    DIFFERENCE += row * vocabulary
    student = (STUDENT_BIAS, student_inner, student_gain)
    teacher = (TEACHER_BIAS, teacher_inner, teacher_gain)
    student_lse, teacher_lse, _ = _sums(STUDENT, DIFFERENCE, vocabulary, student, teacher, CAPS, LANES)
    entropy_L = tl.zeros((LANES,), tl.float32)
    tiles = tl.cdiv(vocabulary, LANES * WIDTH)
    for step in range(tiles):
        index_LW = _index(tiles - 1 - step, LANES)
        log_LW = (
            _logit(_load(STUDENT, index_LW, vocabulary), 0.0, index_LW, vocabulary, student, CAPS & 1) - student_lse
        )
        entropy_L -= tl.sum(tl.exp2(log_LW) * tl.maximum(log_LW, FLOOR), 1)
    num_tokens = tl.num_programs(0)
    tl.store(REST + row, student_lse)
    tl.store(REST + num_tokens + row, teacher_lse)
    tl.store(REST + 2 * num_tokens + row, tl.sum(entropy_L, 0) * NATS)


@triton.jit
def spread_rest(
    STUDENT, STUDENT_BIAS, vocabulary, REST, GRAD, student_inner, student_gain, CAPS: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """Give the gradient of all others together to each of them by its part of their probability."""
    row = tl.program_id(0).to(tl.int64)
    STUDENT += row * vocabulary
    student = (STUDENT_BIAS, student_inner, student_gain)
    lse = tl.load(REST + row)
    grad = tl.load(GRAD + row)
    for tile in range(tl.cdiv(vocabulary, LANES * WIDTH)):
        index_LW = _index(tile, LANES)
        student_LW = _logit(_load(STUDENT, index_LW, vocabulary), 0.0, index_LW, vocabulary, student, CAPS & 1)
        _store_gradient(
            STUDENT, tl.exp2(student_LW - lse) * grad, student_LW, index_LW, vocabulary, student_gain, CAPS & 1
        )


@triton.jit
def _sums(STUDENT, DIFFERENCE, vocabulary, student, teacher, CAPS: tl.constexpr, LANES: tl.constexpr):
    """Both log-sum-exps of a row, and the student's lowest logit."""
    student_max_L = tl.full((LANES,), LOWEST, tl.float32)
    teacher_max_L = tl.full((LANES,), LOWEST, tl.float32)
    student_sum_L = tl.zeros((LANES,), tl.float32)
    teacher_sum_L = tl.zeros((LANES,), tl.float32)
    lowest_L = tl.full((LANES,), float("inf"), tl.float32)
    for tile in range(tl.cdiv(vocabulary, LANES * WIDTH)):
        index_LW = _index(tile, LANES)
        student_LW, teacher_LW = _logits(STUDENT, DIFFERENCE, index_LW, vocabulary, student, teacher, CAPS)
        student_max_L, student_sum_L = _add(student_max_L, student_sum_L, student_LW)
        teacher_max_L, teacher_sum_L = _add(teacher_max_L, teacher_sum_L, teacher_LW)
        lowest_L = tl.minimum(lowest_L, tl.min(tl.where(index_LW < vocabulary, student_LW, float("inf")), 1))
    return _log_sum(student_max_L, student_sum_L), _log_sum(teacher_max_L, teacher_sum_L), tl.min(lowest_L, 0)


@triton.jit
def _add(max_L, sum_L, x_LW):
    """Add entries to a lane's running maximum and sum of 2^(x − maximum)."""
    new_L = tl.maximum(max_L, tl.max(x_LW, 1))
    return new_L, sum_L * tl.exp2(max_L - new_L) + tl.sum(tl.exp2(x_LW - new_L[:, None]), 1)


@triton.jit
def _log_sum(max_L, sum_L):
    """The log-sum-exp of a row from its lanes'."""
    top = tl.max(max_L, 0)
    lse = top + tl.log2(tl.sum(sum_L * tl.exp2(max_L - top), 0))
    return tl.where(lse < LOWEST, LOWEST, lse)


@triton.jit
def _index(tile, LANES: tl.constexpr):
    """The entries of a row in a tile."""
    return tile * (LANES * WIDTH) + tl.arange(0, LANES)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]


@triton.jit
def _load(STUDENT, index_LW, vocabulary):
    return tl.load(STUDENT + index_LW, mask=index_LW < vocabulary, other=-float("inf")).to(tl.float32)


@triton.jit
def _logits(STUDENT, DIFFERENCE, index_LW, vocabulary, student, teacher, CAPS: tl.constexpr):
    """Both roles' logits at some entries of a row; −∞ beyond its end."""
    product_LW = _load(STUDENT, index_LW, vocabulary)
    difference_LW = tl.load(DIFFERENCE + index_LW, mask=index_LW < vocabulary, other=0.0).to(tl.float32)
    student_LW = _logit(product_LW, 0.0, index_LW, vocabulary, student, CAPS & 1)
    return student_LW, _logit(product_LW, difference_LW, index_LW, vocabulary, teacher, CAPS & 2)


@triton.jit
def _logit(product_LW, difference_LW, index_LW, vocabulary, head, CAP: tl.constexpr):
    """The logit x of one head; a product of −∞ stays −∞."""
    raw_LW = product_LW + difference_LW
    if head[0] is not None:
        raw_LW += tl.load(head[0] + index_LW, mask=index_LW < vocabulary, other=0.0).to(tl.float32)
    if CAP:
        bent_LW = 1 - 2 / (tl.exp2(raw_LW * head[1]) + 1)
        return tl.where(product_LW == -float("inf"), product_LW, bent_LW * head[2])
    return raw_LW * head[2]


@triton.jit
def _store_gradient(STUDENT, grad_LW, student_LW, index_LW, vocabulary, gain, CAP: tl.constexpr):
    """Replace the student's products by the gradient to them, through the soft cap."""
    if CAP:
        bent_LW = tl.maximum(student_LW / gain, -1.0)
        grad_LW *= 1 - bent_LW * bent_LW
    tl.store(STUDENT + index_LW, grad_LW.to(STUDENT.dtype.element_ty), mask=index_LW < vocabulary)
