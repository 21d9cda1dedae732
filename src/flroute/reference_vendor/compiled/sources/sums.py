"""Sums, block by block in the type they are computed in, added up in double precision."""

import triton
import triton.language as tl

from flroute.reference_vendor.compiled.sources.common import wide


@triton.jit
def sum_of_rows(x, out, width, n, scale, BLOCK: tl.constexpr):
    """``scale`` times the sum of each ``width`` of ``n`` elements; the last row may be shorter."""
    start = tl.program_id(0).to(tl.int64) * width
    stop = tl.minimum(start + width, n)
    total = tl.cast(0.0, tl.float64)
    for first in range(start, stop, BLOCK):
        i = first + tl.arange(0, BLOCK)
        total += tl.sum(wide(tl.load(x + i, mask=i < stop, other=0.0)), 0).to(tl.float64)
    tl.store(out + tl.program_id(0), total * scale)
