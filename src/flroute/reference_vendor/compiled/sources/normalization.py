"""Layer and RMS normalization and their gradients, one row per program."""

import triton
import triton.language as tl

from flroute.reference_vendor.compiled.sources.common import wide
from flroute.reference_vendor.compiled.sources.rows import row


@triton.jit
def layer_norm(
    x, weight, bias, out, mean, rstd, n, eps, WEIGHT: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    i, inside = row(n, BLOCK)
    column = tl.arange(0, BLOCK)
    v = wide(tl.load(x + i, mask=inside, other=0.0))
    centre = tl.sum(v, 0) / n
    v = tl.where(inside, v - centre, 0.0)
    scale = 1 / tl.sqrt(tl.sum(v * v, 0) / n + eps)
    v = v * scale
    if WEIGHT:
        v = v * wide(tl.load(weight + column, mask=inside))
    if BIAS:
        v = v + wide(tl.load(bias + column, mask=inside))
    tl.store(out + i, v, mask=inside)
    tl.store(mean + tl.program_id(0), centre)
    tl.store(rstd + tl.program_id(0), scale)


@triton.jit
def layer_norm_backward(gradient, x, mean, rstd, weight, out, n, WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """With u = (x - mean) rstd, each row is rstd (g - mean(g) - u mean(g u)), where g = gradient * weight."""
    i, inside = row(n, BLOCK)
    centre, scale = wide(tl.load(mean + tl.program_id(0))), wide(tl.load(rstd + tl.program_id(0)))
    g = wide(tl.load(gradient + i, mask=inside, other=0.0))
    u = tl.where(inside, (wide(tl.load(x + i, mask=inside, other=0.0)) - centre) * scale, 0.0)
    if WEIGHT:
        g = g * wide(tl.load(weight + tl.arange(0, BLOCK), mask=inside, other=0.0))
    shift, slope = tl.sum(g, 0) / n, tl.sum(g * u, 0) / n
    tl.store(out + i, (g - shift - u * slope) * scale, mask=inside)


@triton.jit
def layer_norm_parameters(
    gradient, x, mean, rstd, for_weight, for_bias, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    """What each of ``ROWS`` rows in a row adds to the gradients of weight and bias; (programs, n) of partial sums."""
    column = tl.arange(0, BLOCK)
    inside = column < n
    weights, biases = (
        tl.zeros((BLOCK,), for_weight.dtype.element_ty),
        tl.zeros((BLOCK,), for_weight.dtype.element_ty),
    )
    first = tl.program_id(0).to(tl.int64) * ROWS
    for r in range(first, tl.minimum(first + ROWS, rows)):
        g = wide(tl.load(gradient + r * n + column, mask=inside, other=0.0))
        v = wide(tl.load(x + r * n + column, mask=inside, other=0.0))
        biases += g
        weights += g * (v - wide(tl.load(mean + r))) * wide(tl.load(rstd + r))
    i = tl.program_id(0).to(tl.int64) * n + column
    tl.store(for_weight + i, weights, mask=inside)
    tl.store(for_bias + i, biases, mask=inside)


@triton.jit
def total_of_columns(x, out, rows, n, BLOCK: tl.constexpr):
    """The sum of each of ``n`` columns, in double precision."""
    column = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = column < n
    total = tl.zeros((BLOCK,), tl.float64)
    for r in range(rows):
        total += tl.load(x + r * n + column, mask=inside, other=0.0).to(tl.float64)
    tl.store(out + column, total, mask=inside)


@triton.jit
def rms_norm(x, weight, out, rstd, n, eps, WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    i, inside = row(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside, other=0.0))
    scale = 1 / tl.sqrt(tl.sum(v * v, 0) / n + eps)
    v = v * scale
    if WEIGHT:
        v = v * wide(tl.load(weight + tl.arange(0, BLOCK), mask=inside))
    tl.store(out + i, v, mask=inside)
    tl.store(rstd + tl.program_id(0), scale)


@triton.jit
def rms_norm_backward(gradient, x, rstd, weight, out, n, WEIGHT: tl.constexpr, BLOCK: tl.constexpr):
    """With u = x rstd, each row is rstd (g - u mean(g u)), where g = gradient * weight."""
    i, inside = row(n, BLOCK)
    scale = tl.load(rstd + tl.program_id(0))
    g = wide(tl.load(gradient + i, mask=inside, other=0.0))
    u = wide(tl.load(x + i, mask=inside, other=0.0)) * scale
    if WEIGHT:
        g = g * wide(tl.load(weight + tl.arange(0, BLOCK), mask=inside, other=0.0))
    tl.store(out + i, (g - u * (tl.sum(g * u, 0) / n)) * scale, mask=inside)


@triton.jit
def rms_norm_parameters(gradient, x, rstd, for_weight, rows, n, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """What each of ``ROWS`` rows in a row adds to the gradient of the weight; (programs, n) of partial sums."""
    column = tl.arange(0, BLOCK)
    inside = column < n
    weights = tl.zeros((BLOCK,), for_weight.dtype.element_ty)
    first = tl.program_id(0).to(tl.int64) * ROWS
    for r in range(first, tl.minimum(first + ROWS, rows)):
        g = wide(tl.load(gradient + r * n + column, mask=inside, other=0.0))
        weights += g * wide(tl.load(x + r * n + column, mask=inside, other=0.0)) * tl.load(rstd + r)
    tl.store(for_weight + tl.program_id(0).to(tl.int64) * n + column, weights, mask=inside)
