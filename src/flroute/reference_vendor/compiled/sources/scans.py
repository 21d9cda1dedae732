"""Sums so far along rows, added up in double precision."""

import triton
import triton.language as tl


@triton.jit
def cumsum(x, out, before, width, n, BLOCK: tl.constexpr):
    """Along each ``width`` of ``n`` elements, to which what is ``before`` them is added."""
    start = tl.program_id(0).to(tl.int64) * width
    stop = tl.minimum(start + width, n)
    total = tl.load(before + tl.program_id(0))
    for first in range(start, stop, BLOCK):
        i = first + tl.arange(0, BLOCK)
        v = tl.load(x + i, mask=i < stop, other=0.0).to(tl.float64)
        tl.store(out + i, tl.cumsum(v, 0) + total, mask=i < stop)
        total += tl.sum(v, 0)
