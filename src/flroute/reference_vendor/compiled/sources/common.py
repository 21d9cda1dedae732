"""What the kernels share."""

import triton
import triton.language as tl


@triton.jit
def wide(x):
    """Half precision as float32, which holds all of it."""
    if x.dtype.is_fp64():
        return x
    else:
        return x.to(tl.float32)


@triton.jit
def positions(n, BLOCK: tl.constexpr):
    """The elements of this program, and which of them there are."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    return i, i < n


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)): 0 where exp overflows."""
    return 1 / (1 + tl.exp(-x))
