"""What optimizers do to one tensor: each element is read and written once."""

import triton
import triton.language as tl

from flroute.reference_vendor.compiled.sources.common import positions, wide


@triton.jit
def between(start, end, weight):
    """start + weight (end - start), from the nearer end."""
    return tl.where(weight < 0.5, start + weight * (end - start), end - (end - start) * (1 - weight))


@triton.jit
def lerp(x, end, weight, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    a, b = wide(tl.load(x + i, mask=inside)), wide(tl.load(end + i, mask=inside))
    tl.store(x + i, between(a, b, weight), mask=inside)


@triton.jit
def addcmul(x, a, b, value, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    product = wide(tl.load(a + i, mask=inside)) * wide(tl.load(b + i, mask=inside))
    tl.store(x + i, wide(tl.load(x + i, mask=inside)) + value * product, mask=inside)


@triton.jit
def addcdiv(x, a, b, value, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    quotient = wide(tl.load(a + i, mask=inside)) / wide(tl.load(b + i, mask=inside))
    tl.store(x + i, wide(tl.load(x + i, mask=inside)) + value * quotient, mask=inside)


@triton.jit
def adam(
    x, gradient, mean, square, decay, shrink, weight1, beta2, weight2, step_size, root, eps, n,
    SIGN: tl.constexpr, DECAY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Kingma and Ba, "Adam": ``decay`` times x is added to the gradient; AdamW multiplies x by ``shrink`` instead."""
    i, inside = positions(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside)) * shrink
    g = SIGN * wide(tl.load(gradient + i, mask=inside))
    if DECAY:  # nothing times a parameter that is infinite would be NaN
        g = g + decay * v
    m = between(wide(tl.load(mean + i, mask=inside)), g, weight1)
    s = beta2 * wide(tl.load(square + i, mask=inside)) + weight2 * g * g
    tl.store(mean + i, m, mask=inside)
    tl.store(square + i, s, mask=inside)
    tl.store(x + i, v - step_size * (m / (tl.sqrt(s) / root + eps)), mask=inside)
