"""Softmax and its logarithm over rows of ``n`` elements, one row per program; the whole row is one block."""

import triton
import triton.language as tl

from flroute.reference_vendor.compiled.sources.common import wide


@triton.jit
def row(n, BLOCK: tl.constexpr):
    """Where this program's row starts, and the positions in it that there are."""
    i = tl.arange(0, BLOCK)
    return tl.program_id(0).to(tl.int64) * n + i, i < n


@triton.jit
def softmax(x, out, n, BLOCK: tl.constexpr):
    i, inside = row(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside, other=-float("inf")))
    e = tl.exp(v - tl.max(v, 0))
    tl.store(out + i, e * (1 / tl.sum(e, 0)), mask=inside)


@triton.jit
def safe_softmax(x, out, n, BLOCK: tl.constexpr):
    """Of a row that is minus infinity throughout, and so has no softmax, zeros."""
    i, inside = row(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside, other=-float("inf")))
    largest = tl.max(v, 0)
    e = tl.exp(v - tl.where(largest == -float("inf"), 0.0, largest))
    total = tl.sum(e, 0)
    tl.store(out + i, e * tl.where(total == 0, 0.0, 1 / total), mask=inside)


@triton.jit
def log_softmax(x, out, n, BLOCK: tl.constexpr):
    i, inside = row(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside, other=-float("inf")))
    v = v - tl.max(v, 0)
    tl.store(out + i, v - tl.log(tl.sum(tl.exp(v), 0)), mask=inside)


@triton.jit
def softmax_backward(gradient, output, out, n, BLOCK: tl.constexpr):
    i, inside = row(n, BLOCK)
    g = wide(tl.load(gradient + i, mask=inside, other=0.0))
    y = wide(tl.load(output + i, mask=inside, other=0.0))
    tl.store(out + i, (g - tl.sum(g * y, 0)) * y, mask=inside)


@triton.jit
def log_softmax_backward(gradient, output, out, n, BLOCK: tl.constexpr):
    i, inside = row(n, BLOCK)
    g = wide(tl.load(gradient + i, mask=inside, other=0.0))
    y = wide(tl.load(output + i, mask=inside, other=0.0))
    tl.store(out + i, g - tl.exp(y) * tl.sum(g, 0), mask=inside)
