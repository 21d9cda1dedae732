"""Elementwise kernels: one block of ``n`` elements in a row per program."""

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from flroute.reference_vendor.compiled.sources.common import positions, sigmoid, wide

ROOT_HALF = tl.constexpr(0.7071067811865476)
DENSITY = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)


@triton.jit
def relu(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    v = tl.load(x + i, mask=inside)
    tl.store(out + i, tl.where(v <= 0, 0.0, v), mask=inside)


@triton.jit
def cast(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    tl.store(out + i, wide(tl.load(x + i, mask=inside)), mask=inside)


@triton.jit
def logistic(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    tl.store(out + i, sigmoid(wide(tl.load(x + i, mask=inside))), mask=inside)


@triton.jit
def silu(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside))
    tl.store(out + i, v / (1 + tl.exp(-v)), mask=inside)


@triton.jit
def tanh(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    tl.store(out + i, libdevice.tanh(wide(tl.load(x + i, mask=inside))), mask=inside)


@triton.jit
def exp(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    tl.store(out + i, tl.exp(wide(tl.load(x + i, mask=inside))), mask=inside)


@triton.jit
def log(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    tl.store(out + i, tl.log(wide(tl.load(x + i, mask=inside))), mask=inside)


@triton.jit
def rsqrt(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    tl.store(out + i, 1 / tl.sqrt(wide(tl.load(x + i, mask=inside))), mask=inside)


@triton.jit
def pow_scalar(x, out, exponent, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    v = tl.load(x + i, mask=inside)
    tl.store(out + i, libdevice.pow(v, tl.full((BLOCK,), exponent, v.dtype)), mask=inside)


@triton.jit
def pow_tensor(x, exponent, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    v, power = tl.load(x + i, mask=inside), tl.load(exponent + i, mask=inside)
    tl.store(out + i, libdevice.pow(v, power), mask=inside)


@triton.jit
def minus_logit(x):
    """-log(Phi(x) / Phi(-x)), an odd function of x; ``reference_vendor/gelu.py`` says where the coefficients are from."""
    z = tl.minimum(x * x, 31.0)
    q = tl.fma(z, 2.7792823598105088e-11, -5.270835323756273e-09)
    q = tl.fma(q, z, 3.044919480998942e-07)
    q = tl.fma(q, z, -8.350788448296953e-06)
    q = tl.fma(q, z, 0.00011280123726464808)
    q = tl.fma(q, z, 5.974778105155565e-05)
    q = tl.fma(q, z, -0.07266046106815338)
    return x * tl.fma(q, z, -1.5957716703414917)


@triton.jit
def normal(x):
    """Phi, the normal distribution function."""
    if x.dtype.is_fp64():
        return 0.5 * libdevice.erfc(x * -ROOT_HALF)
    else:
        return 1 / (1 + tl.exp(minus_logit(x)))


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside))
    if v.dtype.is_fp64():
        tl.store(out + i, v * normal(v), mask=inside)
    else:
        tl.store(out + i, v / (1 + tl.exp(minus_logit(v))), mask=inside)


@triton.jit
def gelu_backward(gradient, x, out, n, BLOCK: tl.constexpr):
    """Phi(x) + x phi(x), where phi is the normal density."""
    i, inside = positions(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside))
    g = wide(tl.load(gradient + i, mask=inside))
    slope = normal(v) + v * DENSITY * tl.exp(-0.5 * v * v)
    tl.store(out + i, g * slope, mask=inside)


@triton.jit
def tanh_logit(x):
    """2 sqrt(2 / pi) (x + 0.044715 x^3): 0.5 (1 + tanh(u)) is the logistic function of 2u."""
    return x * (1.5957691216057308 + 0.07135481627260025 * (x * x))


@triton.jit
def gelu_tanh(x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside))
    tl.store(out + i, v / (1 + tl.exp(-tanh_logit(v))), mask=inside)


@triton.jit
def gelu_tanh_backward(gradient, x, out, n, BLOCK: tl.constexpr):
    """s (1 + x a'(x) (1 - s)), where s is the logistic function of a; 1 - s is exp(-a) s without its cancellation.

    Beyond +-10 it is 0 or 1, but for what x^3 would overflow to; of an infinity it is NaN, as on the host.
    """
    i, inside = positions(n, BLOCK)
    v = wide(tl.load(x + i, mask=inside))
    g = wide(tl.load(gradient + i, mask=inside))
    near = tl.where(v > 10, 10.0, tl.where(v < -10, -10.0, v))
    e = tl.exp(-tanh_logit(near))
    s = 1 / (1 + e)
    slope = 1.5957691216057308 + 3 * 0.07135481627260025 * (near * near)
    tl.store(out + i, g * (s * (1 + near * slope * (e * s)) + (v - v)), mask=inside)


@triton.jit
def sigmoid_backward(gradient, output, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    g, y = wide(tl.load(gradient + i, mask=inside)), wide(tl.load(output + i, mask=inside))
    tl.store(out + i, g * (1 - y) * y, mask=inside)


@triton.jit
def tanh_backward(gradient, output, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    g, y = wide(tl.load(gradient + i, mask=inside)), wide(tl.load(output + i, mask=inside))
    tl.store(out + i, g * (1 - y * y), mask=inside)


@triton.jit
def silu_backward(gradient, x, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    g, v = wide(tl.load(gradient + i, mask=inside)), wide(tl.load(x + i, mask=inside))
    s = sigmoid(v)
    tl.store(out + i, g * s * (1 + v * (1 - s)), mask=inside)


@triton.jit
def threshold_backward(gradient, x, out, threshold, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    g, v = tl.load(gradient + i, mask=inside), tl.load(x + i, mask=inside)
    tl.store(out + i, tl.where(v <= threshold, 0.0, g), mask=inside)


@triton.jit
def masked_scale(x, kept, out, scale, n, BLOCK: tl.constexpr):
    """Products, as on the host: a NaN that is dropped stays a NaN, and so is nothing times an infinite scale."""
    i, inside = positions(n, BLOCK)
    v = tl.load(x + i, mask=inside)
    tl.store(out + i, v * (tl.load(kept + i, mask=inside, other=0).to(v.dtype) * scale), mask=inside)


# -- arithmetic of half precision, which numpy does one element at a time -----------------------------------------


@triton.jit
def add(x, y, out, alpha, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    a, b = wide(tl.load(x + i, mask=inside)), wide(tl.load(y + i, mask=inside))
    tl.store(out + i, tl.fma(b, alpha, a), mask=inside)


@triton.jit
def mul(x, y, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    a, b = wide(tl.load(x + i, mask=inside)), wide(tl.load(y + i, mask=inside))
    tl.store(out + i, a * b, mask=inside)


@triton.jit
def div(x, y, out, n, BLOCK: tl.constexpr):
    i, inside = positions(n, BLOCK)
    a, b = wide(tl.load(x + i, mask=inside)), wide(tl.load(y + i, mask=inside))
    tl.store(out + i, a / b, mask=inside)
