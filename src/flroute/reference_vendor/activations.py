"""Activation functions and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from flroute.reference_vendor.blocks import BLOCK, in_blocks
from flroute.reference_vendor.memory import empty_like
from flroute.reference_vendor.support import (
    FLOATS,
    NUMBERS,
    REALS,
    Array,
    Result,
    axes,
    check_scalars,
    floating,
    narrow,
    quiet,
    select,
    wide,
    without,
)
from flroute.vendor import Unsupported, kernel


@kernel("aten::relu", dtypes=NUMBERS)
def relu(x: Array) -> Result:
    if x.dtype.kind == "f" and x.size > BLOCK:
        return np.clip(x, 0, np.inf, out=empty_like(x))  # numpy's maximum has no fast loop for a number
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
    if x.dtype.kind in "iu" and np.isfinite([min_val, max_val]).all():
        min_val, max_val = int(min_val), int(max_val)
    check_scalars(x.dtype, min_val, max_val)
    return np.minimum(np.maximum(x, min_val), max_val)


@kernel("aten::hardtanh_backward", dtypes=FLOATS)
def hardtanh_backward(gradient: Array, x: Array, min_val: float, max_val: float) -> Result:
    outside = np.less_equal(x, min_val) | np.greater_equal(x, max_val)
    return without(outside, gradient)


@kernel("aten::tanh", dtypes=REALS)
@quiet
def tanh(x: Array) -> Result:
    x = floating(x)
    return in_blocks(_tanh if x.dtype.char == "f" else _tanh_of_doubles, x)


def _tanh_of_doubles(out: Array, x: Array) -> None:
    np.tanh(x, out=out)


def _tanh(out: Array, x: Array) -> None:
    """1 - 2 / (exp(2x) + 1) in double precision: the cheapest that is right to float32; where it would cancel, x itself.

    numpy's own float32 tanh is off by up to 1.4 units in the last place, PyTorch's by half a unit.
    """
    e = np.multiply(x, 2, dtype=np.float64)
    np.exp(e, out=e)
    np.add(e, 1, out=e)
    np.divide(2, e, out=e)
    np.subtract(1, e, out=out, casting="same_kind")
    np.copyto(out, x, where=np.absolute(x) < _TANH_IS_X)


_TANH_IS_X = 1e-4  # x - x^3 / 3 rounds to x


@kernel("aten::tanh_backward", dtypes=FLOATS)
@quiet
def tanh_backward(gradient: Array, output: Array) -> Result:
    return in_blocks(_tanh_slope, gradient, output)


def _tanh_slope(out: Array, gradient: Array, output: Array) -> None:
    slope = np.square(output, dtype=np.float64)
    np.subtract(1, slope, out=slope)
    np.multiply(gradient, slope, out=out, casting="same_kind")


def _logistic(x: Array) -> Result:
    """1 / (1 + exp(-x)), a new array."""
    result = np.exp(np.negative(x))
    result += 1
    return np.reciprocal(result)


def _one_plus_exp_of_minus(out: Array, x: Array) -> None:
    np.negative(x, out=out)
    np.exp(out, out=out)
    np.add(out, 1, out=out)


def _sigmoid(out: Array, x: Array) -> None:
    _one_plus_exp_of_minus(out, x)
    np.divide(1, out, out=out)


def _silu(out: Array, x: Array) -> None:
    _one_plus_exp_of_minus(out, x)
    np.divide(x, out, out=out)


def _silu_slope(out: Array, gradient: Array, x: Array) -> None:
    """s (1 + x (1 - s)) for the logistic s of x."""
    _sigmoid(out, x)
    rest = np.subtract(1, out)
    np.multiply(rest, x, out=rest)
    np.add(rest, 1, out=rest)
    np.multiply(out, rest, out=out)
    np.multiply(out, gradient, out=out)


@kernel("aten::sigmoid", dtypes=REALS)
@quiet
def sigmoid(x: Array) -> Result:
    return in_blocks(_sigmoid, floating(x))


@kernel("aten::sigmoid_backward", dtypes=FLOATS)
@quiet
def sigmoid_backward(gradient: Array, output: Array) -> Result:
    return gradient * ((1 - output) * output)


@kernel("aten::silu", dtypes=FLOATS)
@quiet
def silu(x: Array) -> Result:
    return in_blocks(_silu, x)


@kernel("aten::silu_backward", dtypes=FLOATS)
@quiet
def silu_backward(gradient: Array, x: Array) -> Result:
    return in_blocks(_silu_slope, gradient, x)


@kernel("aten::elu", dtypes=FLOATS)
@quiet
def elu(x: Array, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Result:
    exact = wide(x)
    return narrow(np.where(x < 0, np.expm1(exact * input_scale) * alpha * scale, exact * scale), x)


@kernel("aten::elu_backward", dtypes=FLOATS)
@quiet
def elu_backward(
    gradient: Array, alpha: float, scale: float, input_scale: float, is_result: bool, x: Array
) -> Result:
    """Here ``x`` is the input of elu, or its result: that holds alpha scale (exp(input_scale x) - 1)."""
    coefficient = alpha * scale
    exact = wide(x)
    below = exact + coefficient if is_result else coefficient * np.exp(exact * input_scale)
    return narrow(gradient * np.where(x <= 0, input_scale * below, scale), x)


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


@kernel("aten::log_sigmoid_forward", dtypes=FLOATS)
@quiet
def log_sigmoid(x: Array) -> tuple[Any, Any]:
    """min(x, 0) - log(1 + z) with z = exp(-|x|), which the gradient is made of and PyTorch keeps."""
    exact = wide(x)
    z = np.exp(-np.absolute(exact))
    return narrow(np.minimum(exact, 0) - np.log1p(z), x), narrow(z, x)


@kernel("aten::log_sigmoid_backward", dtypes=FLOATS)
@quiet
def log_sigmoid_backward(gradient: Array, x: Array, buffer: Array) -> Result:
    rest = wide(buffer) / (1 + wide(buffer))
    return narrow(gradient * np.where(x < 0, 1 - rest, rest), x)


# -- mish: x tanh(softplus(x)) ------------------------------------------------------------------------
#
# With n = exp(-|x|), tanh(log(1 + exp(x))) = a / (a + b), where a = 1 + 2n and b = 2n^2 for x >= 0, and
# a = n^2 + 2n and b = 2 below: one exponential, and nothing cancels.


def _mish_parts(x: Array) -> tuple[Array, Array, Array]:
    n = np.exp(-np.absolute(x))
    below = x < 0
    return np.where(below, n * (n + 2), 1 + 2 * n), np.where(below, 2, 2 * n * n).astype(x.dtype), n


@kernel("aten::mish", dtypes=FLOATS)
@quiet
def mish(x: Array) -> Result:
    a, b, _ = _mish_parts(x)
    return x * (a / (a + b))


@kernel("aten::mish_backward", dtypes=FLOATS)
@quiet
def mish_backward(gradient: Array, x: Array) -> Result:
    """t + x s (1 - t^2), where t = a / (a + b), so 1 - t^2 = b (2a + b) / (a + b)^2, and s is the logistic of x."""
    a, b, n = _mish_parts(x)
    whole = a + b
    logistic = np.where(x < 0, n, 1) / (1 + n)
    slope = a / whole + x * logistic * (b / whole) * ((whole + a) / whole)
    return (gradient * slope).astype(x.dtype, copy=False)


# -- glu: the first half times the logistic of the second ---------------------------------------------


def _halves(x: Array, dim: int) -> list[Array]:
    (axis,) = axes(dim, x.ndim) or (0,)
    if x.ndim == 0 or x.shape[axis] % 2:
        raise Unsupported(f"halves of a tensor of shape {x.shape} along dimension {dim}")
    return np.split(x, 2, axis)


@kernel("aten::glu", dtypes=FLOATS)
@quiet
def glu(x: Array, dim: int = -1) -> Result:
    first, second = _halves(x, dim)
    return first * in_blocks(_sigmoid, second)


@kernel("aten::glu_backward", dtypes=FLOATS)
@quiet
def glu_backward(gradient: Array, x: Array, dim: int) -> Result:
    first, second = _halves(x, dim)
    logistic = in_blocks(_sigmoid, second)
    return np.concatenate([gradient * logistic, gradient * first * logistic * (1 - logistic)], dim)


@kernel("aten::glu_jvp", dtypes=FLOATS)
@quiet
def glu_jvp(glu: Array, x: Array, dx: Array, dim: int) -> Result:
    """The directional derivative of glu along ``dx``."""
    logistic = in_blocks(_sigmoid, _halves(x, dim)[1])
    of_first, of_second = _halves(dx, dim)
    return of_first * logistic + glu * (1 - logistic) * of_second
