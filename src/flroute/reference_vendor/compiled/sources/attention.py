"""What comes between the matrix products of attention, on a block of rows of scores; one row per program."""

import triton
import triton.language as tl

from flroute.reference_vendor.compiled.sources.rows import row


@triton.jit
def visible(
    scores,
    mask,
    mask_row,
    mask_column,
    first,
    n,
    scale,
    CAUSAL: tl.constexpr,
    MASK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A row of scores, scaled, and minus infinity where it may not look; ``first`` is the position of the block's first row."""
    i, inside = row(n, BLOCK)
    column = tl.arange(0, BLOCK)
    v = tl.load(scores + i, mask=inside, other=0.0) * scale
    if MASK:
        place = mask + tl.program_id(0).to(tl.int64) * mask_row + column * mask_column
        v = v + tl.load(place, mask=inside, other=0.0)
    if CAUSAL:
        inside = inside & (column <= first + tl.program_id(0))
    return tl.where(inside, v, -float("inf"))


@triton.jit
def softmax(
    scores, mask, logsumexp, mask_row, mask_column, logsumexp_row, first, n, scale,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scores become weights in place, zeros where a row sees nothing; and the logarithm of each row's sum."""
    i, inside = row(n, BLOCK)
    v = visible(scores, mask, mask_row, mask_column, first, n, scale, CAUSAL, MASK, BLOCK)
    largest = tl.max(v, 0)
    largest = tl.where(largest == -float("inf"), 0.0, largest)
    e = tl.exp(v - largest)
    total = tl.sum(e, 0)
    total = tl.where(total == 0, 1.0, total)
    tl.store(scores + i, e * (1 / total), mask=inside)
    tl.store(logsumexp + tl.program_id(0) * logsumexp_row, largest + tl.log(total))


@triton.jit
def softmax_backward(
    scores, slopes, mask, logsumexp, through, mask_row, mask_column, logsumexp_row, first, n, scale,
    CAUSAL: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Scores become weights in place, and ``slopes``, the gradient of the weights, that of the scores before scaling."""
    i, inside = row(n, BLOCK)
    r = tl.program_id(0)
    v = visible(scores, mask, mask_row, mask_column, first, n, scale, CAUSAL, MASK, BLOCK)
    weight = tl.exp(v - tl.load(logsumexp + r * logsumexp_row))
    slope = tl.load(slopes + i, mask=inside, other=0.0) - tl.load(through + r)
    tl.store(scores + i, weight, mask=inside)
    tl.store(slopes + i, weight * slope * scale, mask=inside)
