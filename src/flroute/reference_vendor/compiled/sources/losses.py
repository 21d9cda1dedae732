"""The negative log likelihood of classes, and its gradient."""

import triton
import triton.language as tl


@triton.jit
def nll_sums(x, target, sums, rows, classes, ignored, BLOCK: tl.constexpr):
    """Of all rows: the losses, how many count, and how many have a class that there is not."""
    losses, counted, wrong = tl.cast(0.0, tl.float64), tl.cast(0.0, tl.float64), tl.cast(0.0, tl.float64)
    for first in range(0, rows, BLOCK):
        r = first + tl.arange(0, BLOCK)
        t = tl.load(target + r, mask=r < rows, other=0)
        counts = (r < rows) & (t != ignored)
        known = (t >= 0) & (t < classes)
        v = tl.load(x + r.to(tl.int64) * classes + t, mask=counts & known, other=0.0)
        losses -= tl.sum(v.to(tl.float64), 0)
        counted += tl.sum(counts.to(tl.float64), 0)
        wrong += tl.sum((counts & (known == 0)).to(tl.float64), 0)
    tl.store(sums, losses)
    tl.store(sums + 1, counted)
    tl.store(sums + 2, wrong)


@triton.jit
def nll_backward(target, out, wrong, scale, classes, ignored, BLOCK: tl.constexpr):
    """A row of zeros, but for its class; ``wrong`` is set where there is none such."""
    r = tl.program_id(0).to(tl.int64)
    t = tl.load(target + r)
    if (t != ignored) & ((t < 0) | (t >= classes)):
        tl.store(wrong, 1)
    for first in range(0, classes, BLOCK):
        column = first + tl.arange(0, BLOCK)
        value = tl.where((column == t) & (t != ignored), scale, 0.0)
        tl.store(out + r * classes + column, value, mask=column < classes)
