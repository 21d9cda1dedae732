"""Activation functions and their gradients. Those with an exponential run in double precision."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np

from flroute.reference_vendor.support import (
    FLOATS,
    NUMBERS,
    Array,
    Result,
    check_scalars,
    narrow,
    quiet,
    rounded,
    select,
    wide,
    without,
)
from flroute.vendor import Unsupported, kernel


@kernel("aten::relu", dtypes=NUMBERS)
def relu(x: Array) -> Result:
    return np.maximum(x, 0)


@kernel("aten::threshold_backward", dtypes=FLOATS)
def threshold_backward(gradient: Array, x: Array, threshold: float) -> Result:
    return without(np.less_equal(x, threshold), gradient)


@kernel("aten::leaky_relu", dtypes=FLOATS)
@quiet
def leaky_relu(x: Array, negative_slope: float = 0.01) -> Result:
    return select(np.greater(x, 0), x, np.multiply(x, negative_slope))


@kernel("aten::leaky_relu_backward", dtypes=FLOATS)
@quiet
def leaky_relu_backward(gradient: Array, x: Array, negative_slope: float, self_is_result: bool) -> Result:
    return select(np.greater(x, 0), gradient, np.multiply(gradient, negative_slope))


@kernel("aten::hardtanh", dtypes=NUMBERS)
def hardtanh(x: Array, min_val: float = -1, max_val: float = 1) -> Result:
    check_scalars(x.dtype, min_val, max_val)
    return np.minimum(np.maximum(x, min_val), max_val)


@kernel("aten::hardtanh_backward", dtypes=FLOATS)
def hardtanh_backward(gradient: Array, x: Array, min_val: float, max_val: float) -> Result:
    outside = np.less_equal(x, min_val) | np.greater_equal(x, max_val)
    return without(outside, gradient)


@kernel("aten::tanh", dtypes=FLOATS)
def tanh(x: Array) -> Result:
    return rounded(np.tanh, x, like=x)


@kernel("aten::tanh_backward", dtypes=FLOATS)
@quiet
def tanh_backward(gradient: Array, output: Array) -> Result:
    return narrow(gradient * (1 - np.square(wide(output))), output)


def _logistic(x: Array) -> Result:
    """1 / (1 + exp(-x)), a new array."""
    result = np.exp(np.negative(x))
    result += 1
    return np.reciprocal(result)


@kernel("aten::sigmoid", dtypes=FLOATS)
@quiet
def sigmoid(x: Array) -> Result:
    return narrow(_logistic(wide(x)), x)


@kernel("aten::sigmoid_backward", dtypes=FLOATS)
@quiet
def sigmoid_backward(gradient: Array, output: Array) -> Result:
    return narrow(gradient * ((1 - wide(output)) * output), output)


@kernel("aten::silu", dtypes=FLOATS)
@quiet
def silu(x: Array) -> Result:
    return narrow(x / (1 + np.exp(-wide(x))), x)


@kernel("aten::silu_backward", dtypes=FLOATS)
@quiet
def silu_backward(gradient: Array, x: Array) -> Result:
    logistic = _logistic(wide(x))
    return narrow(gradient * logistic * (1 + x * (1 - logistic)), x)


@kernel("aten::elu", dtypes=FLOATS)
@quiet
def elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Result:
    exact = wide(x)
    return narrow(np.where(x < 0, np.expm1(exact * input_scale) * alpha * scale, exact * scale), x)


@kernel("aten::softplus", dtypes=FLOATS)
@quiet
def softplus(x: Array, beta: float = 1, threshold: float = 20) -> Result:
    scaled = wide(x) * beta
    return narrow(np.where(scaled > threshold, x, np.log1p(np.exp(scaled)) / beta), x)


@kernel("aten::softplus_backward", dtypes=FLOATS)
@quiet
def softplus_backward(gradient: Array, x: Array, beta: float, threshold: float) -> Result:
    scaled = wide(x) * beta
    return narrow(np.where(scaled > threshold, gradient, gradient * _logistic(scaled)), x)


# -- gelu ---------------------------------------------------------------------------------------------

# (1 + 2z) exp(z^2) erfc(z) for z >= 0 as a polynomial in t = (z - 3.75) / (z + 3.75), lowest power first:
# the Chebyshev expansion to 22 terms, computed to 50 digits and rewritten in powers of t. Off by 9e-16
# relative for z < 3, by 1.5e-14 in the far tail, where rounding z^2 costs more than the polynomial.
_POLE = 3.75
_ERFC = (
    1.2375126308378275, -0.14024059858554525, 0.0035854154854790257, 0.08227673848999506,
    -0.10880393014244462, 0.09230432116428125, -0.05869339857664934, 0.02836227737211114,
    -0.009746579683265262, 0.0017556261651970652, 0.000293714378044958, -0.00029015535246077655,
    5.164652974177416e-05, 2.2387565714911816e-05, -1.1438048033346894e-05, -9.792625707303523e-07,
    1.7419821586224816e-06, -5.084465378687302e-08, -2.4857126248016745e-07, 1.879082322370048e-08,
    3.197926671666804e-08, -1.9551358868985616e-09, -2.623107347133476e-09,
)  # fmt: skip
_CHUNK = 8192  # doubles: three such buffers stay in a core's own cache over the polynomial's 46 passes


def erfc(x: Array) -> Result:
    """The complementary error function of an array of doubles."""
    result = np.empty(x.shape)
    source, target = x.reshape(-1), result.reshape(-1)
    for start in range(0, source.size, _CHUNK):
        _erfc_into(target[start : start + _CHUNK], source[start : start + _CHUNK])
    return result


def _erfc_into(out: Array, x: Array) -> None:
    z = np.absolute(x)
    t = 1 - 2 * _POLE / (z + _POLE)  # not (z - pole) / (z + pole), which is NaN at infinity
    out.fill(_ERFC[-1])
    for coefficient in reversed(_ERFC[:-1]):
        out *= t
        out += coefficient
    out *= np.exp(-z * z)
    out /= 1 + 2 * z
    np.subtract(2, out, out=out, where=x < 0)


_ROOT_HALF = sqrt(0.5)
_DENSITY = 1 / sqrt(2 * pi)
_TANH_SCALE, _TANH_CUBE = sqrt(2 / pi), 0.044715


def _check_approximate(approximate: str) -> bool:
    if approximate not in ("none", "tanh"):
        raise Unsupported(f"gelu with approximate={approximate!r}")
    return approximate == "tanh"


def _gelu_tanh(x: Array) -> Result:
    return np.tanh(_TANH_SCALE * (x + _TANH_CUBE * x * x * x))


@kernel("aten::gelu", dtypes=FLOATS)
@quiet
def gelu(x: Array, *, approximate: str = "none") -> Result:
    exact = wide(x)
    if _check_approximate(approximate):
        return narrow(0.5 * exact * (1 + _gelu_tanh(exact)), x)
    return narrow(0.5 * exact * erfc(exact * -_ROOT_HALF), x)


@kernel("aten::gelu_backward", dtypes=FLOATS)
@quiet
def gelu_backward(gradient: Array, x: Array, *, approximate: str = "none") -> Result:
    exact = wide(x)
    if _check_approximate(approximate):
        slope = _gelu_tanh_slope(exact)
    else:
        slope = 0.5 * erfc(exact * -_ROOT_HALF) + exact * (_DENSITY * np.exp(-0.5 * exact * exact))
    return narrow(gradient * slope, x)


def _gelu_tanh_slope(x: Array) -> Result:
    tanh_inner = _gelu_tanh(x)
    inner_slope = _TANH_SCALE * (1 + 3 * _TANH_CUBE * x * x)
    return 0.5 * (1 + tanh_inner) + 0.5 * x * (1 - tanh_inner * tanh_inner) * inner_slope
