"""Kernels that the documentation's examples run."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def negate(x, n, BLOCK: tl.constexpr):
    """Change the sign of n numbers, in place."""
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, -tl.load(x + i, mask=i < n), mask=i < n)
